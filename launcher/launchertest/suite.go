package launchertest

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// patience bounds every wait of the suite. It allows for slow kernels on a busy machine.
const patience = time.Minute

// Run is the suite that every launcher must pass. open opens a launcher. All launchers of one call of Run use the same
// state directory or namespace, like several gateways, or one after a restart. The suite closes them. spec is the
// kernelspec of a kernel that becomes idle. Run leaves no kernel behind if the launcher keeps its contract.
func Run(t *testing.T, open func(t *testing.T) launcher.Launcher, spec kernelspecs.Spec) {
	s := suite{open: open, spec: spec}
	t.Run("start, list, wait and stop", s.life)
	t.Run("start is idempotent", s.idempotent)
	t.Run("start of many at once", s.concurrent)
	t.Run("a kernel that cannot be started", s.failure)
	t.Run("a kernel that ends at once", s.endsAtOnce)
	t.Run("unknown kernels", s.unknown)
	t.Run("wait ends with its context", s.waitContext)
	t.Run("notes", s.notes)
	t.Run("dial", s.dial)
	t.Run("adoption", s.adoption)
	t.Run("two launchers", s.two)
	t.Run("a kernel that is culled", s.culled)
}

type suite struct {
	open func(t *testing.T) launcher.Launcher
	spec kernelspecs.Spec
}

// launcher opens a launcher that is closed at the end of the test.
func (s suite) launcher(t *testing.T) launcher.Launcher {
	t.Helper()
	l := s.open(t)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// start starts a kernel. It is stopped at the latest when the test ends.
func (s suite) start(t *testing.T, l launcher.Launcher, req launcher.Request) launcher.Kernel {
	t.Helper()
	t.Cleanup(func() {
		if err := l.Stop(limited(t), req.ID, "the test is over"); err != nil && !errors.Is(err, launcher.ErrNotFound) {
			t.Errorf("stop %s: %v", req.ID, err)
		}
	})
	k, created, err := l.Start(limited(t), req)
	if err != nil || !created {
		t.Fatalf("start: created %v, %v", created, err)
	}
	return k
}

func (s suite) request() launcher.Request {
	return launcher.Request{ID: newID(), Owner: "ann", Spec: s.spec}
}

// until waits for a state.
func until(t *testing.T, l launcher.Launcher, id string, state api.State) launcher.Kernel {
	t.Helper()
	k, err := l.Wait(limited(t), id, func(k launcher.Kernel) bool { return k.State == state && !k.Stale })
	if err != nil {
		t.Fatalf("waiting for %s: %v; it is %+v", state, err, k)
	}
	return k
}

// listed returns the kernel's entry in the list, nil if it is not listed.
func listed(t *testing.T, l launcher.Launcher, id string) *launcher.Kernel {
	t.Helper()
	all, err := l.Kernels(limited(t))
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	if !slices.IsSortedFunc(all, func(a, b launcher.Kernel) int { return a.Created.Compare(b.Created) }) {
		t.Error("the list is not by creation")
	}
	for i := range all {
		if all[i].ID == id {
			return &all[i]
		}
	}
	return nil
}

func (s suite) life(t *testing.T) {
	l := s.launcher(t)
	req := s.request()
	begin := time.Now()
	k := s.start(t, l, req)
	if k.ID != req.ID || k.Owner != "ann" || k.SpecName != s.spec.Name || k.Reason != "" && k.State != api.Starting {
		t.Errorf("started %+v", k)
	}
	if k.Created.Before(begin.Add(-time.Minute)) || k.LastActivity.IsZero() {
		t.Errorf("created %v, last activity %v", k.Created, k.LastActivity)
	}
	if k.State == api.Dead {
		t.Errorf("state is %s", k.State)
	}
	idle := until(t, l, k.ID, api.Idle)
	if !idle.Created.Equal(k.Created) || idle.LastActivity.Location() != time.UTC {
		t.Errorf("idle: %+v", idle)
	}
	if e := listed(t, l, k.ID); e == nil || e.Owner != "ann" || !e.Created.Equal(k.Created) {
		t.Errorf("listed: %+v", e)
	}
	// A living kernel is not revived.
	if r, err := l.Revive(limited(t), k.ID); err != nil || r.State != api.Idle {
		t.Errorf("revive: %+v, %v", r, err)
	}

	// A caller that waits for something else gets the end.
	waiting := make(chan error, 1)
	go func() {
		_, err := l.Wait(limited(t), k.ID, func(k launcher.Kernel) bool { return k.State == api.Busy })
		waiting <- err
	}()
	const reason = "it was not needed any more"
	if err := l.Stop(limited(t), k.ID, reason); err != nil {
		t.Fatalf("stop: %v", err)
	}
	// A waiter that saw "dead" in between goes on waiting until the kernel is gone.
	if err := <-waiting; !errors.Is(err, launcher.ErrNotFound) {
		t.Errorf("who waited got %v", err)
	}
	isGone(t, l, k.ID, reason)
}

// isGone calls every method that takes a kernel id with the id of a stopped kernel, and checks the errors.
func isGone(t *testing.T, l launcher.Launcher, id, reason string) {
	t.Helper()
	ctx := limited(t)
	_, kernelErr := l.Kernel(ctx, id)
	_, waitErr := l.Wait(ctx, id, func(launcher.Kernel) bool { return true })
	_, reviveErr := l.Revive(ctx, id)
	_, notesErr := l.UpdateNotes(ctx, id, func(n launcher.Notes) (launcher.Notes, error) { return n, nil })
	conn, dialErr := l.Dial(ctx, id)
	if conn != nil {
		_ = conn.Close() // no connection is expected
	}
	for name, err := range map[string]error{"kernel": kernelErr, "wait": waitErr, "revive": reviveErr,
		"notes": notesErr, "dial": dialErr, "stop": l.Stop(ctx, id, "again")} {
		var gone *launcher.GoneError
		switch {
		case !errors.Is(err, launcher.ErrNotFound):
			t.Errorf("%s of one that is gone: %v", name, err)
		case reason == "":
		case !errors.As(err, &gone) || gone.Reason != reason || gone.ID != id || gone.Owner != "ann" || gone.At.IsZero():
			t.Errorf("%s does not tell the reason and whose it was: %#v", name, err)
		}
	}
	if e := listed(t, l, id); e != nil {
		t.Errorf("listed after its end: %+v", e)
	}
}

func (s suite) idempotent(t *testing.T) {
	l := s.launcher(t)
	req := s.request()
	k := s.start(t, l, req)
	again, created, err := l.Start(limited(t), req)
	if err != nil || created || again.ID != k.ID || !again.Created.Equal(k.Created) {
		t.Errorf("again: %+v, created %v, %v", again, created, err)
	}
	other := req
	other.Owner = "bob"
	if k, created, err := l.Start(limited(t), other); !errors.Is(err, launcher.ErrConflict) || created || k.ID != "" {
		t.Errorf("another owner: %+v, created %v, %v", k, created, err)
	}
	other = req
	other.Spec.Name = "other"
	if _, created, err := l.Start(limited(t), other); !errors.Is(err, launcher.ErrConflict) || created {
		t.Errorf("another spec: created %v, %v", created, err)
	}
}

func (s suite) concurrent(t *testing.T) {
	a, b := s.launcher(t), s.launcher(t)
	req := s.request()
	t.Cleanup(func() {
		if err := a.Stop(limited(t), req.ID, "the test is over"); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	var (
		starts sync.WaitGroup
		mu     sync.Mutex
		n      int
	)
	for i := range 6 {
		starts.Go(func() {
			k, created, err := []launcher.Launcher{a, b}[i%2].Start(limited(t), req)
			if err != nil || k.ID != req.ID {
				t.Errorf("start: %+v, %v", k, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if created {
				n++
			}
		})
	}
	starts.Wait()
	if n != 1 {
		t.Errorf("created %d times", n)
	}
	until(t, a, req.ID, api.Idle)
	until(t, b, req.ID, api.Idle)
}

func (s suite) failure(t *testing.T) {
	l := s.launcher(t)
	req := s.request()
	req.Spec.Argv = []string{"/no/such/program", "-f", "{connection_file}"}
	k, created, err := l.Start(limited(t), req)
	var failed *launcher.FailedError
	switch {
	case err == nil && created: // this launcher learns of the kernel later
		dead := until(t, l, req.ID, api.Dead)
		if !strings.Contains(dead.Reason, "/no/such/program") {
			t.Errorf("reason: %s", dead.Reason)
		}
		if err := l.Stop(limited(t), req.ID, "seen"); err != nil {
			t.Fatal(err)
		}
	case created || k.ID != "" || !errors.As(err, &failed) || !strings.Contains(failed.Reason, "/no/such/program"):
		t.Fatalf("start: %+v, created %v, %v", k, created, err)
	}
	isGone(t, l, req.ID, "")
	// The id can be used again.
	req.Spec = s.spec
	s.start(t, l, req)
	until(t, l, req.ID, api.Idle)
}

func (s suite) endsAtOnce(t *testing.T) {
	l := s.launcher(t)
	req := s.request()
	req.Spec.Argv = []string{"sh", "-c", "echo the moon is not full >&2; exit 3"}
	// Start may or may not notice the end. In both cases the owner reads the reason.
	_, _, err := l.Start(limited(t), req)
	var failed *launcher.FailedError
	if errors.As(err, &failed) {
		if !strings.Contains(failed.Reason, "the moon is not full") {
			t.Errorf("start: %v", err)
		}
		isGone(t, l, req.ID, "")
		return
	}
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	k := until(t, l, req.ID, api.Dead)
	if !strings.Contains(k.Reason, "the moon is not full") || !strings.Contains(k.Reason, "3") {
		t.Errorf("reason: %s", k.Reason)
	}
	if e := listed(t, l, req.ID); e == nil || e.State != api.Dead || e.Reason != k.Reason {
		t.Errorf("listed: %+v", e)
	}
	if err := l.Stop(limited(t), req.ID, "seen"); err != nil {
		t.Errorf("stop: %v", err)
	}
	isGone(t, l, req.ID, "seen")
}

func (s suite) unknown(t *testing.T) {
	l := s.launcher(t)
	isGone(t, l, newID(), "")
	for _, id := range []string{"", "x", "../" + newID(), strings.ToUpper(newID())} {
		if _, err := l.Kernel(limited(t), id); !errors.Is(err, launcher.ErrNotFound) {
			t.Errorf("%q: %v", id, err)
		}
		req := s.request()
		req.ID = id
		if _, created, err := l.Start(limited(t), req); err == nil || created {
			t.Errorf("%q was started", id)
		}
	}
}

func (s suite) waitContext(t *testing.T) {
	l := s.launcher(t)
	k := s.start(t, l, s.request())
	until(t, l, k.ID, api.Idle)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	got, err := l.Wait(ctx, k.ID, func(launcher.Kernel) bool { return false })
	if !errors.Is(err, context.DeadlineExceeded) || got.ID != k.ID || got.State != api.Idle {
		t.Errorf("got %+v, %v", got, err)
	}
}

func (s suite) notes(t *testing.T) {
	a, b := s.launcher(t), s.launcher(t)
	k := s.start(t, a, s.request())
	if len(k.Sessions) != 0 {
		t.Errorf("a new kernel has %v", k.Sessions)
	}
	const each = 10
	var all sync.WaitGroup
	for i, l := range []launcher.Launcher{a, b, a, b} {
		all.Go(func() {
			for n := range each {
				added := launcher.Session{ID: fmt.Sprintf("%d-%d", i, n), Path: "ä.ipynb", Name: "n", Type: "notebook"}
				got, err := l.UpdateNotes(limited(t), k.ID, func(n launcher.Notes) (launcher.Notes, error) {
					n.Sessions = append(n.Sessions, added)
					return n, nil
				})
				if err != nil || !slices.Contains(got.Sessions, added) {
					t.Errorf("update: %v, %v", got, err)
				}
			}
		})
	}
	all.Wait()
	for _, l := range []launcher.Launcher{a, b} {
		hasSessions(t, l, k.ID, 4*each) // every change was kept
	}
	refused := errors.New("no")
	_, err := a.UpdateNotes(limited(t), k.ID, func(launcher.Notes) (launcher.Notes, error) {
		return launcher.Notes{}, refused
	})
	if !errors.Is(err, refused) {
		t.Errorf("a refused change: %v", err)
	}
	if e := listed(t, b, k.ID); e == nil || len(e.Sessions) != 4*each {
		t.Errorf("after a refused change: %+v", e)
	}
	grants := []launcher.Grant{{User: "bob", Right: launcher.Read}, {Group: "ä", Right: launcher.Use}}
	got, err := b.UpdateNotes(limited(t), k.ID, func(n launcher.Notes) (launcher.Notes, error) {
		n.Sessions, n.SharedWith = n.Sessions[:1], grants
		return n, nil
	})
	if err != nil || len(got.Sessions) != 1 {
		t.Errorf("removal: %v, %v", got, err)
	}
	hasSessions(t, a, k.ID, 1)
	if e := listed(t, a, k.ID); e == nil || !slices.Equal(e.Sessions, got.Sessions) ||
		!slices.Equal(e.SharedWith, grants) {
		t.Errorf("after a removal: %+v", e)
	}
	got, err = a.UpdateNotes(limited(t), k.ID, func(launcher.Notes) (launcher.Notes, error) {
		return launcher.Notes{}, nil
	})
	if err != nil {
		t.Errorf("all away: %v, %v", got, err)
	}
	hasSessions(t, b, k.ID, 0)
	if e := listed(t, b, k.ID); e == nil || len(e.SharedWith) != 0 {
		t.Errorf("without notes: %+v", e)
	}
}

// hasSessions waits until a launcher knows so many sessions of a kernel. Another launcher's changes may take a moment.
func hasSessions(t *testing.T, l launcher.Launcher, id string, n int) {
	t.Helper()
	if k, err := l.Wait(limited(t), id, func(k launcher.Kernel) bool { return len(k.Sessions) == n }); err != nil {
		t.Errorf("waiting for %d sessions: %v; it has %d", n, err, len(k.Sessions))
	}
}

func (s suite) dial(t *testing.T) {
	l := s.launcher(t)
	k := s.start(t, l, s.request())
	until(t, l, k.ID, api.Idle)
	for id, want := range map[string]int{k.ID: http.StatusOK, newID(): http.StatusMisdirectedRequest} {
		conn, err := l.Dial(limited(t), k.ID)
		if err != nil {
			t.Fatalf("dial: %v", err)
		}
		req, err := http.NewRequestWithContext(limited(t), http.MethodGet, "http://"+id+"/api/kernels/"+id, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true
		if token := l.Token(k.ID); token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		if err := req.Write(conn); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), req)
		if err != nil {
			t.Fatal(err)
		}
		var model struct{ ID string }
		if err := json.NewDecoder(resp.Body).Decode(&model); err != nil {
			t.Error(err)
		}
		if resp.StatusCode != want || (want == http.StatusOK && model.ID != k.ID) {
			t.Errorf("asked for %s of %s: %d, %+v", id, k.ID, resp.StatusCode, model)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

func (s suite) adoption(t *testing.T) {
	first := s.open(t)
	req := s.request()
	k, _, err := first.Start(limited(t), req)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	before := until(t, first, k.ID, api.Idle)
	added := launcher.Session{ID: "s", Path: "p", Name: "n", Type: "notebook"}
	shared := launcher.Grant{User: "bob", Right: launcher.Use}
	if _, err := first.UpdateNotes(limited(t), k.ID, func(launcher.Notes) (launcher.Notes, error) {
		return launcher.Notes{Sessions: []launcher.Session{added}, SharedWith: []launcher.Grant{shared}}, nil
	}); err != nil {
		t.Errorf("notes: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}

	l := s.launcher(t)
	t.Cleanup(func() {
		if err := l.Stop(limited(t), k.ID, "the test is over"); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	if e := listed(t, l, k.ID); e == nil { // at once, with or without a status
		t.Fatal("not adopted")
	}
	after := until(t, l, k.ID, api.Idle)
	if after.Owner != before.Owner || after.SpecName != before.SpecName || !after.Created.Equal(before.Created) {
		t.Errorf("was %+v, is %+v", before, after)
	}
	if !slices.Equal(after.Sessions, []launcher.Session{added}) {
		t.Errorf("sessions: %v", after.Sessions)
	}
	if !slices.Equal(after.SharedWith, []launcher.Grant{shared}) {
		t.Errorf("grants: %v", after.SharedWith)
	}
	if _, created, err := l.Start(limited(t), req); err != nil || created {
		t.Errorf("start of an adopted one: created %v, %v", created, err)
	}
}

func (s suite) two(t *testing.T) {
	a, b := s.launcher(t), s.launcher(t)
	k := s.start(t, a, s.request())
	if got, err := b.Kernel(limited(t), k.ID); err != nil || got.Owner != k.Owner {
		t.Errorf("the other sees %+v, %v", got, err)
	}
	until(t, b, k.ID, api.Idle)
	if listed(t, b, k.ID) == nil {
		t.Error("the other does not list it")
	}
	// A kernel that one launcher stops is gone for a caller that waits at another launcher.
	waiting := make(chan error, 1)
	go func() {
		_, err := a.Wait(limited(t), k.ID, func(k launcher.Kernel) bool { return false })
		waiting <- err
	}()
	if err := b.Stop(limited(t), k.ID, "seen"); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := <-waiting; !errors.Is(err, launcher.ErrNotFound) {
		t.Errorf("who waited at the other got %v", err)
	}
	isGone(t, a, k.ID, "seen")
	isGone(t, b, k.ID, "seen")
}

// culled starts a kernel whose kernelspec allows one second of idleness. The kernel must become dead with the reason.
// It must stay on record after its removal, also in a launcher that is opened later.
func (s suite) culled(t *testing.T) {
	l := s.open(t)
	t.Cleanup(func() { _ = l.Close() })
	req := s.request()
	metadata := map[string]map[string]any{}
	if len(req.Spec.Metadata) > 0 {
		if err := json.Unmarshal(req.Spec.Metadata, &metadata); err != nil {
			t.Fatal(err)
		}
	}
	if metadata["ekg"] == nil {
		metadata["ekg"] = map[string]any{}
	}
	metadata["ekg"]["cull"] = map[string]string{"idleTimeout": "1s"}
	var err error
	if req.Spec.Metadata, err = json.Marshal(metadata); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	k, _, err := l.Start(limited(t), req)
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			_ = l.Stop(limited(t), k.ID, "the test is over") // the test has failed already
		}
	})
	const reason = "it was idle for 1s"
	if dead := until(t, l, k.ID, api.Dead); dead.Reason != reason {
		t.Errorf("it is dead: %q", dead.Reason)
	}
	recorded := func(l launcher.Launcher) bool {
		all, err := l.Culled(limited(t))
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(all, func(c launcher.CulledKernel) bool { return c.ID == k.ID })
		if at < 0 {
			return false
		}
		if c := all[at]; c.Owner != req.Owner || c.SpecName != req.Spec.Name || c.Reason != reason ||
			c.At.Before(begun.Add(-time.Second)) {
			t.Errorf("it is on record as %+v", c)
		}
		// A cluster stores times in whole seconds.
		if c := all[at]; c.Started.Before(begun.Add(-time.Second)) || c.Started.After(c.At) || c.Seconds < 1 ||
			c.Seconds > 2+int64(c.At.Sub(begun).Seconds()) {
			t.Errorf("its usage is on record as %+v", c.Usage)
		}
		return true
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(patience); !recorded(l); { // its supervisor may be about to end
		select {
		case <-tick.C:
		case <-over:
			t.Fatal("it is not on record while it is dead")
		}
	}
	counted := func() {
		t.Helper()
		got, want := l.Measure().Culls, (map[launcher.CullLabels]int64{{SpecName: req.Spec.Name, Limit: "idle"}: 1})
		if !maps.Equal(got, want) {
			t.Errorf("counted is %v, want %v", got, want)
		}
	}
	counted()
	if err := l.Stop(limited(t), k.ID, "it was shut down on request"); err != nil {
		t.Fatal(err)
	}
	stopped = true
	isGone(t, l, k.ID, reason)
	counted()
	if !recorded(l) {
		t.Error("it is not on record any more")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	later := s.launcher(t)
	isGone(t, later, k.ID, reason)
	if !recorded(later) {
		t.Error("a launcher that comes later has no record of it")
	}
	if got := later.Measure().Culls; len(got) > 0 {
		t.Errorf("a launcher that comes later has counted %v", got)
	}
}
