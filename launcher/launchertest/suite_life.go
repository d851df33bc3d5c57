package launchertest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

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
		t.Errorf("the waiting caller got %v", err)
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
			t.Errorf("%s of a kernel that is gone: %v", name, err)
		case reason == "":
		case !errors.As(err, &gone) || gone.Reason != reason || gone.ID != id || gone.Owner != "ann" || gone.At.IsZero():
			t.Errorf("%s: the error lacks the reason or the owner: %#v", name, err)
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

// idOfOther: clients of a kernel that has ended still ask for its id. They must not reach another owner's kernel.
func (s suite) idOfOther(t *testing.T) {
	l := s.launcher(t)
	req := s.request()
	k := s.start(t, l, req)
	until(t, l, k.ID, api.Idle)
	if err := l.Stop(limited(t), k.ID, "test"); err != nil {
		t.Fatal(err)
	}
	other := req
	other.Owner = "bob"
	if k, created, err := l.Start(limited(t), other); !errors.Is(err, launcher.ErrConflict) || created || k.ID != "" {
		t.Errorf("another owner: %+v, created %v, %v", k, created, err)
	}
	isGone(t, l, k.ID, "test")
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
