package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestSupervisorKilled(t *testing.T) {
	check := func(t *testing.T, p *place, l *Launcher, pid int) {
		t.Helper()
		k := wait(t, l, 1, "dead", isDead)
		want := fmt.Sprintf("its supervisor process (pid %d) ended unexpectedly; its log and variables are lost", pid)
		if k.Reason != want || k.Stale || k.Connections != 0 {
			t.Errorf("got %+v, want %s", k, want)
		}
		if left := carriers(1); len(left) > 0 {
			t.Errorf("processes are left: %v", left)
		}
		var gone *launcher.GoneError
		if _, err := l.Dial(t.Context(), id(1)); !errors.As(err, &gone) || gone.Reason != want {
			t.Errorf("dial gives %v", err)
		}
	}
	t.Run("the supervisor is killed while a gateway runs", func(t *testing.T) {
		p := newPlace(t)
		l := p.launcher()
		p.start(l, 1, "fine")
		ps := processesOf(t, p, 1)
		eventually(t, "the kernel has a child", func() bool { return len(carriers(1)) == 2 })
		begin := time.Now()
		kill(t, ps.Supervisor)
		check(t, p, l, ps.Supervisor)
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("noticed after %v", took)
		}
		// It can be restarted, and is the same kernel.
		if _, err := l.Revive(t.Context(), id(1)); err != nil {
			t.Fatal(err)
		}
		k := wait(t, l, 1, "idle", isIdle)
		if k.Owner != "ann" || k.Reason != "" {
			t.Errorf("revived: %+v", k)
		}
		if again := processesOf(t, p, 1); again.Supervisor == ps.Supervisor {
			t.Error("no new process")
		}
		if k, err := l.Revive(t.Context(), id(1)); err != nil || k.State != api.Idle {
			t.Errorf("a living one is revived: %+v, %v", k, err)
		}
	})
	t.Run("the supervisor is killed while no gateway runs", func(t *testing.T) {
		p := newPlace(t)
		l := p.open()
		p.start(l, 1, "fine")
		ps := processesOf(t, p, 1)
		_ = l.Close()
		kill(t, ps.Supervisor)
		check(t, p, p.launcher(), ps.Supervisor)
	})
}

// TestReconcile_Remains: processes of a kernel are killed when its supervisor has ended, also if the supervisor has
// recorded the kernel's end.
func TestReconcile_Remains(t *testing.T) {
	p := newPlace(t)
	l := p.open()
	p.start(l, 1, "fine")
	ps := processesOf(t, p, 1)
	_ = l.Close()
	end := api.Ending{KernelID: id(1), Reason: "it was idle", At: time.Now().UTC()}
	if err := files.WriteJSON(filepath.Join(p.state, "kernels", id(1), endFile), end); err != nil {
		t.Fatal(err)
	}
	kill(t, ps.Supervisor)
	eventually(t, "the supervisor has ended", func() bool { return ended(ps.Supervisor) })
	if len(carriers(1)) == 0 {
		t.Fatal("the kernel has ended with its supervisor")
	}
	l = p.launcher()
	if k := wait(t, l, 1, "dead", isDead); k.Reason != end.Reason {
		t.Errorf("the reason is %q", k.Reason)
	}
	if left := carriers(1); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

// TestParent_Failing: a kernel whose supervisors fail shows that as its reason, and lives.
func TestParent_Failing(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	ps := p.startReal(l, 1)
	config := filepath.Join(p.state, "kernels", id(1), configFile)
	if err := os.Rename(config, config+".away"); err != nil {
		t.Fatal(err)
	}
	kill(t, ps.Supervisor)
	eventually(t, "the reason is shown", func() bool {
		k, err := l.Kernel(t.Context(), id(1))
		return err == nil && k.Stale && strings.Contains(k.Reason, "its supervisor ended unexpectedly")
	})
	if err := os.Rename(config+".away", config); err != nil {
		t.Fatal(err)
	}
	if k := wait(t, l, 1, "idle", isIdle); k.Reason != "" {
		t.Errorf("the kernel is %+v", k)
	}
	if now := processesOf(t, p, 1); now.Kernel != ps.Kernel || now.Parent != ps.Parent {
		t.Errorf("the processes were %+v and are %+v", ps, now)
	}
}

// realSpec is a kernelspec of the fake kernel below a real supervisor.
func realSpec() kernelspecs.Spec {
	return kernelspecs.Spec{Name: "real", Argv: []string{os.Args[0], "kernel", "-f", "{connection_file}"},
		InterruptMode: "signal"}
}

// startReal starts kernel n with a real supervisor, and returns its processes when it is idle.
func (p *place) startReal(l *Launcher, n int) processIDs {
	p.t.Helper()
	if _, _, err := l.Start(p.t.Context(), launcher.Request{ID: id(n), Owner: "ann", Spec: realSpec()}); err != nil {
		p.t.Fatal(err)
	}
	wait(p.t, l, n, "idle", isIdle)
	return processesOf(p.t, p, n)
}

// TestParent_Killed: a supervisor that is killed is started again, and adopts its kernel. A parent that is killed takes
// both with it.
func TestParent_Killed(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	before := p.startReal(l, 1)
	for range 2 {
		now := processesOf(t, p, 1)
		kill(t, now.Supervisor)
		eventually(t, "another supervisor has adopted the kernel", func() bool {
			last := now
			now = processesOf(t, p, 1)
			return now.Supervisor != last.Supervisor
		})
		if now.Kernel != before.Kernel || now.Parent != before.Parent || now.Supervisor == now.Parent {
			t.Errorf("the processes were %+v and are %+v", before, now)
		}
		if k := wait(t, l, 1, "idle", isIdle); k.Reason != "" {
			t.Errorf("the kernel is %+v", k)
		}
	}
	last := processesOf(t, p, 1)
	kill(t, before.Parent)
	k := wait(t, l, 1, "dead", isDead)
	want := fmt.Sprintf("the parent of its supervisor (pid %d) ended unexpectedly; its log and variables are lost",
		before.Parent)
	if k.Reason != want {
		t.Errorf("the reason is %q, not %q", k.Reason, want)
	}
	eventually(t, "supervisor and kernel are gone", func() bool {
		return ended(last.Supervisor) && len(carriers(1)) == 0
	})
	if _, err := l.Revive(t.Context(), id(1)); err != nil {
		t.Fatal(err)
	}
	wait(t, l, 1, "idle", isIdle)
}

// ended reports whether a process has ended. A zombie has ended: not every first process of a container reaps orphans.
func ended(pid int) bool {
	p, ok := proctree.Find(pid)
	return !ok || !p.Alive()
}

// TestParent_StopsAll: the end of a kernel is the end of its supervisor and of their parent.
func TestParent_StopsAll(t *testing.T) {
	const none = syscall.Signal(0)
	for name, supervisor := range map[string]syscall.Signal{"by a request": none,
		"while its supervisor hangs": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.change = func(_ *Options, tm *timing) { tm.stopMargin = 100 * time.Millisecond }
			l := p.launcher()
			if _, _, err := l.Start(t.Context(), launcher.Request{ID: id(1), Owner: "ann", Spec: realSpec()}); err != nil {
				t.Fatal(err)
			}
			wait(t, l, 1, "idle", isIdle)
			ps := processesOf(t, p, 1)
			if err := syscall.Kill(ps.Supervisor, supervisor); err != nil {
				t.Fatal(err)
			}
			if err := l.Stop(t.Context(), id(1), "enough"); err != nil {
				t.Fatal(err)
			}
			eventually(t, "all three are gone", func() bool {
				return ended(ps.Supervisor) && ended(ps.Parent) && len(carriers(1)) == 0
			})
		})
	}
}

// A gateway was killed when it had started a supervisor. That takes the kernel's lock after another gateway has found
// the kernel dead: the folder stays, for a supervisor without one would hold its GPUs on.
func TestRemove_SupervisorStarts(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	p.start(l, 1, "fine")
	kill(t, processesOf(t, p, 1).Supervisor)
	wait(t, l, 1, "dead", isDead)
	l.mu.Lock()
	k := l.kernels.byID[id(1)]
	l.mu.Unlock()
	if err := k.takeTurn(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer k.giveTurn()
	lock, err := flock.Try(l.layout.file(k.id, lockFile))
	if err != nil {
		t.Fatal(err)
	}
	end := api.Ending{Reason: "the test ends it", Stopped: true}
	if err := l.removeWithEnding(k, end); !errors.Is(err, launcher.ErrUnavailable) || !errors.Is(err, errStarts) {
		t.Errorf("with a supervisor: %v", err)
	}
	if err := l.removeEnded(k); !errors.Is(err, errStarts) {
		t.Errorf("without an ending, with a supervisor: %v", err)
	}
	if _, err := os.Stat(l.layout.endingFile(k.id)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an ending of a kernel that lives is stored: %v", err)
	}
	flock.Unlock(lock)
	if err := l.removeWithEnding(k, end); err != nil {
		t.Errorf("without one: %v", err)
	}
	if _, err := os.Stat(k.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
}
