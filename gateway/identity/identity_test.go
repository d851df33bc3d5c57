package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeSource is a source that knows its users by token, and records the tokens that it verifies.
type fakeSource struct {
	prefix string // of the tokens it takes
	wait   chan struct{}

	mu     sync.Mutex
	users  map[string]User
	ends   time.Time
	err    error // instead of any answer
	tokens []string
	has    func(name string) (bool, error) // nil: the source knows users by their tokens only
}

func (f *fakeSource) String() string          { return "fake" }
func (f *fakeSource) Takes(token string) bool { return strings.HasPrefix(token, f.prefix) }
func (f *fakeSource) Verify(ctx context.Context, token string) (User, time.Time, error) {
	f.mu.Lock()
	f.tokens = append(f.tokens, token)
	u, ok, ends, err := f.users[token], f.users[token].Name != "", f.ends, f.err
	f.mu.Unlock()
	if f.wait != nil {
		select {
		case <-f.wait:
		case <-ctx.Done():
			return User{}, time.Time{}, ctx.Err()
		}
	}
	switch {
	case err != nil:
		return User{}, time.Time{}, err
	case !ok:
		return User{}, time.Time{}, fmt.Errorf("%w: no such", ErrUnknown)
	}
	return u, ends, nil
}

func (f *fakeSource) Has(_ context.Context, name string) (bool, error) {
	if f.has == nil {
		return false, ErrUnlisted
	}
	return f.has(name)
}

func (f *fakeSource) set(token string, u User, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users[token], f.err = u, err
}

func (f *fakeSource) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.tokens)
}

func newFakeSource(prefix string, users map[string]User) *fakeSource {
	return &fakeSource{prefix: prefix, users: users}
}

// verifierOf makes a verifier that logs into the buffer.
func verifierOf(t *testing.T, o Options) (*Verifier, *bytes.Buffer) {
	t.Helper()
	var logged bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&logged, nil))
	v, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return v, &logged
}

func TestVerifier_RemembersForABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource("", map[string]User{"canary-ann": {Name: "ann", Groups: []string{"b", "a", "b", "bad\n"}}})
		v, logged := verifierOf(t, Options{Sources: []Source{src}, Keep: time.Minute})
		check := func(token, name string, want error, calls int) {
			t.Helper()
			u, err := v.Identify(t.Context(), token)
			if u.Name != name || !errors.Is(err, want) || (err == nil) != (want == nil) || src.count() != calls {
				t.Errorf("%s: got %+v, %v after %d calls; want %q, %v, %d", token, u, err, src.count(), name, want, calls)
			}
		}
		check("canary-ann", "ann", nil, 1)
		check("canary-ann", "ann", nil, 1)
		if u, _ := v.Identify(t.Context(), "canary-ann"); !slices.Equal(u.Groups, []string{"a", "b"}) || !u.In("a") ||
			u.In("c") {
			t.Errorf("groups: %v", u.Groups)
		}
		check("canary-x", "", ErrUnknown, 2)
		check("canary-x", "", ErrUnknown, 2)
		src.set("canary-x", User{Name: "xaver"}, nil)
		time.Sleep(keepUnknown)
		check("canary-x", "xaver", nil, 3)

		src.set("canary-ann", User{}, nil) // revoked
		time.Sleep(time.Minute - keepUnknown - time.Nanosecond)
		check("canary-ann", "ann", nil, 3)
		time.Sleep(time.Nanosecond)
		check("canary-ann", "", ErrUnknown, 4)
		check("canary-ann", "", ErrUnknown, 4)

		// Not longer than the token itself.
		src.mu.Lock()
		src.ends = time.Now().Add(2 * time.Second)
		src.mu.Unlock()
		src.set("canary-short", User{Name: "s"}, nil)
		check("canary-short", "s", nil, 5)
		time.Sleep(2 * time.Second)
		check("canary-short", "s", nil, 6)
		// An unavailable source gives no answer, and is called again.
		src.set("canary-y", User{Name: "y"}, errors.New("connection refused"))
		check("canary-y", "", ErrUnavailable, 7)
		src.set("canary-y", User{Name: "y"}, nil)
		check("canary-y", "y", nil, 8)
		if strings.Contains(logged.String(), "canary") {
			t.Errorf("a token is in the log: %s", logged)
		}
		if !strings.Contains(logged.String(), "connection refused") || !strings.Contains(logged.String(), "no such") {
			t.Errorf("nothing is logged for the operator: %s", logged)
		}
	})
}

// A page opens many requests at once with a token that no source has verified yet.
func TestVerifier_AsksOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource("", map[string]User{"t": {Name: "ann"}})
		src.wait = make(chan struct{})
		v, _ := verifierOf(t, Options{Sources: []Source{src}})
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if u, err := v.Identify(t.Context(), "t"); err != nil || u.Name != "ann" {
					t.Errorf("got %v, %v", u, err)
				}
			})
		}
		synctest.Wait()
		close(src.wait)
		all.Wait()
		if src.count() != 1 {
			t.Errorf("the source was called %d times", src.count())
		}
	})
}

// A judge that has stopped answering holds a request for a bounded time, and other judges' users not at all.
func TestVerifier_FrozenJudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		frozen := newFakeSource("f", nil)
		frozen.wait = make(chan struct{})
		other := newFakeSource("", map[string]User{"t": {Name: "ann"}})
		v, _ := verifierOf(t, Options{Sources: []Source{frozen, other}})
		var all sync.WaitGroup
		for i := range 2 * atOnce {
			all.Go(func() {
				begin := time.Now()
				if _, err := v.Identify(t.Context(), fmt.Sprint("f", i)); !errors.Is(err, ErrUnavailable) ||
					time.Since(begin) > verifyTime {
					t.Errorf("got %v after %v", err, time.Since(begin))
				}
			})
		}
		synctest.Wait()
		if frozen.count() != atOnce {
			t.Errorf("%d questions at once, not %d", frozen.count(), atOnce)
		}
		if u, err := v.Identify(t.Context(), "t"); err != nil || u.Name != "ann" {
			t.Errorf("of another judge: %v, %v", u, err)
		}
		all.Wait()
	})
}

// A client that sends invented tokens takes neither the places of known tokens nor those of other addresses.
func TestVerifier_InventedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource("", map[string]User{"known": {Name: "ann"}, "new": {Name: "bob"}})
		v, _ := verifierOf(t, Options{Sources: []Source{src}, Keep: time.Minute})
		if _, err := v.Identify(From(t.Context(), "192.0.2.9"), "known"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute) // its answer has expired
		src.wait = make(chan struct{})
		var all sync.WaitGroup
		var rejected atomic.Int64
		for i := range 1200 {
			all.Go(func() {
				_, err := v.Identify(From(t.Context(), "192.0.2.1"), fmt.Sprint("invented", i))
				if errors.Is(err, ErrTooMany) {
					rejected.Add(1)
				}
			})
		}
		synctest.Wait()
		if n := rejected.Load(); n != 1200-perAddress {
			t.Errorf("%d were rejected, want %d", n, 1200-perAddress)
		}
		begin, before := time.Now(), src.count()
		for _, c := range []struct{ address, token, name string }{
			{"192.0.2.1", "known", "ann"}, {"192.0.2.2", "new", "bob"},
		} {
			all.Go(func() {
				if u, err := v.Identify(From(t.Context(), c.address), c.token); err != nil || u.Name != c.name {
					t.Errorf("%s of %s: got %+v, %v", c.token, c.address, u, err)
				}
			})
		}
		synctest.Wait()
		if src.count() != before+2 || time.Since(begin) > 0 {
			t.Errorf("%d were verified after %v, want 2 at once", src.count()-before, time.Since(begin))
		}
		close(src.wait)
		all.Wait()
		if len(v.byAddress) > 0 {
			t.Errorf("counted after the end: %v", v.byAddress)
		}
	})
}

func TestRation(t *testing.T) {
	var r Ration
	now := time.Unix(1000, 0)
	take := func(n int) (lines, others int) {
		for range n {
			if o, ok := r.Take(now); ok {
				lines++
				others += o
			}
		}
		return lines, others
	}
	if lines, others := take(1000); lines != rationBurst || others != 0 {
		t.Errorf("at once: %d lines, %d others", lines, others)
	}
	now = now.Add(time.Second)
	if lines, others := take(100); lines != rationPerSec || others != 1000-rationBurst {
		t.Errorf("a second later: %d lines, %d others", lines, others)
	}
	if held := r.Held(); held != 100-rationPerSec || r.Held() != 0 {
		t.Errorf("held: %d", held)
	}
}

func TestVerifier_EachTokenHasOneJudge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.yaml")
	writeFile(t, path, "users:\n- name: ann\n  tokens: ['"+Hash("a1")+"']\n")
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, second := newFakeSource("a", map[string]User{"a1": {Name: "wrong"}, "a2": {Name: "bob"}}),
		newFakeSource("", map[string]User{"a3": {Name: "never called"}, "x": {Name: "x", Groups: []string{"ops"}}})
	v, _ := verifierOf(t, Options{File: f, Sources: []Source{first, second}, AdminUsers: []string{"bob"},
		AdminGroups: []string{"ops"}})
	for token, want := range map[string]User{
		"a1": {Name: "ann"}, "a2": {Name: "bob", Admin: true}, "a3": {}, "x": {Name: "x", Admin: true}, "": {},
		strings.Repeat("a", maxToken+1): {},
	} {
		u, err := v.Identify(t.Context(), token)
		if u.Name != want.Name || u.Admin != want.Admin || (err == nil) != (want.Name != "") {
			t.Errorf("%.10s: got %+v, %v, want %+v", token, u, err, want)
		}
	}
	if !slices.Equal(second.tokens, []string{"x"}) || slices.Contains(first.tokens, "a1") {
		t.Errorf("tokens were shown to %v and %v", first.tokens, second.tokens)
	}
}

func TestVerifier_OddNames(t *testing.T) {
	for _, name := range []string{"a\nb", "a\x00", " a", "a ", "a\u202eb", "\xff", strings.Repeat("x", maxName+1)} {
		v, _ := verifierOf(t, Options{Sources: []Source{newFakeSource("", map[string]User{"t": {Name: name}})}})
		if u, err := v.Identify(t.Context(), "t"); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: got %+v, %v", name, u, err)
		}
	}
	for _, name := range []string{"ann", "system:serviceaccount:ns:bot", "Ännchen Müller", "ann@example.org"} {
		if err := CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestNew_NamesTheBadOption(t *testing.T) {
	good := Options{Sources: []Source{newFakeSource("", nil)}, Log: slog.New(slog.DiscardHandler)}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Options){
		"Sources": func(o *Options) { o.Sources = nil },
		"Keep":    func(o *Options) { o.Keep = -1 },
		"Log":     func(o *Options) { o.Log = nil },
	} {
		o := good
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}
