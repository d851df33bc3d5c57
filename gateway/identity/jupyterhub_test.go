package identity

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// The end to end tests use a real hub. These answers are rare, or should never come.
func TestJupyterHub(t *testing.T) {
	answers := map[string]string{
		"good": `{"kind": "user", "name": "ann", "groups": ["b", "a"], "scopes": ["access:services!service=ekg"], ` +
			`"admin": true}`,
		"all":       `{"kind": "user", "name": "ann", "scopes": ["x", "access:services"]}`,
		"other":     `{"kind": "user", "name": "ann", "scopes": ["access:services!service=other", "access:servers"]}`,
		"longer":    `{"kind": "user", "name": "ann", "scopes": ["access:services!service=ekg2"]}`,
		"no scopes": `{"kind": "user", "name": "ann"}`,
		"service":   `{"kind": "service", "name": "ann", "scopes": ["access:services"]}`,
		"no name":   `{"kind": "user", "scopes": ["access:services"]}`,
		"html":      `<html>`,
	}
	statuses := map[string]int{"403": 403, "401": 401, "404": 404, "500": 500, "302": 302}
	var seen []string
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := strings.ReplaceAll(strings.TrimPrefix(r.Header.Get("Authorization"), "token "), "_", " ")
		seen = append(seen, r.URL.Path)
		w.Header().Set("Location", "/hub/api/user")
		if status, ok := statuses[token]; ok {
			w.WriteHeader(status)
		}
		_, _ = fmt.Fprint(w, answers[token])
	}))
	defer hub.Close()
	source, err := NewJupyterHub(hub.URL+"/hub/api/", "ekg", "")
	if err != nil {
		t.Fatal(err)
	}
	v, _ := verifierOf(t, Options{Sources: []Source{source}})
	for token, want := range map[string]error{
		"good": nil, "all": nil, "other": ErrUnknown, "longer": ErrUnknown, "no_scopes": ErrUnknown,
		"service": ErrUnknown, "no_name": ErrUnknown, "html": ErrUnavailable, "403": ErrUnknown, "401": ErrUnknown,
		"404": ErrUnavailable, "500": ErrUnavailable, "302": ErrUnavailable, "a b": ErrUnknown,
		"a\r\nb": ErrUnknown, "ä": ErrUnknown,
	} {
		u, err := v.Identify(t.Context(), token)
		if !errors.Is(err, want) || (err == nil) != (want == nil) || err == nil && u.Name != "ann" || u.Admin {
			t.Errorf("%q: got %+v, %v, want %v", token, u, err, want)
		}
		if token == "good" && !slices.Equal(u.Groups, []string{"a", "b"}) {
			t.Errorf("groups: %v", u.Groups)
		}
	}
	if len(seen) != 13 || slices.ContainsFunc(seen, func(p string) bool { return p != "/hub/api/user" }) {
		t.Errorf("the hub got %v", seen)
	}
	hub.Close()
	if _, err := v.Identify(t.Context(), "later"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without a hub: %v", err)
	}
	for _, bad := range [][3]string{
		{"hub:8081", "ekg"}, {"", "ekg"}, {"http://u:p@hub", "ekg"}, {"http://hub/api?x=1", "ekg"},
		{"http://hub/hub/api", ""}, {"http://hub/hub/api", "ekg", "a b"},
	} {
		if _, err := NewJupyterHub(bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("%v: no error", bad)
		}
	}
}

// reviewer is a cluster.
type reviewer func(token string, audiences []string) (string, []string, bool, error)

func (r reviewer) ReviewToken(_ context.Context, token string, audiences []string) (string, []string, bool, error) {
	return r(token, audiences)
}

func TestTokenReview(t *testing.T) {
	token := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	good, unknown, away := token(`{"n": 1}`), token(`{"n": 2}`), token(`{"iss": "https://x"}`)
	source := &TokenReview{Audiences: []string{"ekg"},
		Reviewer: reviewer(func(sent string, audiences []string) (string, []string, bool, error) {
			if !slices.Equal(audiences, []string{"ekg"}) {
				t.Errorf("audiences: %v", audiences)
			}
			switch sent {
			case good:
				return "system:serviceaccount:ns:bot", []string{"system:serviceaccounts"}, true, nil
			case unknown:
				return "", nil, false, nil
			}
			return "", nil, false, errors.New("forbidden")
		})}
	v, _ := verifierOf(t, Options{Sources: []Source{source}})
	for sent, want := range map[string]error{
		good: nil, unknown: ErrUnknown, away: ErrUnavailable, "word": ErrUnknown, "a.b.c": ErrUnknown,
	} {
		u, err := v.Identify(t.Context(), sent)
		if !errors.Is(err, want) || (err == nil) != (want == nil) || err == nil &&
			(u.Name != "system:serviceaccount:ns:bot" || !u.In("system:serviceaccounts")) {
			t.Errorf("%s: got %+v, %v, want %v", sent, u, err, want)
		}
	}
}
