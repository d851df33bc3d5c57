//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
)

const (
	idleTimeout = 10 * time.Second
	idleWarning = 4 * time.Second
	// idleSlack allows for the kernel's shutdown on a busy machine, and for a last_activity that precedes a cell's end.
	idleSlack = 4 * time.Second
)

// culledAt waits until a kernel is recorded as culled. It returns the time and the reason.
func (g *gateway) culledAt(id string, limit time.Duration) (at time.Time, reason string) {
	g.t.Helper()
	g.eventually(limit, "kernel "+id+" is culled", func() error {
		status, b, err := g.tryAsk("GET", "/api/kernels?culled=1", "")
		if err != nil {
			return err
		}
		var all []struct {
			ID       string    `json:"id"`
			Name     string    `json:"name"`
			Reason   string    `json:"reason"`
			CulledAt time.Time `json:"culled_at"`

			StartedAt time.Time `json:"started_at"`
			Seconds   int64     `json:"seconds"`
		}
		if err := json.Unmarshal(b, &all); err != nil {
			return fmt.Errorf("%d %s: %w", status, b, err)
		}
		for _, k := range all {
			if k.ID == id && k.Name == "python3" {
				at, reason = k.CulledAt, k.Reason
				if lived := at.Sub(k.StartedAt); lived < time.Second || lived > time.Hour ||
					k.Seconds != int64(lived.Round(time.Second)/time.Second) {
					g.t.Errorf("its times and its seconds differ in %s", b)
				}
				return nil
			}
		}
		return fmt.Errorf("the culled kernels are %s", b)
	})
	return at, reason
}

// within checks that an event came at its due time.
func within(t *testing.T, what string, at, due time.Time) {
	t.Helper()
	if late := at.Sub(due); late < -idleSlack || late > idleSlack {
		t.Errorf("%s at %v, which is %v after it was due", what, at, late)
	}
}

// TestE2E_Idle: supervisors end idle kernels on time, without a gateway. Other kernels go on.
func TestE2E_Idle(t *testing.T) {
	g := newGateway(t, "--cull-idle-timeout", fmt.Sprint(int(idleTimeout.Seconds())),
		"--cull-warning", idleWarning.String(), "--cull-keep-limit", "1m")
	idle, silent, widget, kept := g.kernel("python3"), g.kernel("python3"), g.kernel("python3"), g.kernel("python3")
	clients := map[string]*client{}
	for _, id := range []string{idle, silent, widget, kept} {
		clients[id] = g.dial(t, id, "page", true)
		clients[id].says("kept = 1", "")
	}
	// One kernel runs a cell that prints nothing for longer than the timeout. Another runs a widget's callback of the same
	// length.
	const busy = idleTimeout + 5*time.Second
	cell := clients[silent].begin(fmt.Sprintf("import time; time.sleep(%v); print('the end')", busy.Seconds()))
	var open message
	made := clients[widget].begin(fmt.Sprintf(`from comm import create_comm
import time
c = create_comm(target_name='slow')
def answer(m):
    time.sleep(%v)
    c.send({'done': True})
c.on_msg(answer)`, busy.Seconds()))
	for _, m := range clients[widget].finish(made, 20*time.Second).all {
		if m.Header.MsgType == "comm_open" {
			open = m
		}
	}
	clients[widget].send("shell", "comm_msg", fmt.Sprintf(`{"comm_id": %q, "data": {}}`, open.field("comm_id")))

	until := time.Now().Add(idleTimeout + 12*time.Second).UTC().Truncate(time.Second)
	var keeps struct {
		KeepUntil time.Time `json:"keep_until"`
	}
	g.want(200, "PATCH", "/api/kernels/"+kept, fmt.Sprintf(`{"keep_until": %q}`, until.Format(time.RFC3339)), &keeps)
	if !keeps.KeepUntil.Equal(until) {
		t.Errorf("it is kept until %v, not %v", keeps.KeepUntil, until)
	}
	g.want(403, "PATCH", "/api/kernels/"+kept,
		fmt.Sprintf(`{"keep_until": %q}`, until.Add(time.Hour).Format(time.RFC3339)), nil)

	// The idle kernel has a page, which sends a page's usual requests. The gateway is down for half of the timeout, and up
	// again at its end.
	clients[idle].says("print(kept)", "1\n")
	ended := time.Now()
	g.kill()
	<-time.After(idleTimeout / 2)
	g.start()
	for id := range clients {
		clients[id] = g.dial(t, id, "page", true)
		clients[id].send("shell", "kernel_info_request", "{}")
	}
	dead, before := clients[idle].until(30*time.Second, "the end of the kernel", func(m message) bool {
		return m.Header.MsgType == "status" && m.field("execution_state") == "dead"
	})
	within(t, "the idle kernel's websocket got its end", time.Now(), ended.Add(idleTimeout))
	warned := false
	for _, m := range before {
		warned = warned || m.Header.MsgType == "display_data" && strings.Contains(string(m.Content), "will be ended at")
	}
	if !warned {
		t.Errorf("there was no warning before %s", dead.Content)
	}
	at, reason := g.culledAt(idle, 10*time.Second)
	within(t, "the idle kernel was culled", at, ended.Add(idleTimeout))
	if m := g.state(idle, "dead", 5*time.Second); m.Reason != reason || !strings.HasPrefix(reason, "it was idle for 1") {
		t.Errorf("it is dead: %q, and was culled: %q", m.Reason, reason)
	}

	// The other kernels still live, and end at their own times.
	for _, id := range []string{silent, widget, kept} {
		g.want(200, "GET", "/api/kernels/"+id, "", nil)
		if len(g.kernelProcesses(id)) == 0 {
			t.Errorf("kernel %s has ended with the idle one", id)
		}
	}
	if r := clients[silent].finish(cell, 30*time.Second); r.stdout != "the end\n" {
		t.Errorf("the silent cell printed %q", r.stdout)
	}
	silentEnd := time.Now()
	clients[widget].until(30*time.Second, "the widget's answer", func(m message) bool {
		return m.Header.MsgType == "comm_msg"
	})
	widgetEnd := time.Now()
	g.noProcesses(idle)

	t.Run("a culled kernel is restarted under its id", func(t *testing.T) {
		g.want(200, "POST", "/api/kernels/"+idle+"/restart", "{}", nil)
		g.state(idle, "idle", 20*time.Second)
		back := g.dial(t, idle, "page", true)
		back.says("print('kept' in dir())", "False\n")
	})
	at, _ = g.culledAt(widget, 30*time.Second)
	// A callback is not activity. The warning still precedes the end.
	within(t, "the widget's kernel was culled", at, widgetEnd.Add(idleWarning))
	at, reason = g.culledAt(kept, 60*time.Second)
	within(t, "the kernel that was kept was culled", at, until)

	// The gateway is down when the last kernel ends. After its start it reports the end.
	g.kill()
	ending := filepath.Join(g.dir, "state/kernels", silent, "ended.json")
	g.eventually(30*time.Second, "the end of the silent cell's kernel", func() error {
		_, err := os.Stat(ending)
		return err
	})
	g.start()
	at, _ = g.culledAt(silent, 10*time.Second)
	within(t, "the silent cell's kernel was culled", at, silentEnd.Add(idleTimeout))
	if _, again := g.culledAt(kept, 5*time.Second); again != reason {
		t.Errorf("before the gateway's restart the reason was %q, now it is %q", reason, again)
	}
	g.want(204, "DELETE", "/api/kernels/"+kept, "", nil)
	if status, body := g.ask("GET", "/api/kernels/"+kept, ""); status != 404 || !strings.Contains(string(body), reason) {
		t.Errorf("a culled kernel that was removed: %d %s, want 404 with %q", status, body, reason)
	}
	g.culledAt(kept, time.Second)
}

// TestE2E_IdleTabs runs JupyterLab with ten open tabs without a user. One of the kernels is restarted.
func TestE2E_IdleTabs(t *testing.T) {
	const seconds = 59 // long enough to open ten tabs, also beside the tests of a cluster
	g := newGateway(t, "--cull-idle-timeout", fmt.Sprint(seconds), "--cull-warning", "8s")
	g.script(10*time.Minute,
		[]string{fmt.Sprintf("EKG_IDLE=%d", seconds), "EKG_ARTIFACTS=" + filepath.Join(g.in.artifacts, "idle")}, "node",
		filepath.Join(g.in.repository, "e2e/testdata/browser/idle.mjs"))
}

// TestE2E_IdleGroups: the timeout of a group in the users file takes precedence over the general one, for the kernels
// of its users. A kernelspec that has a timeout keeps its own.
func TestE2E_IdleGroups(t *testing.T) {
	t.Parallel()
	g := prepare(t, "", "--cull-idle-timeout", "1h")
	file := filepath.Join(g.dir, "users.yaml")
	g.args = append(g.args, "--users-file", file)
	cull := map[string]string{"idleTimeout": "9h", "busyLimit": "9h"}
	g.specWith("patient", map[string]any{"metadata": map[string]any{"ekg": map[string]any{"cull": cull}}},
		filepath.Join(g.in.bin, "kernel"), "-f", "{connection_file}")
	users := fmt.Sprintf(`users:
- {name: ann, tokens: [%q], groups: [hurried, undefined]}
- {name: bob, tokens: [%q]}
groups:
- {name: hurried, cull: {idle-timeout: 2s}}
`, identity.Hash("token-ann"), identity.Hash("token-bob"))
	if err := os.WriteFile(file, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	g.token = ""
	g.start()
	g.token = "token-bob"
	slow, patient := g.kernel("fake"), g.kernel("patient")
	left := func(id string) time.Duration {
		var m struct {
			CullAt       time.Time `json:"cull_at"`
			LastActivity time.Time `json:"last_activity"`
		}
		g.want(200, "GET", "/api/kernels/"+id, "", &m)
		return m.CullAt.Sub(m.LastActivity).Round(time.Minute)
	}
	if a, b := left(slow), left(patient); a != time.Hour || b != 9*time.Hour {
		t.Errorf("without a group: %v and %v", a, b)
	}
	g.token = "token-ann"
	id := g.kernel("fake")
	if m := g.state(id, "dead", 30*time.Second); m.Reason != "it was idle for 2s" {
		t.Errorf("in the group: the reason is %q", m.Reason)
	}
	if got := left(g.kernel("patient")); got != 9*time.Hour {
		t.Errorf("in the group, with a timeout in the kernelspec: %v", got)
	}
	g.token = "token-bob"
	g.state(slow, "idle", 10*time.Second)
	for _, id := range []string{slow, patient} {
		g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	}
}
