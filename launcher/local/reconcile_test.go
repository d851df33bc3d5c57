package local

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
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
