package supervisor

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/savedstate"
)

// TestSupervisor_Culled: an idle kernel ends on time, reports the reason to all clients, and starts again under its id.
func TestSupervisor_Culled(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) {
		c.Cull = api.Cull{IdleTimeout: 1500 * time.Millisecond, Warning: 5 * time.Minute, KeepLimit: time.Hour}
	}).ready()
	c := r.dial(dialOption{session: "ann", v1: true})
	id := c.execute("sleep 2s")
	c.result(id)
	ended := time.Now()
	if at := r.model().CullAt; at == "" {
		t.Error("the model does not say when it will be culled")
	}
	all := c.collect("dead", func(g got) bool {
		return g.msgType == "status" && jupyter.StringField(g.Content, "execution_state") == string(api.Dead)
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
	if m := r.model(); m.ExecutionState != api.Dead || m.Reason != reason || m.CullAt != "" {
		t.Errorf("the model is %+v", m)
	}
	var e api.Ending
	b, err := os.ReadFile(r.cfg.EndFile)
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err != nil || !e.Culled || e.Stopped || e.Reason != reason || e.CulledFor != api.LimitIdle {
		t.Errorf("on record is %s, %v", b, err)
	}
	if lived := e.At.Sub(e.Started); e.Started.IsZero() || lived < 2*time.Second ||
		e.Seconds != int64(lived.Round(time.Second)/time.Second) {
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
		r.until("dead again", func(st api.Status) bool { return st.State == api.Dead })
		if status, body := r.request("DELETE", "", ""); status != 204 {
			t.Fatalf("%d %s", status, body)
		}
		<-r.done
		var e api.Ending
		if b, err := os.ReadFile(r.cfg.EndFile); err != nil || json.Unmarshal(b, &e) != nil || !e.Culled || !e.Stopped ||
			e.Reason != reason {
			t.Errorf("%s, %v", b, err)
		}
		if e.Started.Before(died) {
			t.Errorf("started again after %v it is on record as started at %v", died, e.Started)
		}
	})
}

// TestSupervisor_CullsWhileBusy: a request that takes too long ends with the reason.
func TestSupervisor_CullsWhileBusy(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.Cull = api.Cull{BusyLimit: time.Second} }).ready()
	c := r.dial(dialOption{session: "ann", v1: true})
	id := c.execute("sleep 1h")
	all := c.result(id)
	if reply, ok := find(all, "execute_reply", id); !ok ||
		jupyter.StringField(reply.Content, "evalue") != "it was busy with one request for 1s" {
		t.Errorf("the reply is %s", reply.Content)
	}
	r.until("dead", func(st api.Status) bool {
		return st.State == api.Dead && st.Reason == "it was busy with one request for 1s"
	})
}

func TestSupervisor_Keep(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) {
		c.Cull = api.Cull{IdleTimeout: time.Hour, KeepLimit: 10 * time.Hour}
	}).ready()
	for body, want := range map[string]string{
		``: "the body is not", `{}`: "the body is not", `{"keep_until": "x"}`: "RFC 3339", `{"keep_until": 3}`: "RFC 3339",
		`{"keep": null}`:                         "the body is not",
		`{"keep_until": "2020-01-02T03:04:05Z"}`: "keep_until is in the past",
	} {
		if status, text := r.request("PATCH", "", body); status != 400 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	if status, text := r.request("PATCH", "", `{"keep_gpu_until": "2099-01-02T03:04:05Z"}`); status != 409 {
		t.Errorf("the GPU of a kernel without one is kept: %d %s", status, text)
	}
	if status, text := r.request("PATCH", "", `{"keep_gpu_until": null}`); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	until := time.Now().Add(5 * time.Hour).UTC().Truncate(time.Second)
	if status, text := r.request("PATCH", "",
		fmt.Sprintf(`{"keep_until": %q}`, until.Format(time.RFC3339))); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	if m := r.model(); m.KeepUntil != until.Format(api.TimeFormat) || m.CullAt != m.KeepUntil {
		t.Errorf("the model is %+v", m)
	}
	r.until("kept", func(st api.Status) bool { return st.KeepUntil.Equal(until) && st.CullAt.Equal(until) })
	if status, text := r.request("PATCH", "", `{"keep_until": null}`); status != 200 ||
		strings.Contains(text, "keep_until") {
		t.Errorf("%d %s", status, text)
	}
}

// TestPod_Use: a restarted supervisor continues the idle clock and keeps the kernel as long as its owner has asked.
func TestPod_Use(t *testing.T) {
	p := startPod(t, func(c *api.Config) {
		c.Cull = api.Cull{IdleTimeout: time.Hour, KeepLimit: 10 * time.Hour, MaxAge: 20 * time.Hour}
	}).ready()
	c := p.attach("ann")
	c.result(c.execute("result 1"))
	due := p.until("idle", func(st api.Status) bool { return st.State == api.Idle && !st.CullAt.IsZero() }).CullAt
	kept := time.Now().Add(5 * time.Hour).UTC().Truncate(time.Second)
	written := func(what string, cond func(savedstate.Use) bool) {
		t.Helper()
		for deadline := time.Now().Add(testLimit); ; <-time.After(5 * time.Millisecond) {
			var left savedstate.State
			if b, err := os.ReadFile(p.cfg.SpillDir + "/" + savedstate.FileName); err == nil &&
				json.Unmarshal(b, &left) == nil &&
				cond(left.Use) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("never written: %s", what)
			}
		}
	}
	written("the clock", func(u savedstate.Use) bool { return u.IdleSince.Add(time.Hour).Equal(due) })
	p.supervisor.kill()
	p.startSupervisor()
	if now := p.until("adopted", func(st api.Status) bool { return st.State == api.Idle }).CullAt; !now.Equal(due) {
		t.Errorf("it was to be culled at %v, and with another supervisor at %v", due, now)
	}
	if status, text := p.ask("PATCH", "", fmt.Sprintf(`{"keep_until": %q}`, kept.Format(time.RFC3339))); !strings.Contains(
		text,
		"keep_until",
	) {
		t.Fatalf("%d %s", status, text)
	}
	written("how long it is kept", func(u savedstate.Use) bool { return u.KeepUntil.Equal(kept) })
	p.supervisor.kill()
	p.startSupervisor()
	if st := p.until("adopted again", func(st api.Status) bool { return st.State == api.Idle }); !st.CullAt.Equal(kept) ||
		!st.KeepUntil.Equal(kept) {
		t.Errorf("it was kept until %v, and with another supervisor %+v", kept, st)
	}
}

// TestPod_Culled: the supervisor ends when it has culled its kernel, and both containers exit with 0.
func TestPod_Culled(t *testing.T) {
	p := startPod(t, func(c *api.Config) {
		c.Cull, c.DeadLinger = api.Cull{IdleTimeout: time.Second}, 100*time.Millisecond
	})
	for who, c := range map[string]*podProcess{"supervisor": p.supervisor, "child": p.child} {
		if code := p.exitCode(c); code != 0 {
			t.Errorf("the %s has exited with %d", who, code)
		}
	}
	if e := p.ending(); !e.Culled || e.Stopped || e.Reason != "it was idle for 1s" {
		t.Errorf("the termination message is %+v", e)
	}
}

// TestCull_Processors: a process that computes keeps its kernel, in this container and in another one. The kernel is
// culled when the process has ended.
func TestCull_Processors(t *testing.T) {
	// a process of the kernel's session beside the kernel
	const busy = `while :; do :; done & exec "$0" "$@"`
	// a tick of the clock in each interval is enough
	cull := api.Cull{IdleTimeout: 2 * time.Second, CPU: 0.01, Interval: 500 * time.Millisecond}
	argv := append([]string{"/bin/sh", "-c", busy}, fakeKernelArgv()...)
	check := func(t *testing.T, leader int, until func(string, func(api.Status) bool) api.Status) {
		t.Helper()
		// Other programs may use the processors too. But no process computes for longer than the time that passes.
		deadline := time.Now().Add(3 * testLimit)
		for ; proctree.SessionTime(leader).Used < 1800*time.Millisecond; <-time.After(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("it does not compute")
			}
		}
		if st := until("computing", func(api.Status) bool { return true }); st.State != api.Idle {
			t.Fatalf("it is %s: %s", st.State, st.Reason)
		}
		for _, e := range proctree.List() {
			if e.Session == leader && e.PID != leader {
				killProcess(t, e.PID)
			}
		}
		until("culled", func(st api.Status) bool {
			return st.State == api.Dead && strings.HasPrefix(st.Reason, "it was idle for ")
		})
	}
	t.Run("own process", func(t *testing.T) {
		r := startSupervisor(t, func(c *api.Config) { c.Cull, c.Argv = cull, argv }).ready()
		st, _ := r.s.Status()
		check(t, st.KernelPID, r.until)
	})
	t.Run("another container", func(t *testing.T) {
		p := startPod(t, func(c *api.Config) { c.Cull, c.Argv = cull, argv }).ready()
		check(t, p.until("up", func(st api.Status) bool { return st.KernelPID != 0 }).KernelPID, p.until)
	})
	t.Run("nothing computes", func(t *testing.T) {
		r := startSupervisor(t, func(c *api.Config) { c.Cull = cull }).ready()
		r.until("culled", func(st api.Status) bool { return st.State == api.Dead })
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
