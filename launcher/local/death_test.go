package local

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestLauncher_IdleDeath: a gateway logs that an idle kernel has died, also one that starts only then. Both know it,
// and show it while no client has run a cell. It makes no difference whether the kernel's supervisor has adopted it, or
// dies with it.
func TestLauncher_IdleDeath(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	now := p.startReal(l, 1)
	logged := func() int { return strings.Count(p.log.String(), `msg="kernel died" component=local kernel=`+id(1)) }
	last, deaths := launcher.Kernel{}, 0
	for _, kills := range []struct{ before, with bool }{{false, false}, {true, false}, {false, true}} {
		if kills.before {
			was := now.Supervisor
			kill(t, was)
			eventually(t, "another supervisor has adopted the kernel", func() bool {
				now = processesOf(t, p, 1)
				return now.Supervisor != was
			})
			wait(t, l, 1, "idle", isIdle)
		}
		began := time.Now()
		if kills.with {
			kill(t, now.Supervisor)
		}
		kill(t, now.Kernel)
		k := wait(t, l, 1, "idle again", func(k launcher.Kernel) bool { return isIdle(k) && k.LastDeath.At.After(began) })
		if !strings.Contains(k.LastDeath.Reason, "SIGKILL") || k.Reason != k.LastDeath.Text() {
			t.Errorf("%+v: it is described as %+v", kills, k)
		}
		if deaths++; logged() != deaths {
			t.Errorf("%+v: %d deaths were logged, want %d", kills, logged(), deaths)
		}
		was := now.Kernel
		eventually(t, "the other kernel's process is noted", func() bool {
			now = processesOf(t, p, 1)
			return now.Kernel != was
		})
		eventually(t, "it is saved that the other kernel is up", func() bool {
			var saved struct {
				LastDeath api.Death `json:"last_death"`
				Use       struct {
					CellBegan time.Time `json:"cell_began"`
				} `json:"use"`
			}
			err := files.ReadJSON(filepath.Join(l.layout.kernel(id(1)), "requests.json"), &saved)
			return err == nil && saved.LastDeath == k.LastDeath && !saved.Use.CellBegan.IsZero()
		})
		last = k
	}
	other := p.launcher()
	k := wait(t, other, 1, "idle again", func(k launcher.Kernel) bool { return isIdle(k) && !k.LastDeath.At.IsZero() })
	if k.LastDeath != last.LastDeath || k.Reason != last.Reason {
		t.Errorf("another gateway describes it as %+v", k)
	}
	if logged() != deaths+1 {
		t.Errorf("%d deaths were logged, with another gateway", logged())
	}
}
