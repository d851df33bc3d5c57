//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

func TestE2E_REST(t *testing.T) {
	g := newGateway(t)
	var specs struct {
		Default     string                     `json:"default"`
		Kernelspecs map[string]json.RawMessage `json:"kernelspecs"`
	}
	g.want(200, "GET", "/api/kernelspecs", "", &specs)
	for _, name := range []string{"python3", "ipykernel6", "xpython", "fake"} {
		if specs.Kernelspecs[name] == nil {
			t.Errorf("kernelspec %s is not listed", name)
		}
	}

	const wanted = "11111111-2222-4333-8444-555555555555"
	body := fmt.Sprintf(`{"name": "python3", "kernel_id": %q,
		"env": {"KERNEL_USERNAME": "ada", "SECRET": "not for kernels"}}`, wanted)
	var first, again model
	g.want(201, "POST", "/api/kernels", body, &first)
	g.want(201, "POST", "/api/kernels", body, &again)
	if first.ID != wanted || again.ID != wanted {
		t.Fatalf("a repeated POST returned %s and %s, want %s twice", first.ID, again.ID, wanted)
	}
	if !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`).MatchString(first.LastActivity) {
		t.Errorf("last_activity is %q, not with six digits and Z", first.LastActivity)
	}
	g.want(400, "POST", "/api/kernels", `{"name": "python3", "kernel_id": "NOT-A-UUID"}`, nil)
	g.want(404, "POST", "/api/kernels", `{"name": "there-is-no-such"}`, nil)

	c := g.dial(t, wanted, "s1", true)
	c.says("import os; print(os.environ.get('KERNEL_USERNAME'), os.environ.get('SECRET'), os.environ.get('EKG_TOKEN'))",
		"ada None None\n")
	g.state(wanted, "idle", 10*time.Second)
	g.want(204, "POST", "/api/kernels/"+wanted+"/interrupt", "{}", nil)
	g.want(200, "POST", "/api/kernels/"+wanted+"/restart", "{}", nil)

	g.want(204, "DELETE", "/api/kernels/"+wanted, "", nil)
	if left := g.kernelProcesses(wanted); len(left) > 0 {
		t.Errorf("after the answer to DELETE there are still %v", left)
	}
	g.want(404, "DELETE", "/api/kernels/"+wanted, "", nil)
	g.want(404, "GET", "/api/kernels/"+wanted, "", nil)
	var none []model
	if g.want(200, "GET", "/api/kernels", "", &none); len(none) != 0 {
		t.Errorf("still listed: %v", none)
	}
}

func TestE2E_StartErrors(t *testing.T) {
	g := newGateway(t)
	for spec, words := range map[string]string{
		"missing-program": "/opt/no-such-program",
		"exits-at-once":   "these are my last words",
	} {
		began := time.Now()
		status, body := g.ask("POST", "/api/kernels", fmt.Sprintf(`{"name": %q}`, spec))
		var e struct{ Reason, Message string }
		if err := json.Unmarshal(body, &e); err != nil || status != 500 || !strings.Contains(e.Message, words) ||
			strings.Contains(e.Reason, words) {
			t.Errorf("%s: got %d %s, want 500 whose message alone says %q", spec, status, body, words)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: the error took %v", spec, took)
		}
	}
	noneLeft(t, 10*time.Second, "the end of the supervisors of kernels that did not start", func(p process) bool {
		return strings.Contains(p.cmdline, "ekg-supervisor ") && strings.Contains(p.cmdline, g.dir)
	})
}

// printing returns a cell that prints a line every 100 ms.
func printing(lines int) string {
	return fmt.Sprintf("import time\nfor i in range(%d):\n    print('line', i, flush=True)\n    time.sleep(0.1)", lines)
}

var lineNumber = regexp.MustCompile(`(?m)^line (\d+)$`)

// wantLines checks that no line is missing and that first occurrences are in order. Lines may occur twice: a client
// that was cut off gets its unacknowledged output again.
func wantLines(t *testing.T, text string, n int) {
	t.Helper()
	var first []int
	for _, m := range lineNumber.FindAllStringSubmatch(text, -1) {
		i, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(first, i) {
			first = append(first, i)
		}
	}
	for i := range n {
		if i >= len(first) || first[i] != i {
			t.Fatalf("line %d is missing or out of order; got %d of %d lines: %v", i, len(first), n, first)
		}
	}
}

// TestE2E_GatewayKilled checks the main promise: no kernel, variable or output is lost when a gateway dies.
func TestE2E_GatewayKilled(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		v1   bool
		away time.Duration
	}{
		{"v1 framing, away for 1 s", true, time.Second},
		{"JSON, away for 1 s", false, time.Second},
		{"v1 framing, away for 60 s", true, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			id := g.kernel("python3")
			c := g.dial(t, id, "session-1", tt.v1)
			c.says("kept = 'a variable'", "")
			cell := c.begin(printing(40))
			before := c.prints("line 10\n")
			pids := g.kernelProcesses(id)
			g.kill()
			before += c.ended(20 * time.Second) // the gateway sends no acknowledged message again
			<-time.After(tt.away)
			g.start()

			if m := g.state(id, "idle", 20*time.Second); m.ID != id {
				t.Fatalf("after the restart the kernel is %v", m)
			}
			back := g.dial(t, id, "session-1", tt.v1)
			r := back.finish(cell, 20*time.Second)
			wantLines(t, before+r.stdout, 40)
			if r.reply.field("status") != "ok" {
				t.Errorf("the cell's reply after the restart is %s", r.reply.Content)
			}
			back.says("print(kept)", "a variable\n")
			if now := g.kernelProcesses(id); len(now) == 0 || len(pids) == 0 || now[0].pid != pids[0].pid {
				t.Errorf("the kernel's process was %v and is %v", pids, now)
			}
		})
	}
}

// TestE2E_LostOutput: a kernel drops its output while no one reads it. The cell reports the exact number of lost
// messages.
func TestE2E_LostOutput(t *testing.T) {
	t.Parallel()
	const displays = 20000
	g := newGateway(t)
	id := g.kernel("python3")
	c := g.dial(t, id, "s", true)
	produced := filepath.Join(g.dir, "produced")
	cell := c.begin(fmt.Sprintf(`from IPython.display import display
print('go', flush=True)
for i in range(%d): display(i)
open(%q, 'w').close()`, displays, produced))
	c.until(20*time.Second, "the first output", func(m message) bool { return m.Header.MsgType == "stream" })
	pid := g.supervisorOf(id)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	g.eventually(120*time.Second, "the end of the loop", func() error {
		_, err := os.Stat(produced)
		return err
	})
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	shown, said, words := 0, 0, ""
	for _, m := range c.finish(cell, 60*time.Second).all {
		switch {
		case m.Header.MsgType == "display_data":
			shown++
		case m.Header.MsgType == "stream" && m.field("name") == "stderr":
			words += m.field("text")
			n := 0
			if _, err := fmt.Sscanf(m.field("text"), "[ekg] %d messages were lost", &n); err != nil {
				t.Errorf("the cell says %q", m.field("text"))
			}
			said += n
		}
	}
	// Other lost messages, such as a status, are counted, too.
	if lost := displays - shown; lost == 0 || said < lost || said > lost+5 {
		t.Errorf("%d of %d displays are missing, and the cell says: %s", lost, displays, words)
	}
	c.says("print('on')", "on\n")
}

func TestE2E_Sigterm(t *testing.T) {
	g := newGateway(t)
	id := g.kernel("python3")
	c := g.dial(t, id, "s", true)
	c.says("kept = 1", "")
	if err := g.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range c.got {
		continue
	}
	// JupyterLab does not reconnect after these two.
	if websocket.IsCloseError(c.failed, websocket.CloseNormalClosure, websocket.CloseGoingAway) {
		t.Errorf("the websocket ended with %v: JupyterLab would not reconnect", c.failed)
	}
	if len(g.kernelProcesses(id)) == 0 {
		t.Fatal("the kernel did not outlive the gateway")
	}
	g.start()
	g.dial(t, id, "s", true).says("print(kept)", "1\n")
}

func TestE2E_StopKernelsOnExit(t *testing.T) {
	g := newGateway(t, "--stop-kernels-on-exit")
	ids := []string{g.kernel("python3"), g.kernel("fake")}
	if err := g.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if left := g.kernelProcesses(id); len(left) > 0 {
			t.Errorf("the gateway has ended, but there are %v", left)
		}
	}
	noneLeft(t, 5*time.Second, "the end of the supervisors", func(p process) bool {
		return strings.Contains(p.cmdline, g.dir)
	})
}

func TestE2E_TwoGateways(t *testing.T) {
	g := newGateway(t)
	other := *g
	other.addr = freeAddress(t, "127.0.0.1")
	other.url = "http://" + other.addr
	other.start()
	t.Cleanup(func() { _ = other.signal(syscall.SIGTERM) })
	id := g.kernel("python3")
	other.state(id, "idle", 10*time.Second)
	c := g.dial(t, id, "one", true)
	c.says("shared = 1", "")
	other.dial(t, id, "two", true).says("print(shared)", "1\n")
	other.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	g.eventually(10*time.Second, "404 at the other gateway", func() error {
		if status, b, err := g.tryAsk("GET", "/api/kernels/"+id, ""); err != nil || status != 404 {
			return fmt.Errorf("%d %s %v", status, b, err)
		}
		return nil
	})
}

// live runs one kernel from its start to its end, and uses a websocket and a REST request on it.
func (g *gateway) live(t *testing.T) {
	id := g.kernel("fake")
	c := g.dial(t, id, "life", true)
	c.finish(c.send("shell", "kernel_info_request", "{}"), 30*time.Second)
	_ = c.ws.Close() // the test counts descriptors; a close error does not matter
	g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
}

// descriptors returns the number of the gateway's open files.
func (g *gateway) descriptors() int {
	g.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", g.cmd.Process.Pid))
	if err != nil {
		g.t.Fatal(err)
	}
	return len(entries)
}

// goroutines ends the gateway by SIGQUIT and counts the goroutines in its dump.
func (g *gateway) goroutines() int {
	g.t.Helper()
	if err := g.signal(syscall.SIGQUIT); err != nil {
		g.t.Fatal(err)
	}
	b, err := os.ReadFile(g.log)
	if err != nil {
		g.t.Fatal(err)
	}
	return len(regexp.MustCompile(`(?m)^goroutine \d+ `).FindAll(b, -1))
}

func TestE2E_NothingLeaks(t *testing.T) {
	const lives = 200
	fresh, used := newGateway(t), newGatewayNamed(t, "used")
	fresh.live(t)
	used.live(t)
	before := used.descriptors()
	t.Run("lives", func(t *testing.T) { // returns after its parallel subtests
		for i := range 4 {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				mine := *used
				mine.t = t
				for range lives / 4 {
					mine.live(t)
				}
			})
		}
	})
	used.eventually(20*time.Second, "as many open files as before", func() error {
		if n := used.descriptors(); n > before+2 {
			return fmt.Errorf("%d open files, %d before", n, before)
		}
		return nil
	})
	noneLeft(t, 20*time.Second, "the end of all processes but the gateway", func(p process) bool {
		return strings.Contains(p.cmdline, used.dir) && p.pid != used.cmd.Process.Pid
	})
	used.eventually(20*time.Second, "no child that was not waited for", func() error {
		if zombies := zombiesOf(t, used.cmd.Process.Pid); zombies > 0 {
			return fmt.Errorf("%d zombies", zombies)
		}
		return nil
	})
	for _, d := range []string{"state/kernels", "run"} {
		left, err := os.ReadDir(filepath.Join(used.dir, d))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) > 0 {
			t.Errorf("%s still has %d entries: %v", d, len(left), left[0])
		}
	}
	if want, got := fresh.goroutines(), used.goroutines(); got > want+3 {
		t.Errorf("after %d kernel lives there are %d goroutines, after one %d; they are in %s", lives, got, want, used.log)
	}
}
