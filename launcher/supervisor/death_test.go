package supervisor

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/savedstate"
)

// told checks that a cell of an open page says once that the kernel has died, for which reason and when, and that
// variables are gone. began was before the death.
func (c *client) told(cell, reason string, began time.Time) {
	c.t.Helper()
	all := c.collect("a line about the death", func(g got) bool {
		return g.parent == cell && strings.Contains(g.text(), "[ekg] ")
	})
	said := all[len(all)-1].text()
	var when time.Time
	for at := began.Truncate(time.Second); !at.After(time.Now()) && when.IsZero(); at = at.Add(time.Second) {
		if strings.Contains(said, api.ShownTime(at)) {
			when = at
		}
	}
	if !strings.Contains(said, reason) || !strings.Contains(said, "variables are gone") || when.IsZero() {
		c.t.Errorf("after %s the cell says %q, want a time and %q", api.ShownTime(began), said, reason)
	}
}

// wantDeath checks the death that a status and a model have, and what users are shown.
func wantDeath(t *testing.T, got api.Death, shown, reason string, began time.Time) {
	t.Helper()
	if !strings.Contains(got.Reason, reason) || got.At.Before(began.Truncate(time.Microsecond)) ||
		got.At.After(time.Now()) || shown != got.Text() {
		t.Errorf("the death is %+v, and shown is %q; want %q after %v", got, shown, reason, began)
	}
}

// kill kills the kernel and waits until another one is up.
func (r *running) kill() api.Status {
	r.t.Helper()
	pid := r.until("up", func(st api.Status) bool { return st.State == api.Idle }).KernelPID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	return r.until("up again", func(st api.Status) bool { return st.State == api.Idle && st.KernelPID != pid })
}

// TestSupervisor_IdleDeath: a kernel that dies between two cells says so in the last cell of each session, whether its
// page is open or not. The model shows it until the next cell, and keeps it.
func TestSupervisor_IdleDeath(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	open, closed, fresh := r.dial(dialOption{session: "open"}), r.dial(dialOption{session: "closed"}),
		r.dial(dialOption{session: "fresh"})
	first := open.execute("print 1")
	open.result(first)
	last := open.execute("print 2")
	open.result(last)
	theirs := closed.execute("print 3")
	closed.result(theirs)
	r.acknowledged("closed", closed)
	_ = closed.ws.Close()
	began := time.Now()
	st := r.kill()
	wantDeath(t, st.LastDeath, st.Reason, "was killed (SIGKILL)", began)
	if m := r.model(); m.LastDeath != st.LastDeath || m.Reason != st.Reason {
		t.Errorf("the model is %+v", m)
	}
	open.told(last, "The kernel died: the kernel's process was killed (SIGKILL)", began)
	r.dial(dialOption{session: "closed"}).told(theirs, "The kernel died: the kernel's process was killed (SIGKILL)", began)

	t.Run("silent code is no cell", func(t *testing.T) {
		fresh.result(fresh.send(jupyter.Shell, "execute_request", map[string]any{"code": "print 1", "silent": true}))
		if m := r.model(); m.Reason != st.Reason {
			t.Errorf("the model is %+v", m)
		}
	})
	open.result(open.execute("print 4"))
	if m := r.model(); m.Reason != "" || m.LastDeath != st.LastDeath {
		t.Errorf("after the next cell the model is %+v", m)
	}
	t.Run("a restart ends what is shown", func(t *testing.T) {
		if again := r.kill(); again.Reason == "" || again.LastDeath == st.LastDeath {
			t.Errorf("after another death the status is %+v", again)
		}
		if status, body := r.request("POST", "/restart", ""); status != 200 {
			t.Fatalf("restart: %d %s", status, body)
		}
		r.ready()
		if m := r.model(); m.Reason != "" || m.LastDeath.At.IsZero() {
			t.Errorf("the model is %+v", m)
		}
	})
}

// TestSupervisor_Deaths: every way to die is told in the last cells of all sessions.
func TestSupervisor_Deaths(t *testing.T) {
	for name, tc := range map[string]struct {
		limit int    // restarts
		code  string // runs in one session; "": SIGKILL
		want  string
	}{
		"idle, and not started again": {0, "", "SIGKILL"},
		"in a cell":                   {3, "crash", "SIGKILL"},
		"in a cell, for the last time": {0, "exit 7",
			"exit code 7"},
	} {
		t.Run(name, func(t *testing.T) {
			r := startSupervisor(t, func(c *api.Config) { c.RestartLimit = tc.limit }).ready()
			ann, bob := r.dial(dialOption{session: "ann"}), r.dial(dialOption{session: "bob"})
			last := bob.execute("print 1")
			bob.result(last)
			cell := ann.execute("print 1")
			ann.result(cell)
			began := time.Now()
			if tc.code != "" {
				cell = ann.execute(tc.code)
			} else if err := syscall.Kill(r.until("up", func(api.Status) bool { return true }).KernelPID,
				syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			ann.told(cell, "The kernel died: the kernel's process ", began)
			bob.told(last, tc.want, began)
			st := r.until("over", func(st api.Status) bool {
				return st.State == api.Dead || tc.limit > 0 && st.State == api.Idle && !st.LastDeath.At.IsZero()
			})
			if dead := st.State == api.Dead; dead != (tc.limit == 0) {
				t.Errorf("status is %+v", st)
			} else if dead && st.Reason != st.LastDeath.Reason {
				t.Errorf("the reason is %q, of the death %q", st.Reason, st.LastDeath.Reason)
			}
		})
	}
}

// TestSupervisor_NoDeath: a kernel that is stopped, restarted or culled has not died.
func TestSupervisor_NoDeath(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	c.result(c.execute("print 1"))
	if status, body := r.request("POST", "/restart", ""); status != 200 {
		t.Fatalf("restart: %d %s", status, body)
	}
	if st := r.until("up", func(st api.Status) bool { return st.State == api.Idle }); st.LastDeath != (api.Death{}) {
		t.Errorf("status is %+v", st)
	}
	if _, body := r.request("GET", "", ""); strings.Contains(body, "last_death") {
		t.Errorf("the model is %s", body)
	}
}

// TestPod_Death: an idle kernel's death is told although the supervisor has adopted the kernel, or was away.
func TestPod_Death(t *testing.T) {
	idle := func(st api.Status) bool { return st.State == api.Idle }
	begin := func(t *testing.T) (p *pod, cell string, kernel int, began time.Time) {
		p = startPod(t, nil).ready()
		c := p.attach("ann")
		cell = c.execute("result alive")
		c.result(cell)
		eventually(t, "the state is saved", func() bool {
			b, err := os.ReadFile(filepath.Join(p.cfg.SpillDir, savedstate.FileName))
			var state savedstate.State
			return err == nil && json.Unmarshal(b, &state) == nil && len(state.Requests) == 0 &&
				len(state.Sessions) == 1 && bytes.Contains(state.Sessions[0].Cell, []byte(cell))
		})
		return p, cell, p.until("idle", idle).KernelPID, time.Now()
	}
	end := func(t *testing.T, kernel int) {
		if err := syscall.Kill(kernel, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the kernel has ended", func() bool {
			left, found := proctree.Find(kernel)
			return !found || !left.Alive()
		})
	}
	check := func(t *testing.T, p *pod, cell, reason string, kernel int, began time.Time) api.Status {
		t.Helper()
		p.attach("ann").told(cell, reason, began)
		st := p.until("another kernel", func(st api.Status) bool { return idle(st) && st.KernelPID != kernel })
		wantDeath(t, st.LastDeath, st.Reason, reason, began)
		return st
	}
	t.Run("of an adopted kernel", func(t *testing.T) {
		p, cell, kernel, began := begin(t)
		p.supervisor.kill()
		p.startSupervisor()
		p.until("adopted", idle)
		c := p.attach("ann")
		if g, err := c.recv(); err != nil { // it says that output may be lost
			t.Fatal(g, err)
		}
		end(t, kernel)
		st := p.until("another kernel", func(st api.Status) bool { return idle(st) && st.KernelPID != kernel })
		c.collect("the line", func(g got) bool {
			return g.parent == cell && strings.Contains(g.text(), "The kernel died: the kernel's process was killed")
		})
		wantDeath(t, st.LastDeath, st.Reason, "SIGKILL", began)
	})
	t.Run("while the supervisor was away", func(t *testing.T) {
		p, cell, kernel, began := begin(t)
		p.supervisor.kill()
		end(t, kernel)
		p.startSupervisor()
		st := p.until("another kernel", func(st api.Status) bool { return idle(st) && st.KernelPID != kernel })
		c := p.attach("ann")
		c.collect("the line", func(g got) bool {
			return g.parent == cell && strings.Contains(g.text(), "The kernel died: the kernel's process was killed")
		})
		wantDeath(t, st.LastDeath, st.Reason, "SIGKILL", began)
	})
	t.Run("with its container while the supervisor was away", func(t *testing.T) {
		p, cell, kernel, began := begin(t)
		p.supervisor.kill()
		p.child.kill()
		p.startSupervisor()
		p.startChild()
		st := check(t, p, cell, "the kernel's container ended while its supervisor was away", kernel, began)
		eventually(t, "the death is saved", func() bool {
			b, err := os.ReadFile(filepath.Join(p.cfg.SpillDir, savedstate.FileName))
			var state savedstate.State
			return err == nil && json.Unmarshal(b, &state) == nil && state.LastDeath == st.LastDeath
		})
		p.supervisor.kill()
		p.startSupervisor()
		if again := p.until("adopted", idle); again.LastDeath != st.LastDeath || again.Reason != st.Reason {
			t.Errorf("the next supervisor shows %+v", again)
		}
		if got := p.result(p.attach("ann"), "result alive"); got != "alive" {
			t.Errorf("got %q", got)
		}
		p.until("seen", func(again api.Status) bool { return again.Reason == "" && again.LastDeath == st.LastDeath })
	})
	t.Run("with its container", func(t *testing.T) {
		p, cell, kernel, began := begin(t)
		p.child.kill()
		const reason = "the kernel's container was killed because it ran out of memory (limit 512 MiB)"
		if err := p.client().SetWaiting(t.Context(),
			api.Waiting{Class: api.DiedClass, Text: reason, Version: 7}); err != nil {
			t.Fatal(err)
		}
		p.until("restarting", func(st api.Status) bool { return st.State == api.Restarting })
		p.startChild()
		check(t, p, cell, reason, kernel, began)
	})
}
