//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
)

// command prepares `ekg` as the gateway's user would run it in a shell.
func (g *gateway) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(g.in.bin, "ekg"), args...)
	cmd.Env = append(g.env("EKG_STATE_DIR="+filepath.Join(g.dir, "state")), g.finds...)
	return cmd
}

// prints runs a command to its end.
func (g *gateway) prints(args ...string) (code int, stdout, stderr string) {
	g.t.Helper()
	var out, errs bytes.Buffer
	cmd := g.command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		g.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// beginIn sends code as a cell of a notebook.
func (c *client) beginIn(cell, code string) string {
	c.t.Helper()
	return c.send("shell", "execute_request", executeRequest(code, false), func(m *message) {
		m.Meta = json.RawMessage(fmt.Sprintf(`{"trusted":true,"cellId":%q}`, cell))
	})
}

const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

func TestE2E_Log(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	id := g.kernel("python3")
	c := g.dial(t, id, "session-1", true)
	shown := c.beginIn("cell-shown", fmt.Sprintf(`
import base64, sys
from IPython.display import Image, display
print("to stdout", flush=True)
print("to stderr", file=sys.stderr, flush=True)
display(Image(data=base64.b64decode(%q), format="png"))
6 * 7`, pixel))
	c.finish(shown, 30*time.Second)
	failed := c.beginIn("cell-failed", "print('just before', flush=True)\n1/0")
	c.finish(failed, 20*time.Second)

	const ofShown = "to stdout\nto stderr\n<IPython.core.display.Image object> [image/png 70 B]\n42\n"
	t.Run("whole log", func(t *testing.T) {
		code, out, errs := g.prints("log", id[:8])
		_, rest, ok := strings.Cut(out, ofShown+"just before\n") // a kernel's warnings at its start come first
		if code != 0 || errs != "" || !ok || !strings.Contains(rest, "Traceback") ||
			!strings.HasSuffix(plainText(rest), "ZeroDivisionError: division by zero\n") {
			t.Errorf("got %d:\n%s\n%s", code, out, errs)
		}
	})
	t.Run("one request", func(t *testing.T) {
		if code, out, errs := g.prints("log", id, "--cell", shown); code != 0 || out != ofShown || errs != "" {
			t.Errorf("got %d:\n%s\n%s", code, out, errs)
		}
	})
	t.Run("as JSON", func(t *testing.T) {
		logAsJSON(t, g, id, map[string]string{shown: "cell-shown", failed: "cell-failed"})
	})
	t.Run("errors", func(t *testing.T) {
		for _, tt := range []struct{ name, want string }{
			{"nope", `ekg: no kernel "nope"; the kernels are: ` + id + " (python3, idle)\n"},
			{"11111111-0000-4000-8000-000000000000", "ekg: " + g.url +
				"/: Kernel does not exist: 11111111-0000-4000-8000-000000000000\n"},
		} {
			if code, out, errs := g.prints("log", tt.name); code != 1 || out != "" || errs != tt.want {
				t.Errorf("got %d %q %q", code, out, errs)
			}
		}
	})

	t.Run("follow while the gateway is killed", func(t *testing.T) { followWhileKilled(t, g, c, id) })

	t.Run("after the kernel has died", func(t *testing.T) {
		fake := g.kernel("fake")
		f := g.dial(t, fake, "session-2", true)
		g.eventually(60*time.Second, "the kernel is restarted no more", func() error {
			var m model
			g.want(200, "GET", "/api/kernels/"+fake, "", &m)
			switch m.ExecutionState {
			case "dead":
				return nil
			case "idle":
				f.send("shell", "execute_request", `{"code":"echo last words\nexit 3"}`)
			}
			return errors.New("it is " + m.ExecutionState)
		})
		for _, args := range [][]string{{"log", fake}, {"log", fake, "-f"}} { // with -f it ends at once
			code, out, errs := g.prints(args...)
			if code != 0 || !strings.HasPrefix(out, "last words\n") || !strings.Contains(out, "The kernel died") || errs != "" {
				t.Errorf("%v: got %d %q %q", args, code, out, errs)
			}
		}
		g.want(204, "DELETE", "/api/kernels/"+fake, "", nil)
		if code, _, errs := g.prints("log", fake); code != 1 || !strings.Contains(errs, "Kernel does not exist") {
			t.Errorf("after the kernel was removed: got %d %q", code, errs)
		}
	})

	t.Run("no gateway", func(t *testing.T) {
		if left, err := filepath.Glob(filepath.Join(g.dir, "state/gateway-*.json")); err != nil || len(left) != 1 {
			t.Errorf("got %v, %v; want only the file of the running gateway", left, err)
		}
		if err := g.signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if left, err := filepath.Glob(filepath.Join(g.dir, "state/gateway-*.json")); err != nil || len(left) != 0 {
			t.Errorf("the gateway has left %v, %v", left, err)
		}
		if code, _, errs := g.prints("log", id); code != 1 ||
			!strings.HasPrefix(errs, "ekg: no gateway of this user runs here") {
			t.Errorf("got %d %q", code, errs)
		}
	})
}

// logAsJSON checks the lines of a log. The map has the notebook's cell of each request.
func logAsJSON(t *testing.T, g *gateway, id string, cells map[string]string) {
	code, out, errs := g.prints("log", "--json", id)
	if code != 0 || errs != "" {
		t.Fatalf("got %d: %s", code, errs)
	}
	var last uint64
	types := map[string]int{}
	for line := range strings.Lines(out) {
		var m struct {
			Number        uint64
			Epoch         uint64
			Time          time.Time
			Channel, Cell string
			Header        header
			Parent        header `json:"parent_header"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v in %.300s", err, line)
		}
		if m.Number <= last || m.Epoch != 1 || time.Since(m.Time) > time.Hour {
			t.Errorf("after %d: %.300s", last, line)
		}
		last = m.Number
		if want := cells[m.Parent.MsgID]; m.Cell != want {
			t.Errorf("cell is %q, want %q: %.300s", m.Cell, want, line)
		}
		types[m.Channel+"/"+m.Header.MsgType]++
	}
	if types["shell/execute_reply"] != 2 || types["iopub/error"] != 1 || types["iopub/execute_input"] != 2 {
		t.Errorf("the types of messages are %v", types)
	}
}

// followWhileKilled follows a cell, and kills and restarts the gateway meanwhile. Each line is printed once.
func followWhileKilled(t *testing.T, g *gateway, c *client, id string) {
	var out, errs transcript.Buffer
	cell := c.begin(printing(40))
	cmd := g.command("log", id, "--follow", "--cell", cell)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill() // the test has failed
			<-ended                //nolint:errcheck // only the end matters here
		}
	}()
	shows := func(line string) func() error {
		return func() error {
			if !strings.Contains(out.String(), line) {
				return fmt.Errorf("printed %q and %q", out.String(), errs.String())
			}
			return nil
		}
	}
	g.eventually(20*time.Second, "line 10", shows("line 10\n"))
	if strings.Contains(out.String(), "line 39\n") {
		t.Fatal("the cell has ended already: the test proves nothing")
	}
	g.kill()
	g.start()
	g.eventually(30*time.Second, "line 39", shows("line 39\n"))
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("after the interrupt it ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the command does not end after an interrupt")
	}
	var want strings.Builder
	for i := range 40 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if out.String() != want.String() { // each line must come exactly once
		t.Errorf("printed %q, want each line once", out.String())
	}
	if text := errs.String(); !strings.HasPrefix(text, "ekg: the connection broke") ||
		!strings.HasSuffix(text, "ekg: connected again\n") {
		t.Errorf("standard error is %q", text)
	}
}

// plainText returns a text without its colours.
func plainText(text string) string {
	return regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(text, "")
}
