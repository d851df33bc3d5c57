package supervisor

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/savedstate"
)

func TestPod_Crash(t *testing.T) {
	p := startPod(t, nil).ready()
	c := p.attach("ann")
	pid := p.result(c, "pid")
	id := c.execute("complain last words\nexit 3")
	all := c.result(id)
	if got := output(all, id); !strings.Contains(got, "exit code 3: last words") {
		t.Errorf("the cell says %q", got)
	}
	p.until("idle again", func(st api.Status) bool { return st.State == api.Idle && st.Epoch == 2 })
	if again := p.result(c, "pid"); again == pid || again == "" {
		t.Errorf("pid is %s, was %s", again, pid)
	}
	if !strings.Contains(p.child.out.String(), "last words\n") {
		t.Errorf("the container's log lacks the kernel's output: %s", p.child.out)
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
	if g, ok := find(c.result(id), "error", id); !ok || jupyter.StringField(g.Content, "ename") != "KeyboardInterrupt" {
		t.Errorf("got %s", g.Content)
	}
	if status, body := p.ask("POST", "/restart", ""); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	p.until("second life", func(st api.Status) bool { return st.State == api.Idle && st.Epoch == 2 })
}

// TestPod_ContainerKilled kills everything in the kernel's container at once. Log, websocket and reason survive, and
// the kernel is started in the next container.
func TestPod_ContainerKilled(t *testing.T) {
	for name, tc := range map[string]struct {
		reported string
		want     string
	}{
		"the cluster gives a reason": {"the kernel's container was killed because it ran out of memory (limit 512 MiB)",
			"The kernel died: the kernel's container was killed because it ran out of memory (limit 512 MiB)"},
		"the cluster gives no reason": {"", "The kernel died: the kernel's container ended without a known reason"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startPod(t, nil).ready()
			c := p.attach("ann")
			id := c.execute("echo before\nsleep 1h")
			c.collect("output", func(g got) bool { return strings.HasPrefix(g.text(), "before") })
			p.child.kill()
			if tc.reported != "" {
				if err := p.client().SetWaiting(t.Context(),
					api.Waiting{Class: api.DiedClass, Text: tc.reported, Version: 7}); err != nil {
					t.Fatal(err)
				}
			}
			all := c.result(id)
			if got := output(all, id); !strings.Contains(got, tc.want) || strings.Count(got, "[ekg]") != 1 {
				t.Errorf("the cell says %q", got)
			}
			st := p.until("waiting", func(st api.Status) bool { return st.State == api.Restarting })
			if st.KernelPID != 0 {
				t.Errorf("status is %+v", st)
			}
			if err := p.client().SetWaiting(t.Context(),
				api.Waiting{Class: api.WaitingClass, Text: "back-off", Version: 8}); err != nil {
				t.Fatal(err)
			}
			if got := p.until("reason",
				func(st api.Status) bool { return st.Reason == "back-off" }); got.State != api.Restarting {
				t.Errorf("status is %+v", got)
			}
			if err := p.client().SetWaiting(t.Context(),
				api.Waiting{Class: api.WaitingClass, Text: "old", Version: 6}); err != nil {
				t.Fatal(err)
			}
			p.startChild()
			st = p.until("idle", func(st api.Status) bool { return st.State == api.Idle || st.Reason == "old" })
			if st.Reason != st.LastDeath.Text() || !strings.HasPrefix("The kernel died: "+st.LastDeath.Reason, tc.want) {
				t.Errorf("status is %+v", st)
			}
			if got := p.result(c, "result alive"); got != "alive" {
				t.Errorf("got %q", got)
			}
			p.until("the next cell", func(again api.Status) bool {
				return again.Reason == "" && again.LastDeath == st.LastDeath
			})
		})
	}
}

// TestPod_SupervisorKilled restarts only the supervisor's container, in the middle of a cell.
func TestPod_SupervisorKilled(t *testing.T) {
	p := startPod(t, nil).ready()
	c := p.attach("ann")
	p.result(c, "set x 42")
	pid := p.result(c, "pid")
	id := c.execute("echo before\nsleep 2s\necho after\nresult done")
	c.collect("output", func(g got) bool { return strings.HasPrefix(g.text(), "before") })
	eventually(t, "the request is on disk", func() bool {
		b, err := os.ReadFile(filepath.Join(p.cfg.SpillDir, savedstate.FileName))
		return err == nil && bytes.Contains(b, []byte(id))
	})
	p.supervisor.kill()
	p.startSupervisor()
	if st := p.until("up", func(st api.Status) bool {
		return st.State == api.Idle ||
			st.State == api.Busy
	}); st.State != api.Busy {
		t.Errorf("the kernel's cell runs, and status is %+v", st)
	}
	c = p.attach("ann")
	all := c.result(id)
	text := output(all, id)
	if !strings.Contains(text, "[ekg] The program that keeps this kernel's output was started again.") ||
		strings.Count(text, "[ekg]") != 1 {
		t.Errorf("the cell says %q", text)
	}
	if !strings.Contains(text, "after\n") {
		t.Errorf("what came later is missing: %q", text)
	}
	if g, ok := find(all, "execute_reply", id); !ok || jupyter.StringField(g.Content, "status") != "ok" {
		t.Errorf("reply is %s", g.Content)
	}
	if got := p.result(c, "get x"); got != "42" {
		t.Errorf("x is %q", got)
	}
	if got := p.result(c, "pid"); got != pid {
		t.Errorf("pid is %s, was %s", got, pid)
	}
	st := p.until("idle", func(st api.Status) bool { return st.State == api.Idle })
	if st.Epoch < 2 || st.Counts.Failed != 1 {
		t.Errorf("no new epoch, or the failure is not counted: %+v", st)
	}
}

// TestPod_IdleSupervisorKilled: an idle kernel does not become active by the adoption of its supervisor's successor.
func TestPod_IdleSupervisorKilled(t *testing.T) {
	p := startPod(t, nil).ready()
	p.result(p.attach("ann"), "set x 42")
	idle := func(st api.Status) bool { return st.State == api.Idle }
	before := p.until("idle", idle).LastActivity
	eventually(t, "the last activity is on disk", func() bool {
		b, err := os.ReadFile(filepath.Join(p.cfg.SpillDir, savedstate.FileName))
		var state savedstate.State
		return err == nil && json.Unmarshal(b, &state) == nil && state.Use.LastActivity.Equal(before)
	})
	p.supervisor.kill()
	p.startSupervisor()
	if got := p.until("idle again", idle).LastActivity; !got.Equal(before) {
		t.Errorf("last activity is %v, was %v", got, before)
	}
	if got := p.result(p.attach("ann"), "get x"); got != "42" {
		t.Errorf("x is %q", got)
	}
	p.tells("adopted ready")
}

// tells checks the kinds of the timeline's events.
func (p *pod) tells(want string) {
	p.t.Helper()
	_, body := p.ask("GET", "/timeline", "")
	var line api.Timeline
	if err := json.Unmarshal([]byte(body), &line); err != nil {
		p.t.Fatal(err)
	}
	var kinds []string
	for _, e := range line.Events {
		kinds = append(kinds, string(e.Kind))
	}
	if got := strings.Join(kinds, " "); got != want {
		p.t.Errorf("the timeline has %q, want %q", got, want)
	}
}

// saved waits until the saved state has a request. That it runs is only saved with another change.
func (p *pod) saved(id string) {
	p.t.Helper()
	eventually(p.t, "the state is saved", func() bool {
		b, err := os.ReadFile(filepath.Join(p.cfg.SpillDir, savedstate.FileName))
		var state savedstate.State
		return err == nil && json.Unmarshal(b, &state) == nil && slices.ContainsFunc(state.Requests,
			func(r *savedstate.Request) bool { return r.ID == id })
	})
}

// complained waits until the kernel has written a line to its own stderr.
func (p *pod) complained(line string) {
	p.t.Helper()
	eventually(p.t, "the kernel complains "+line, func() bool { return strings.Contains(p.child.out.String(), line+"\n") })
}

// killAndInterrupt kills the supervisor, and then interrupts the running cell. It returns the kernel's process id.
func (p *pod) killAndInterrupt() int {
	p.t.Helper()
	kernel := p.until("up", func(st api.Status) bool { return st.KernelPID != 0 }).KernelPID
	p.supervisor.kill()
	if err := syscall.Kill(kernel, syscall.SIGINT); err != nil {
		p.t.Fatal(err)
	}
	return kernel
}

// TestPod_RestartBeforeChild: a restart that is requested before the child has returned starts another kernel. The
// previous supervisor's kernel is not adopted.
func TestPod_RestartBeforeChild(t *testing.T) {
	for name, saves := range map[string]bool{"with a saved state": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			p := startPod(t, nil).ready()
			c := p.attach("ann")
			p.result(c, "set x 42")
			pid := p.result(c, "pid")
			id := c.execute("sleep 1h")
			c.running(id)
			p.saved(id)
			signal := func(sig syscall.Signal) {
				if err := p.child.cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
			}
			signal(syscall.SIGSTOP) // it does not return before the restart
			p.supervisor.kill()
			if !saves {
				if err := os.Remove(filepath.Join(p.cfg.SpillDir, savedstate.FileName)); err != nil {
					t.Fatal(err)
				}
			}
			p.startSupervisor()
			c = p.attach("ann")
			if status, body := p.ask("POST", "/restart", ""); status != 200 {
				t.Fatalf("%d %s", status, body)
			}
			signal(syscall.SIGCONT)
			p.ready()
			if saves {
				g, _ := find(c.result(id), "execute_reply", id)
				if got := jupyter.StringField(g.Content, "ename"); got != "KernelRestarted" {
					t.Errorf("the reply is %s", g.Content)
				}
			}
			if got := p.result(c, "pid"); got == pid || got == "" {
				t.Errorf("pid is %q, was %s", got, pid)
			}
			if got := p.result(c, "get x"); got == "42" {
				t.Error("the kernel has its variables")
			}
			p.tells("restarted ready")
		})
	}
}

// TestPod_EndedMeanwhile ends cells, and the kernel, while no supervisor runs.
func TestPod_EndedMeanwhile(t *testing.T) {
	t.Run("the cell ended", func(t *testing.T) {
		p := startPod(t, nil).ready()
		c := p.attach("ann")
		id := c.execute("then complain replied\ncomplain begun\nsleep 1h")
		p.complained("begun")
		p.saved(id)
		p.killAndInterrupt()
		p.complained("replied") // the kernel has sent its reply to no supervisor
		p.startSupervisor()
		p.ready()
		c = p.attach("ann")
		all := c.result(id)
		if g, ok := find(all, "execute_reply", id); !ok || jupyter.StringField(g.Content, "ename") != "ConnectionLost" {
			t.Errorf("reply is %s in %s", g.Content, summary(all))
		}
		if got := p.result(c, "result alive"); got != "alive" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("both containers ended", func(t *testing.T) {
		p := startPod(t, nil).ready()
		c := p.attach("ann")
		id := c.execute("sleep 1h")
		c.running(id)
		p.saved(id)
		p.supervisor.kill()
		p.child.kill()
		p.startSupervisor()
		p.startChild()
		c = p.attach("ann")
		all := c.result(id)
		if got := output(all, id); strings.Count(got, "[ekg]") != 1 ||
			!strings.Contains(got, "The kernel has died meanwhile") {
			t.Errorf("the cell says %q", got)
		}
		p.ready()
		if got := p.result(c, "result alive"); got != "alive" {
			t.Errorf("got %q", got)
		}
		p.tells("died restarted ready")
	})
	t.Run("the kernel ended", func(t *testing.T) {
		p := startPod(t, nil).ready()
		c := p.attach("ann")
		id := c.execute("then exit 4\ncomplain last words\nsleep 1h")
		p.complained("last words")
		p.saved(id)
		kernel := p.killAndInterrupt()
		eventually(t, "the kernel has ended", func() bool {
			left, found := proctree.Find(kernel)
			return !found || !left.Alive()
		})
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

// TestPod_Terminated sends SIGTERM to both containers at once.
func TestPod_Terminated(t *testing.T) {
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
	if e := p.ending(); !e.Stopped || e.KernelID != p.cfg.KernelID {
		t.Errorf("ending is %+v", e)
	}
}

// TestPod_Ended checks that a kernel that has ended for good stays ended when either container is restarted.
func TestPod_Ended(t *testing.T) {
	p := startPod(t, nil).ready()
	p.child.kill()
	if err := p.client().SetWaiting(t.Context(), api.Waiting{Class: api.DiedClass, Text: "lost", Version: 1}); err != nil {
		t.Fatal(err)
	}
	p.until("restarting", func(st api.Status) bool { return st.State == api.Restarting })
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

// TestPod_ChildAlone checks that a child without a supervisor ends before the pod's grace is over.
func TestPod_ChildAlone(t *testing.T) {
	const grace = child.GiveUpBefore + time.Second
	p := startPod(t, func(c *api.Config) { c.TerminationGrace = grace }).ready()
	kernel := p.until("idle", func(st api.Status) bool { return st.State == api.Idle }).KernelPID
	p.supervisor.kill()
	begun := time.Now()
	if err := p.child.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.exitCode(p.child); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(begun); took < 900*time.Millisecond || took > grace {
		t.Errorf("it took %s", took)
	}
	if left, found := proctree.Find(kernel); found && left.Alive() {
		t.Error("the kernel is alive")
	}
}
