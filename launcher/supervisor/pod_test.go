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

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

func TestPod_Crash(t *testing.T) {
	p := startPod(t, nil).ready()
	c := p.attach("ann")
	pid := p.result(c, "pid")
	p.result(c, "complain last words")
	id := c.execute("exit 3")
	all := c.result(id)
	if got := output(all, id); !strings.Contains(got, "exit code 3: last words") {
		t.Errorf("the cell says %q", got)
	}
	p.until("idle again", func(st Status) bool { return st.State == stateIdle && st.Epoch == 2 })
	if again := p.result(c, "pid"); again == pid || again == "" {
		t.Errorf("pid is %s, was %s", again, pid)
	}
	if !strings.Contains(p.child.out.String(), "last words\n") {
		t.Errorf("the container's log has not what the kernel wrote: %s", p.child.out)
	}
	select {
	case <-p.child.done:
		t.Error("the child has ended")
	default:
	}
}

func TestPod_Interrupt(t *testing.T) {
	p := startPod(t, nil).ready()
	c := p.attach("ann")
	id := c.execute("sleep 1h")
	c.running(id)
	if status, body := p.ask("POST", "/interrupt", ""); status != 204 {
		t.Fatalf("%d %s", status, body)
	}
	if g, ok := find(c.result(id), "error", id); !ok || wire.StringField(g.Content, "ename") != "KeyboardInterrupt" {
		t.Errorf("got %s", g.Content)
	}
	if status, body := p.ask("POST", "/restart", ""); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	p.until("second life", func(st Status) bool { return st.State == stateIdle && st.Epoch == 2 })
}

// TestPod_containerKilled: everything in the kernel's container dies at once. Log, websocket and reason survive, and the
// kernel is started in the container that comes next.
func TestPod_containerKilled(t *testing.T) {
	for name, tc := range map[string]struct {
		told string
		want string
	}{
		"the cluster says why": {"the kernel's container was killed because it ran out of memory (limit 512 MiB)",
			"The kernel died: the kernel's container was killed because it ran out of memory (limit 512 MiB)"},
		"nobody says why": {"", "The kernel died: the kernel's container ended, and nobody has said why"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startPod(t, nil).ready()
			c := p.attach("ann")
			id := c.execute("echo before\nsleep 1h")
			c.collect("output", func(g got) bool { return strings.HasPrefix(g.text(), "before") })
			p.child.kill()
			if tc.told != "" {
				if err := p.client().SetWaiting(t.Context(), Waiting{Class: DiedClass, Text: tc.told, Version: 7}); err != nil {
					t.Fatal(err)
				}
			}
			all := c.result(id)
			if got := output(all, id); !strings.Contains(got, tc.want) || strings.Count(got, "[ekg]") != 1 {
				t.Errorf("the cell says %q", got)
			}
			st := p.until("waiting", func(st Status) bool { return st.State == stateRestarting })
			if st.KernelPID != 0 {
				t.Errorf("status is %+v", st)
			}
			if err := p.client().SetWaiting(t.Context(), Waiting{Class: WaitingClass, Text: "back-off", Version: 8}); err != nil {
				t.Fatal(err)
			}
			if got := p.until("reason", func(st Status) bool { return st.Reason == "back-off" }); got.State != stateRestarting {
				t.Errorf("status is %+v", got)
			}
			if err := p.client().SetWaiting(t.Context(), Waiting{Class: WaitingClass, Text: "old", Version: 6}); err != nil {
				t.Fatal(err)
			}
			p.startChild()
			st = p.until("idle", func(st Status) bool { return st.State == stateIdle || st.Reason == "old" })
			if st.Reason != "" {
				t.Errorf("status is %+v", st)
			}
			if got := p.result(c, "result alive"); got != "alive" {
				t.Errorf("got %q", got)
			}
		})
	}
}

// TestPod_supervisorKilled: the supervisor's container alone is started again in the middle of a cell.
func TestPod_supervisorKilled(t *testing.T) {
	p := startPod(t, nil).ready()
	c := p.attach("ann")
	p.result(c, "set x 42")
	pid := p.result(c, "pid")
	id := c.execute("echo before\nsleep 2s\necho after\nresult done")
	c.collect("output", func(g got) bool { return strings.HasPrefix(g.text(), "before") })
	eventually(t, "the request is on disk", func() bool {
		b, err := os.ReadFile(filepath.Join(p.cfg.SpillDir, estateFile))
		return err == nil && bytes.Contains(b, []byte(id))
	})
	p.supervisor.kill()
	p.startSupervisor()
	if st := p.until("up", func(st Status) bool { return st.State == stateIdle || st.State == stateBusy }); st.State != stateBusy {
		t.Errorf("the kernel's cell runs, and status is %+v", st)
	}
	c = p.attach("ann")
	all := c.result(id)
	text := output(all, id)
	if !strings.Contains(text, "[ekg] The program that keeps this kernel's output was started again.") || strings.Count(text, "[ekg]") != 1 {
		t.Errorf("the cell says %q", text)
	}
	if !strings.Contains(text, "after\n") {
		t.Errorf("what came later is missing: %q", text)
	}
	if g, ok := find(all, "execute_reply", id); !ok || wire.StringField(g.Content, "status") != "ok" {
		t.Errorf("reply is %s", g.Content)
	}
	if got := p.result(c, "get x"); got != "42" {
		t.Errorf("x is %q", got)
	}
	if got := p.result(c, "pid"); got != pid {
		t.Errorf("pid is %s, was %s", got, pid)
	}
	st := p.until("idle", func(st Status) bool { return st.State == stateIdle })
	if st.Epoch < 2 {
		t.Errorf("no new epoch: %+v", st)
	}
}

// TestPod_endedMeanwhile: cells end, and the kernel too, while no supervisor is there.
func TestPod_endedMeanwhile(t *testing.T) {
	t.Run("a cell", func(t *testing.T) {
		p := startPod(t, nil).ready()
		c := p.attach("ann")
		id := c.execute("sleep 300ms")
		c.running(id)
		<-time.After(2 * estatePause)
		p.supervisor.kill()
		<-time.After(500 * time.Millisecond) // the cell's
		p.startSupervisor()
		p.ready()
		c = p.attach("ann")
		all := c.result(id)
		if g, ok := find(all, "execute_reply", id); !ok || wire.StringField(g.Content, "ename") != "ConnectionLost" {
			t.Errorf("reply is %s in %s", g.Content, summary(all))
		}
		if got := p.result(c, "result alive"); got != "alive" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("both containers", func(t *testing.T) {
		p := startPod(t, nil).ready()
		c := p.attach("ann")
		id := c.execute("sleep 1h")
		c.running(id)
		<-time.After(2 * estatePause)
		p.supervisor.kill()
		p.child.kill()
		p.startSupervisor()
		p.startChild()
		c = p.attach("ann")
		all := c.result(id)
		if got := output(all, id); strings.Count(got, "[ekg]") != 1 || !strings.Contains(got, "The kernel has died meanwhile") {
			t.Errorf("the cell says %q", got)
		}
		p.ready()
		if got := p.result(c, "result alive"); got != "alive" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("the kernel", func(t *testing.T) {
		p := startPod(t, nil).ready()
		c := p.attach("ann")
		p.result(c, "complain last words")
		id := c.execute("sleep 300ms\nexit 4")
		c.running(id)
		<-time.After(2 * estatePause)
		p.supervisor.kill()
		<-time.After(500 * time.Millisecond)
		p.startSupervisor()
		c = p.attach("ann")
		if got := output(c.result(id), id); !strings.Contains(got, "exit code 4: last words") {
			t.Errorf("the cell says %q", got)
		}
		p.ready()
		if got := p.result(c, "result alive"); got != "alive" {
			t.Errorf("got %q", got)
		}
	})
}

// TestPod_terminated: SIGTERM reaches both containers at once.
func TestPod_terminated(t *testing.T) {
	p := startPod(t, nil).ready()
	c := p.attach("ann")
	id := c.execute("sleep 1h")
	c.running(id)
	for _, k := range []*podProcess{p.child, p.supervisor} {
		if err := k.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	all := c.result(id)
	if got := output(all, id); !strings.Contains(got, "its supervisor was told to end by a signal") {
		t.Errorf("the cell says %q", got)
	}
	if a, b := p.exitCode(p.supervisor), p.exitCode(p.child); a != 0 || b != 0 {
		t.Errorf("exit codes %d and %d", a, b)
	}
	if e := p.ending(); !e.Stopped || e.KernelID != testKernelID {
		t.Errorf("ending is %+v", e)
	}
}

// TestPod_ended: what has ended for good stays ended, whichever container is started again.
func TestPod_ended(t *testing.T) {
	p := startPod(t, nil).ready()
	p.child.kill()
	p.until("restarting", func(st Status) bool { return st.State == stateRestarting })
	if err := p.client().Stop(t.Context(), "because"); err != nil {
		t.Fatal(err)
	}
	if code := p.exitCode(p.supervisor); code != 0 {
		t.Errorf("exit code %d", code)
	}
	p.startChild()
	if code := p.exitCode(p.child); code != 0 {
		t.Errorf("the child's exit code is %d", code)
	}
	want := p.ending()
	if want.Reason != "because" {
		t.Errorf("ending is %+v", want)
	}
	if err := os.Remove(p.cfg.TerminationFile); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if code := p.exitCode(p.start(os.Args[0], nil, podVariable+"="+string(b))); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := p.ending(); got != want {
		t.Errorf("ending is %+v, want %+v", got, want)
	}
}

// TestPod_childAlone: without a supervisor the child ends before the pod's grace is over.
func TestPod_childAlone(t *testing.T) {
	p := startPod(t, func(c *Config) { c.TerminationGrace = childLast + time.Second }).ready()
	kernel := p.until("idle", func(st Status) bool { return st.State == stateIdle }).KernelPID
	p.supervisor.kill()
	begun := time.Now()
	if err := p.child.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.exitCode(p.child); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(begun); took < 900*time.Millisecond || took > childLast {
		t.Errorf("it took %s", took)
	}
	if alive(kernel) {
		t.Error("the kernel lives")
	}
}
