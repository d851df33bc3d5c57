package local

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestStart(t *testing.T) {
	p := newPlace(t)
	p.change = func(_ *Options, tm *timing) { tm.ready = 2 * time.Second }
	l := p.launcher()
	for i, c := range []struct{ mode, want string }{
		{"refuse", "its supervisor could not start: the moon is not full"},
		{"leave", "ended before it answered"},
		{"silent", "its supervisor did not answer within 2s"},
		{"program", `the kernel's program "/x" does not exist`},
	} {
		t.Run("the supervisor's mode is "+c.mode, func(t *testing.T) {
			_, created, err := l.Start(t.Context(), launcher.Request{ID: id(i), Spec: fakeSpec(c.mode)})
			var failed *launcher.FailedError
			if created || !errors.As(err, &failed) || !strings.Contains(failed.Reason, c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			for _, dir := range []string{"kernels", "ended"} {
				if left, err := os.ReadDir(filepath.Join(p.state, dir)); err != nil || len(left) > 0 {
					t.Errorf("%s has %v %v", dir, left, err)
				}
			}
			if _, err := l.Kernel(t.Context(), id(i)); err != launcher.ErrNotFound {
				t.Errorf("afterwards: %v", err)
			}
			eventually(t, "no process is left", func() bool { return l.processes.children.Count() == 0 })
		})
	}
	t.Run("an impossible variable", func(t *testing.T) {
		_, _, err := l.Start(t.Context(),
			launcher.Request{ID: id(9), Spec: fakeSpec("fine"), Env: map[string]string{"KERNEL_A": "\x00"}})
		var failed *launcher.FailedError
		if !errors.As(err, &failed) {
			t.Errorf("got %v", err)
		}
	})
}

// A start whose caller or launcher leaves ends, although its supervisor is silent.
func TestStart_Abandoned(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	t.Run("its caller leaves", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		started := make(chan error, 1)
		go func() {
			_, _, err := l.Start(ctx, launcher.Request{ID: id(10), Spec: fakeSpec("silent")})
			started <- err
		}()
		eventually(t, "its supervisor is silent", func() bool { return exists(l.layout.file(id(10), silentFile)) })
		cancel()
		if err := <-started; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if left, err := os.ReadDir(filepath.Join(p.state, "kernels")); err != nil || len(left) > 0 {
			t.Errorf("left: %v %v", left, err)
		}
	})
	t.Run("the launcher closes", func(t *testing.T) {
		other := p.open()
		started := make(chan error, 1)
		go func() {
			_, _, err := other.Start(t.Context(), launcher.Request{ID: id(11), Spec: fakeSpec("silent")})
			started <- err
		}()
		eventually(t, "its supervisor is silent", func() bool { return exists(l.layout.file(id(11), silentFile)) })
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		if err := <-started; !errors.Is(err, launcher.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	})
}

func TestStart_Concurrent(t *testing.T) {
	p := newPlace(t)
	launchers := []*Launcher{p.launcher(), p.launcher()}
	var all sync.WaitGroup
	created := make(chan bool, 8)
	for i := range cap(created) {
		all.Go(func() {
			k, c, err := launchers[i%2].Start(t.Context(), launcher.Request{ID: id(1), Spec: fakeSpec("fine")})
			if err != nil || k.ID != id(1) {
				t.Errorf("start: %v", err)
			}
			created <- c
		})
	}
	all.Wait()
	close(created)
	n := 0
	for c := range created {
		if c {
			n++
		}
	}
	if n != 1 {
		t.Errorf("created %d times", n)
	}
	wait(t, launchers[1], 1, "idle", isIdle)
	_, _, err := launchers[1].Start(t.Context(), launcher.Request{ID: id(1), Owner: "bob", Spec: fakeSpec("fine")})
	if !errors.Is(err, launcher.ErrConflict) {
		t.Errorf("another owner gets %v", err)
	}
}

// TestStart_IDOfOther: while the end of a kernel is remembered, only its owner may start one with its id. Another
// gateway knows that, too.
func TestStart_IDOfOther(t *testing.T) {
	p := newPlace(t)
	a, b := p.launcher(), p.launcher()
	req := launcher.Request{ID: id(1), Owner: "ann", Spec: fakeSpec("fine")}
	if _, _, err := a.Start(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if err := a.Stop(t.Context(), id(1), "test"); err != nil {
		t.Fatal(err)
	}
	other := req
	other.Owner = "bob"
	for name, l := range map[string]*Launcher{"the same gateway": a, "another": b} {
		if _, _, err := l.Start(t.Context(), other); !errors.Is(err, launcher.ErrConflict) {
			t.Errorf("%s: another owner gets %v", name, err)
		}
	}
	if _, created, err := a.Start(t.Context(), req); err != nil || !created {
		t.Errorf("its owner: %v, %v", created, err)
	}
}

// TestStart_Watched: a second gateway reads a kernel whose supervisor does not have its lock yet. It must neither take
// the kernel for dead nor prevent the supervisor from locking.
func TestStart_Watched(t *testing.T) {
	p := newPlace(t)
	p.change = func(_ *Options, tm *timing) { tm.firstStatus = 5 * time.Millisecond }
	a, b := p.launcher(), p.launcher()
	started := make(chan error, 1)
	go func() {
		_, _, err := a.Start(context.Background(), launcher.Request{ID: id(1), Owner: "ann", Spec: fakeSpec("slow")})
		started <- err
	}()
	pipe := a.layout.file(id(1), slowPipe)
	for heldUp := 0; heldUp < 20; {
		k, err := b.Kernel(t.Context(), id(1))
		if k.State == api.Dead || (err != nil && !errors.Is(err, launcher.ErrNotFound)) {
			t.Errorf("a kernel that is being started: %+v, %v", k, err)
		}
		if _, err := os.Stat(pipe); err == nil {
			heldUp++
		}
		select {
		case err := <-started:
			t.Fatalf("the start was not held up: %v", err)
		case <-time.After(2 * time.Millisecond):
		}
	}
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if err := <-started; err != nil {
		t.Error(err)
	}
	wait(t, b, 1, "idle", isIdle)
}

// TestStart_TCP: the log says once for each kernelspec that other users can read the output of its kernels.
func TestStart_TCP(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	for n, spec := range []string{"one", "one", "two", "private"} {
		s := fakeSpec("fine")
		s.Name = spec
		if spec == "private" {
			s.Metadata = json.RawMessage(`{"ekg": {"transport": "ipc"}}`)
		}
		if _, _, err := l.Start(t.Context(), launcher.Request{ID: id(n), Owner: "ann", Spec: s}); err != nil {
			t.Fatal(err)
		}
	}
	log := p.log.String()
	for spec, want := range map[string]int{"one": 1, "two": 1, "private": 0} {
		got := 0
		for line := range strings.Lines(log) {
			if strings.Contains(line, "every user of this machine can read") && strings.Contains(line, "spec="+spec+"\n") {
				got++
			}
		}
		if got != want {
			t.Errorf("it warns of %s %d times, want %d", spec, got, want)
		}
	}
}
