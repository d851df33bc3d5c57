package identity

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestVerifier_Standing: each source answers for its own users. One that is away decides nothing, and does not delay
// the users of others.
func TestVerifier_Standing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("users:\n- name: ann\n  tokens: [\"" + Hash("a") + "\"]\n- name: bob\n  limits: {max-kernels: 2}\n")
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	away := errors.New("no connection")
	tokens := newFakeSource("", nil)
	listed := newFakeSource("", nil)
	listed.has = func(name string) (bool, error) { return name == "cat", nil }
	down := newFakeSource("", nil)
	down.has = func(string) (bool, error) { return false, away }
	for _, test := range []struct {
		name    string
		sources []Source
		want    Standing
		err     error
	}{
		{"ann", nil, Known, nil},
		{"ann", []Source{down}, Known, nil},
		{"bob", nil, Gone, nil}, // an entry for limits
		{"cat", nil, Gone, nil},
		{"cat", []Source{listed}, Known, nil},
		{"dan", []Source{listed}, Gone, nil},
		{"dan", []Source{listed, tokens}, Unlisted, nil},
		{"cat", []Source{tokens, listed}, Known, nil},
		{"cat", []Source{down, listed}, Known, nil},
		{"dan", []Source{down, listed}, Undecided, ErrUnavailable},
		{"dan", []Source{down, tokens}, Unlisted, ErrUnavailable},
	} {
		v, _ := verifierOf(t, Options{File: f, Sources: test.sources})
		if got, err := v.Standing(t.Context(), test.name); got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%s of %v: %v, %v, want %v, %v", test.name, test.sources, got, err, test.want, test.err)
		}
	}
	v, _ := verifierOf(t, Options{File: f})
	write("users: []\n")
	v.Refresh()
	if got, err := v.Standing(t.Context(), "ann"); got != Gone || err != nil {
		t.Errorf("removed from the file: %v, %v", got, err)
	}
	write("users: [")
	v.Refresh()
	if got, err := v.Standing(t.Context(), "ann"); got != Gone || err != nil {
		t.Errorf("with an invalid file: %v, %v", got, err)
	}
}

// TestVerifier_StandingAway: a source that does not answer is asked once in a while only, whatever the name. It is
// asked again later.
func TestVerifier_StandingAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, answer := 0, errors.New("no connection")
		s := newFakeSource("", nil)
		s.has = func(string) (bool, error) { asked++; return answer == nil, answer }
		v, _ := verifierOf(t, Options{Sources: []Source{s}})
		ask := func(want Standing) {
			t.Helper()
			for i := range 100 {
				if got, err := v.Standing(t.Context(), fmt.Sprint("user", i)); got != want {
					t.Fatalf("got %v, %v, want %v", got, err, want)
				}
			}
		}
		ask(Undecided)
		time.Sleep(awayTime + time.Second)
		answer = fmt.Errorf("%w: no scope", errRefused)
		ask(Unlisted)
		if asked != 2 {
			t.Errorf("a source that is away was asked %d times, want 2", asked)
		}
		time.Sleep(refusedTime + time.Second)
		answer = nil
		ask(Known)
		if asked != 102 {
			t.Errorf("the source was asked %d times, want 102", asked)
		}
	})
}

// TestVerifier_Seen: users whose tokens a source has verified are noted once, and those of the file are not.
func TestVerifier_Seen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.yaml")
	if err := os.WriteFile(path, []byte("users: [{name: ann, tokens: [\""+Hash("a")+"\"]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	v, _ := verifierOf(t, Options{File: f, Sources: []Source{newFakeSource("", map[string]User{
		"b": {Name: "bob"}, "b2": {Name: "bob"}, "c": {Name: "cat"}})}})
	for _, token := range []string{"a", "b", "b2", "c", "unknown"} {
		_, _ = v.Identify(t.Context(), token) // the unknown one has an error
	}
	got := v.Seen()
	if slices.Sort(got); !slices.Equal(got, []string{"bob", "cat"}) || len(v.Seen()) != 0 {
		t.Errorf("seen: %v", got)
	}
}

// TestJupyterHub_Has: the hub alone decides whether it has a user, with the service's token. What something before the
// hub answers decides nothing.
func TestJupyterHub_Has(t *testing.T) {
	const notFound = `{"status": 404, "message": "Not Found"}`
	status, body, sent := 200, "", ""
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = r.Header.Get("Authorization") + " " + r.URL.EscapedPath()
		w.WriteHeader(status)
		_, _ = fmt.Fprint(w, body)
	}))
	defer hub.Close()
	source, err := NewJupyterHub(hub.URL+"/hub/api/", "ekg", "secret")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		status int
		body   string
		has    bool
		err    string
	}{
		{"ann", 200, `{"kind": "user", "name": "ann"}`, true, ""},
		{"Ann", 200, `{"kind": "user", "name": "ann"}`, false, ""},
		{"bob", 404, notFound, false, ""},
		{"bob", 404, `<html>no such page`, false, "not as a hub does"},
		{"bob", 404, `{"error": "no route"}`, false, "not as a hub does"},
		{"ann", 200, `{"version": "5.2.1"}`, false, "not as a hub does"},
		{"ann", 503, `<html>the hub is starting`, false, "503"},
		{"ann", 302, ``, false, "302"},
		{"ann", 403, `{"status": 403, "message": "Action is not authorized"}`, false, "read:users:name"},
		{"..", 404, notFound, false, ""},
		{"a/b?c", 404, notFound, false, ""},
	} {
		status, body = test.status, test.body
		has, err := source.Has(t.Context(), test.name)
		if has != test.has || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s with %d %s: %v, %v", test.name, test.status, test.body, has, err)
		}
		if errors.Is(err, ErrUnlisted) != (test.status == 403) {
			t.Errorf("%d: %v", test.status, err)
		}
		want := map[string]string{"..": "%2E%2E", "a/b?c": "a%2Fb%3Fc"}[test.name]
		if want == "" {
			want = test.name
		}
		if want = "token secret /hub/api/users/" + want; sent != want {
			t.Errorf("the hub got %q, want %q", sent, want)
		}
	}
	hub.Close()
	if _, err := source.Has(t.Context(), "ann"); err == nil || errors.Is(err, ErrUnlisted) {
		t.Errorf("without a hub: %v", err)
	}
	if source, err = NewJupyterHub(hub.URL, "ekg", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := source.Has(t.Context(), "ann"); !errors.Is(err, ErrUnlisted) {
		t.Errorf("without a token: %v", err)
	}
}
