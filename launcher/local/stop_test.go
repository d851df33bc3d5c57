package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// isGone checks that a kernel was stopped for the reason, and that none of its processes is left.
func isGone(t *testing.T, l *Launcher, n int, reason string) {
	t.Helper()
	var g *launcher.GoneError
	_, err := l.Kernel(t.Context(), id(n))
	if !errors.As(err, &g) || g.Reason != reason || !errors.Is(err, launcher.ErrNotFound) {
		t.Errorf("afterwards: %v", err)
	}
	if left := carriers(n); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	if err := l.Stop(t.Context(), id(n), "again"); !errors.Is(err, launcher.ErrNotFound) {
		t.Errorf("again: %v", err)
	}
}

// Several callers at two launchers stop one kernel at the same time.
func TestStop_Concurrent(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	p.start(l, 1, "fine")
	other := p.launcher()
	wait(t, other, 1, "idle", isIdle)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			if err := []*Launcher{l, other}[i%2].Stop(context.Background(), id(1), "enough"); err != nil &&
				!errors.Is(err, launcher.ErrNotFound) {
				t.Errorf("stop: %v", err)
			}
		})
	}
	all.Wait()
	isGone(t, l, 1, "enough")
	isGone(t, other, 1, "enough")
	// A launcher that is opened later knows it, too, and the id may be used again.
	later := p.launcher()
	isGone(t, later, 1, "enough")
	p.start(later, 1, "fine")
}

func TestStop(t *testing.T) {
	p := newPlace(t)
	p.change = func(o *Options, tm *timing) { o.StopGrace, tm.stopMargin = 100*time.Millisecond, time.Second }
	l := p.launcher()
	t.Run("the supervisor does not answer", func(t *testing.T) {
		k := p.start(l, 2, "deaf")
		wait(t, l, 2, "idle", isIdle)
		pid := processesOf(t, p, 2).Supervisor
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := l.Stop(ctx, k.ID, "enough"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a caller that does not wait gets %v", err)
		}
		if err := l.Stop(t.Context(), k.ID, "enough"); err != nil {
			t.Fatal(err)
		}
		isGone(t, l, 2, "enough")
		if err := syscall.Kill(pid, 0); err == nil {
			eventually(t, "supervisor is gone", func() bool { return syscall.Kill(pid, 0) != nil })
		}
	})
	for n, noted := range map[int]*processIDs{5: nil, 6: {Parent: os.Getpid(), Supervisor: os.Getpid()}} {
		t.Run("the supervisor does not answer, and the lock names it", func(t *testing.T) {
			k := p.start(l, n, "deaf")
			wait(t, l, n, "idle", isIdle)
			pid := processesOf(t, p, n).Supervisor
			// As if the gateway were killed before it has noted the processes, or before it has noted the present ones.
			err := os.Remove(l.layout.file(k.ID, processFile))
			if noted != nil {
				err = files.WriteJSON(l.layout.file(k.ID, processFile), noted)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Stop(t.Context(), k.ID, "enough"); err != nil {
				t.Fatal(err)
			}
			isGone(t, l, n, "enough")
			eventually(t, "supervisor is gone", func() bool { return syscall.Kill(pid, 0) != nil })
		})
	}
	t.Run("the supervisor does not answer, and the lock names an earlier one", func(t *testing.T) {
		k := p.start(l, 7, "deaf")
		wait(t, l, 7, "idle", isIdle)
		pid := processesOf(t, p, 7).Supervisor
		// As if an earlier version had started the present supervisor: it writes nothing into the lock.
		if err := os.WriteFile(l.layout.file(k.ID, lockFile), fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.Stop(t.Context(), k.ID, "enough"); err != nil {
			t.Fatal(err)
		}
		isGone(t, l, 7, "enough")
		eventually(t, "supervisor is gone", func() bool { return syscall.Kill(pid, 0) != nil })
	})
	t.Run("the supervisor is stopped directly", func(t *testing.T) {
		p.start(l, 4, "fine")
		l.mu.Lock()
		k := l.kernels.byID[id(4)]
		l.mu.Unlock()
		if err := k.client().Stop(t.Context(), "its client said so"); err != nil {
			t.Fatal(err)
		}
		_, err := l.Wait(t.Context(), id(4), func(launcher.Kernel) bool { return false })
		if !errors.Is(err, launcher.ErrNotFound) {
			t.Errorf("a caller that waits gets %v", err)
		}
		isGone(t, l, 4, "its client said so")
	})
	t.Run("a dead kernel is removed", func(t *testing.T) {
		p.start(l, 3, "fine")
		kill(t, processesOf(t, p, 3).Supervisor)
		reason := wait(t, l, 3, "dead", isDead).Reason
		if err := l.Stop(t.Context(), id(3), "enough"); err != nil {
			t.Fatal(err)
		}
		isGone(t, l, 3, reason)
	})
}

// TestProcesses_Ended: of two supervisors that have ended, the one in the newer file was the last.
func TestProcesses_Ended(t *testing.T) {
	dir := t.TempDir()
	l := &processes{layout: layout{state: dir, runtime: dir}, log: slog.New(slog.DiscardHandler)}
	const locked, noted = 4_194_303, 4_194_302 // no process has them, unless the machine has millions
	if err := os.MkdirAll(l.layout.kernel(id(1)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.layout.file(id(1), lockFile), fmt.Appendln(nil, locked), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := l.readProcesses(id(1)).holder(); got != locked {
		t.Errorf("with the lock alone it is %d", got)
	}
	if err := files.WriteJSON(l.layout.file(id(1), processFile), processIDs{Supervisor: noted}); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for age, want := range map[time.Duration]int{time.Hour: noted, -time.Hour: locked} {
		if err := os.Chtimes(l.layout.file(id(1), lockFile), now, now.Add(-age)); err != nil {
			t.Fatal(err)
		}
		if got := l.readProcesses(id(1)).holder(); got != want {
			t.Errorf("with a lock that is %s older it is %d, not %d", age, got, want)
		}
	}
}
