package supervisor

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/connectionfile"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/zeromq"
)

// breakConnections cuts the supervisor's connections to its living kernel. It returns the identity that they used.
func (r *running) breakConnections() string {
	r.s.mu.Lock()
	b := r.s.kernel.bridge
	r.s.mu.Unlock()
	identity := string(r.s.identity) // stays until the kernel has been silent for redialProof
	_ = b.sockets[jupyter.Shell].Close()
	return identity
}

// reconnected waits until the kernel has answered on other connections than b.
func (r *running) reconnected(b *bridge) {
	r.t.Helper()
	deadline := time.Now().Add(testLimit)
	for {
		r.s.mu.Lock()
		done := r.s.kernel.bridge != b && r.s.kernel.bridge != nil && r.s.kernel.bridge.ready
		r.s.mu.Unlock()
		if done {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatal("the kernel is not reached again")
		}
		<-time.After(5 * time.Millisecond)
	}
}

func (r *running) currentBridge() *bridge {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return r.s.kernel.bridge
}

// TestRedial_SameIdentity: a running cell survives a broken connection, with the kernel's own answer.
func TestRedial_SameIdentity(t *testing.T) {
	t.Parallel() // it waits more than it works
	for name, flags := range map[string][]string{"with handover": nil, "without": {"--no-handover"}} {
		t.Run(name, func(t *testing.T) {
			r := startSupervisor(t, func(c *api.Config) { c.Argv = fakeKernelArgv(flags...) }).ready()
			c := r.dial(dialOption{session: "ann"})
			cell := c.execute("sleep 2s\nresult 42")
			r.until("busy", func(st api.Status) bool { return st.State == api.Busy })
			before := r.currentBridge()
			identity := r.breakConnections()
			r.reconnected(before)
			next := c.execute("print 1")
			all := c.result(cell, next)
			if reply, _ := find(all, "execute_reply", cell); jupyter.StringField(reply.Content, "status") != "ok" {
				t.Errorf("the cell was answered %s", reply.Content)
			}
			if _, ok := find(all, "execute_result", cell); !ok {
				t.Error("the cell's result is lost")
			}
			if text := output(all, cell); !strings.Contains(text, "broke for a moment") {
				t.Errorf("the cell shows %q", text)
			}
			if string(r.s.identity) != identity {
				t.Error("the identity has changed")
			}
		})
	}
}

// TestRedial_Dies: the connections of a kernel that ends may break long before its process has ended. Its cell says
// only that it died.
func TestRedial_Dies(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	cell := c.execute("sleep 1h")
	c.running(cell)
	st, _ := r.s.Status()
	if err := syscall.Kill(st.KernelPID, syscall.SIGSTOP); err != nil { // it answers on no new connection
		t.Fatal(err)
	}
	began := time.Now()
	r.breakConnections()
	eventually(t, "the supervisor connects again", func() bool { return r.currentBridge() == nil })
	if err := syscall.Kill(st.KernelPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.told(cell, "The kernel died: the kernel's process was killed (SIGKILL)", began)
}

// TestRedial_LostAnswer: an answer that was sent while no connection existed must not leave its request hanging, nor
// the kernel busy.
func TestRedial_LostAnswer(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	cell := c.execute("sleep 50ms")
	r.until("busy", func(st api.Status) bool { return st.State == api.Busy })
	b := r.currentBridge()
	for _, ch := range channels {
		_ = b.sockets[ch].Close()
	}
	all := c.result(cell)
	if reply, _ := find(all, "execute_reply", cell); jupyter.StringField(reply.Content, "ename") != "ConnectionLost" {
		t.Errorf("the cell was answered %s", reply.Content)
	}
	r.ready()
	c.result(c.execute("print 1"))
}

// TestRedial_NewIdentity: a kernel that takes the old connection for open ignores the identity. A new identity works:
// requests in flight are answered as lost, and requests that were not sent are run.
func TestRedial_NewIdentity(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := startSupervisorTuned(t, func(c *api.Config) { c.Argv = fakeKernelArgv("--no-handover") },
		func(s *Supervisor) { s.redialProof = 500 * time.Millisecond }).ready()
	c := r.dial(dialOption{session: "ann"})
	cell := c.execute("sleep 3s")
	r.until("busy", func(st api.Status) bool { return st.State == api.Busy })
	b := r.currentBridge()
	identity := r.breakConnections()
	_ = b.sockets[jupyter.Control].Close()
	// Another peer takes the identity before the supervisor reconnects. The kernel sees the same if it has not noticed the
	// end of a connection.
	for _, ch := range []jupyter.Channel{jupyter.Shell, jupyter.Control} {
		squatter, err := zeromq.Dial(t.Context(), r.endpoints()[ch], zeromq.Dealer, []byte(identity), zeromq.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = squatter.Close() }()
	}
	deadline := time.Now().Add(testLimit)
	for r.currentBridge() == b && time.Now().Before(deadline) {
		<-time.After(5 * time.Millisecond)
	}
	next := c.execute("print 1") // held at the gate
	all := c.result(cell, next)
	if reply, _ := find(all, "execute_reply", cell); jupyter.StringField(reply.Content, "ename") != "ConnectionLost" {
		t.Errorf("the cell was answered %s", reply.Content)
	}
	if text := output(all, cell); !strings.Contains(text, "in flight are lost") {
		t.Errorf("the cell shows %q", text)
	}
	if reply, _ := find(all, "execute_reply", next); jupyter.StringField(reply.Content, "status") != "ok" {
		t.Errorf("what had not been sent was answered %s", reply.Content)
	}
}

// endpoints are the addresses in the connection file.
func (r *running) endpoints() connectionfile.Endpoints {
	ep := connectionfile.Endpoints{}
	for i, ch := range channels {
		ep[ch] = "ipc://" + r.cfg.RunDir + "/k-" + string(rune('1'+i))
	}
	return ep
}

// TestRedial_KernelGone: a living kernel that no longer listens is not given up. Its reason says that it does not
// answer.
func TestRedial_KernelGone(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := startSupervisorTuned(t, nil, func(s *Supervisor) {
		s.slowStart, s.redialProof = 300*time.Millisecond, 100*time.Millisecond
	}).ready()
	for i := range channels {
		if err := syscall.Unlink(r.cfg.RunDir + "/k-" + string(rune('1'+i))); err != nil {
			t.Fatal(err)
		}
	}
	c := r.dial(dialOption{session: "ann"})
	cell := c.execute("sleep 60s")
	r.until("busy", func(st api.Status) bool { return st.State == api.Busy })
	r.breakConnections()
	r.until("explained", func(st api.Status) bool { return strings.Contains(st.Reason, "connection to the kernel broke") })
	reply, _ := find(c.result(cell), "execute_reply", cell)
	if jupyter.StringField(reply.Content, "ename") != "ConnectionLost" {
		t.Errorf("the cell was answered %s", reply.Content)
	}
	if status, body := r.request("POST", "/restart", ""); status != 200 {
		t.Fatalf("restart: %d %s", status, body)
	}
	c.result(c.execute("print 1"))
	if m := r.model(); m.Reason != "" {
		t.Errorf("after the restart the reason is still %q", m.Reason)
	}
}

// TestBridge_FullKernel: a kernel with a busy shell reads no more than its queue holds. That must neither break the
// connection nor lose the waiting messages.
func TestBridge_FullKernel(t *testing.T) {
	if bridgeLimits.Write < 24*time.Hour {
		t.Errorf("a connection is given up after %v without the kernel reading", bridgeLimits.Write)
	}
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann", v1: true})
	cell := c.execute("sleep 60s")
	c.running(cell)
	pad := strings.Repeat("x", 1000)
	last := ""
	for range 3000 {
		last = c.send(jupyter.Shell, "execute_request", map[string]any{"code": "", "silent": true, "pad": pad})
	}
	if status, body := r.request("POST", "/interrupt", ""); status != 204 {
		t.Fatalf("interrupt: %d %s", status, body)
	}
	all := c.result(cell, last)
	if reply, _ := find(all, "execute_reply", cell); jupyter.StringField(reply.Content, "ename") != "KeyboardInterrupt" {
		t.Errorf("the cell was answered %s", reply.Content)
	}
	if reply, _ := find(all, "execute_reply", last); jupyter.StringField(reply.Content, "status") != "ok" {
		t.Errorf("the last request was answered %s", reply.Content)
	}
}

// TestHeartbeat: while a kernel's process is stopped, its reason says that it does not respond. Nothing else happens.
func TestHeartbeat(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := startSupervisorTuned(t, nil, func(s *Supervisor) { s.beat = 100 * time.Millisecond }).ready()
	st, _ := r.s.Status()
	b := r.currentBridge()
	for beats := uint64(0); beats == 0; <-time.After(time.Millisecond) {
		r.s.mu.Lock()
		beats = b.beats
		r.s.mu.Unlock()
	}
	if err := syscall.Kill(st.KernelPID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	silent := r.until("silent", func(st api.Status) bool { return st.Reason == silentReason })
	if err := syscall.Kill(st.KernelPID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	back := r.until("back", func(st api.Status) bool { return st.Reason == "" })
	for _, now := range []api.Status{silent, back} {
		if now.State != api.Idle || now.Epoch != st.Epoch || now.KernelPID != st.KernelPID {
			t.Errorf("before %+v, now %+v", st, now)
		}
	}
	c := r.dial(dialOption{session: "ann"})
	c.result(c.execute("print 1"))
}

// TestHeartbeat_OneThread: a kernel that answers no heartbeat in a cell is not reported as stopped. One that does is
// reported, in a cell too.
func TestHeartbeat_OneThread(t *testing.T) {
	for name, one := range map[string]bool{"one thread": true, "a thread for heartbeats": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits more than it works
			r := startSupervisorTuned(t, func(c *api.Config) {
				if one {
					c.Argv = append(c.Argv, "--one-thread")
				}
			}, func(s *Supervisor) { s.beat = 50 * time.Millisecond }).ready()
			c := r.dial(dialOption{session: "ann"})
			cell := c.execute("sleep 1h")
			c.running(cell)
			b := r.currentBridge()
			beats := func() (n uint64, silent, known bool) {
				r.s.mu.Lock()
				defer r.s.mu.Unlock()
				return b.beats, r.s.kernel.pulse.missed, r.s.kernel.pulse.inCells
			}
			if !one {
				eventually(t, "heartbeats in the cell", func() bool { _, _, known := beats(); return known })
				st, _ := r.s.Status()
				if err := syscall.Kill(st.KernelPID, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				r.until("silent", func(st api.Status) bool { return st.Reason == silentReason })
				if err := syscall.Kill(st.KernelPID, syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			} else {
				before, _, _ := beats()
				<-time.After(10 * r.s.beat) // a missing answer would be noticed after two
				if n, silent, known := beats(); silent || known || n > before+1 || r.model().Reason != "" {
					t.Errorf("%d answers in the cell, silent %v, known %v, reason %q", n-before, silent, known, r.model().Reason)
				}
			}
			if status, body := r.request("POST", "/interrupt", ""); status != 204 {
				t.Fatalf("interrupt: %d %s", status, body)
			}
			c.result(cell)
			n, _, _ := beats()
			eventually(t, "it answers again", func() bool { now, silent, _ := beats(); return now > n+1 && !silent })
		})
	}
}

// TestHeartbeat_Broken: a kernel without a heartbeat works and is not reported as stopped.
func TestHeartbeat_Broken(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := startSupervisorTuned(t, nil, func(s *Supervisor) { s.beat = 20 * time.Millisecond })
	deadline := time.Now().Add(testLimit)
	for syscall.Unlink(r.cfg.RunDir+"/k-5") != nil { // as soon as it is bound
		if time.Now().After(deadline) {
			t.Fatal("the kernel binds no heartbeat")
		}
		<-time.After(time.Millisecond)
	}
	r.ready()
	c := r.dial(dialOption{session: "ann"})
	c.result(c.execute("sleep 200ms"))
	if m := r.model(); m.Reason != "" {
		t.Errorf("its reason is %q", m.Reason)
	}
}
