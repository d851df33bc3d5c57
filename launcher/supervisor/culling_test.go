package supervisor

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// TestSupervisor_culled: a kernel that idles ends on time, says why to whoever looks, and starts again under its id.
func TestSupervisor_culled(t *testing.T) {
	r := startSupervisor(t, func(c *Config) {
		c.Cull = Cull{IdleTimeout: 1500 * time.Millisecond, Warning: 5 * time.Minute, KeepLimit: time.Hour}
	}).ready()
	c := r.dial(dialOption{session: "ann", v1: true})
	id := c.execute("sleep 2s")
	c.result(id)
	ended := time.Now()
	if at := r.model().CullAt; at == "" {
		t.Error("the model does not say when it will be culled")
	}
	all := c.collect("dead", func(g got) bool {
		return g.msgType == "status" && wire.StringField(g.Content, "execution_state") == stateDead
	})
	if took := time.Since(ended); took < 1400*time.Millisecond || took > 10*time.Second {
		t.Errorf("it was culled after %v", took)
	}
	var shown []string
	for _, g := range all {
		if strings.Contains(g.msgType, "display_data") {
			shown = append(shown, displayed(g).Data["text/plain"])
			if g.parent != id {
				t.Errorf("%s is shown at %s", g.Content, g.parent)
			}
		}
	}
	if len(shown) != 2 || !strings.Contains(shown[0], "will be ended at") || !strings.Contains(shown[1], "was ended at") {
		t.Errorf("shown is %q", shown)
	}
	const reason = "it was idle for 2s"
	if m := r.model(); m.ExecutionState != stateDead || m.Reason != reason || m.CullAt != "" {
		t.Errorf("the model is %+v", m)
	}
	var e Ending
	b, err := os.ReadFile(r.cfg.EndFile)
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err != nil || !e.Culled || e.Stopped || e.Reason != reason || e.CulledFor != LimitIdle {
		t.Errorf("on record is %s, %v", b, err)
	}
	if lived := e.At.Sub(e.Started); e.Started.IsZero() || lived < 2*time.Second || e.Seconds != int64(lived.Round(time.Second)/time.Second) {
		t.Errorf("it lived from %v for %d s and ended at %v", e.Started, e.Seconds, e.At)
	}
	died := e.At
	if status, body := r.request("PATCH", "", `{"keep_until": null}`); status != 409 {
		t.Errorf("a dead kernel is kept: %d %s", status, body)
	}
	if status, body := r.request("POST", "/restart", ""); status != 200 {
		t.Fatalf("restart: %d %s", status, body)
	}
	again := c.execute("result 7")
	if g, ok := find(c.result(again), "execute_result", again); !ok || !strings.Contains(string(g.Content), "7") {
		t.Error("the kernel that was started again does not work")
	}
	if _, err := os.Stat(r.cfg.EndFile); !os.IsNotExist(err) {
		t.Errorf("there is still a record of its end: %v", err)
	}
	t.Run("removed, it stays on record as culled", func(t *testing.T) {
		r.until("dead again", func(st Status) bool { return st.State == stateDead })
		if status, body := r.request("DELETE", "", ""); status != 204 {
			t.Fatalf("%d %s", status, body)
		}
		<-r.done
		var e Ending
		if b, err := os.ReadFile(r.cfg.EndFile); err != nil || json.Unmarshal(b, &e) != nil || !e.Culled || !e.Stopped || e.Reason != reason {
			t.Errorf("%s, %v", b, err)
		}
		if e.Started.Before(died) {
			t.Errorf("started again after %v it is on record as started at %v", died, e.Started)
		}
	})
}

// TestSupervisor_cullsWhileBusy: a request that takes too long ends with the reason.
func TestSupervisor_cullsWhileBusy(t *testing.T) {
	r := startSupervisor(t, func(c *Config) { c.Cull = Cull{BusyLimit: time.Second} }).ready()
	c := r.dial(dialOption{session: "ann", v1: true})
	id := c.execute("sleep 1h")
	all := c.result(id)
	if reply, ok := find(all, "execute_reply", id); !ok || wire.StringField(reply.Content, "evalue") != "it was busy with one request for 1s" {
		t.Errorf("the reply is %s", reply.Content)
	}
	r.until("dead", func(st Status) bool {
		return st.State == stateDead && st.Reason == "it was busy with one request for 1s"
	})
}

func TestSupervisor_keep(t *testing.T) {
	r := startSupervisor(t, func(c *Config) { c.Cull = Cull{IdleTimeout: time.Hour, KeepLimit: 10 * time.Hour} }).ready()
	for body, want := range map[string]string{
		``: "the body is not", `{}`: "the body is not", `{"keep_until": "x"}`: "RFC 3339", `{"keep_until": 3}`: "RFC 3339", `{"keep": null}`: "the body is not",
		`{"keep_until": "2020-01-02T03:04:05Z"}`: "in the past",
	} {
		if status, text := r.request("PATCH", "", body); status != 400 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	until := time.Now().Add(5 * time.Hour).UTC().Truncate(time.Second)
	if status, text := r.request("PATCH", "", fmt.Sprintf(`{"keep_until": %q}`, until.Format(time.RFC3339))); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if m := r.model(); m.KeepUntil != until.Format(TimeFormat) || m.CullAt != m.KeepUntil {
		t.Errorf("the model is %+v", m)
	}
	r.until("kept", func(st Status) bool { return st.KeepUntil.Equal(until) && st.CullAt.Equal(until) })
	if status, text := r.request("PATCH", "", `{"keep_until": null}`); status != 200 || strings.Contains(text, "keep_until") {
		t.Errorf("%d %s", status, text)
	}
}

// TestPod_use: a supervisor that is started again goes on with the clock, and with what the owner wants.
func TestPod_use(t *testing.T) {
	p := startPod(t, func(c *Config) {
		c.Cull = Cull{IdleTimeout: time.Hour, KeepLimit: 10 * time.Hour, MaxAge: 20 * time.Hour}
	}).ready()
	c := p.attach("ann")
	c.result(c.execute("result 1"))
	due := p.until("idle", func(st Status) bool { return st.State == stateIdle && !st.CullAt.IsZero() }).CullAt
	kept := time.Now().Add(5 * time.Hour).UTC().Truncate(time.Second)
	written := func(what string, cond func(heirUse) bool) {
		t.Helper()
		for deadline := time.Now().Add(testLimit); ; <-time.After(5 * time.Millisecond) {
			var left bequest
			if b, err := os.ReadFile(p.cfg.SpillDir + "/" + estateFile); err == nil && json.Unmarshal(b, &left) == nil && cond(left.Use) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("never written: %s", what)
			}
		}
	}
	written("the clock", func(u heirUse) bool { return u.IdleSince.Add(time.Hour).Equal(due) })
	p.supervisor.kill()
	p.startSupervisor()
	if now := p.until("adopted", func(st Status) bool { return st.State == stateIdle }).CullAt; !now.Equal(due) {
		t.Errorf("it was to be culled at %v, and with another supervisor at %v", due, now)
	}
	if status, text := p.ask("PATCH", "", fmt.Sprintf(`{"keep_until": %q}`, kept.Format(time.RFC3339))); !strings.Contains(text, "keep_until") {
		t.Fatalf("%d %s", status, text)
	}
	written("how long it is kept", func(u heirUse) bool { return u.KeepUntil.Equal(kept) })
	p.supervisor.kill()
	p.startSupervisor()
	if st := p.until("adopted again", func(st Status) bool { return st.State == stateIdle }); !st.CullAt.Equal(kept) || !st.KeepUntil.Equal(kept) {
		t.Errorf("it was kept until %v, and with another supervisor %+v", kept, st)
	}
}

// TestPod_culled: the supervisor ends when it has culled its kernel, and both containers have done what they were there for.
func TestPod_culled(t *testing.T) {
	p := startPod(t, func(c *Config) { c.Cull, c.DeadLinger = Cull{IdleTimeout: time.Second}, 100*time.Millisecond })
	for who, c := range map[string]*podProcess{"supervisor": p.supervisor, "child": p.child} {
		if code := p.exitCode(c); code != 0 {
			t.Errorf("the %s has exited with %d", who, code)
		}
	}
	if e := p.ending(); !e.Culled || e.Stopped || e.Reason != "it was idle for 1s" {
		t.Errorf("the termination message is %+v", e)
	}
}

// TestCull_processors: a thread that computes keeps its kernel, here and in another container, and no longer than it does.
func TestCull_processors(t *testing.T) {
	const busy = `while :; do :; done & exec "$0" "$@"`                                     // a process of the kernel's session beside the kernel
	cull := Cull{IdleTimeout: 2 * time.Second, CPU: 0.01, Interval: 500 * time.Millisecond} // a tick of the clock in each interval is enough
	argv := append([]string{"/bin/sh", "-c", busy}, fakeKernelArgv()...)
	check := func(t *testing.T, leader int, until func(string, func(Status) bool) Status) {
		t.Helper()
		// Others may want the processors, too; but nobody computes for longer than time goes on.
		for deadline := time.Now().Add(3 * testLimit); sessionTime(leader).used < 1800*time.Millisecond; <-time.After(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("it does not compute")
			}
		}
		if st := until("told", func(Status) bool { return true }); st.State != stateIdle {
			t.Fatalf("it is %s: %s", st.State, st.Reason)
		}
		for _, e := range processes() {
			if e.session == leader && e.pid != leader {
				killProcess(t, e.pid)
			}
		}
		until("culled", func(st Status) bool { return st.State == stateDead && strings.HasPrefix(st.Reason, "it was idle for ") })
	}
	t.Run("own process", func(t *testing.T) {
		r := startSupervisor(t, func(c *Config) { c.Cull, c.Argv = cull, argv }).ready()
		st, _ := r.s.currentStatus()
		check(t, st.KernelPID, r.until)
	})
	t.Run("another container", func(t *testing.T) {
		p := startPod(t, func(c *Config) { c.Cull, c.Argv = cull, argv }).ready()
		check(t, p.until("up", func(st Status) bool { return st.KernelPID != 0 }).KernelPID, p.until)
	})
	t.Run("nothing computes", func(t *testing.T) {
		r := startSupervisor(t, func(c *Config) { c.Cull = cull }).ready()
		r.until("culled", func(st Status) bool { return st.State == stateDead })
	})
}

func killProcess(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}
