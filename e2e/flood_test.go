//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Bounds of a flood. A supervisor holds at most 16 MiB of its log in memory. Garbage can take as much again. Data that
// it has read from a fast kernel but not handled yet takes at most 64 MiB.
const (
	floodLog    = 128 << 20
	floodMemory = 2*16<<20 + 64<<20
)

// released builds the programs without the race detector, as in a release. The detector multiplies their memory.
var released = sync.OnceValues(func() (string, error) {
	in, err := install()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(in.artifacts, "bin-released")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, buildIn(in.repository, dir)
})

// buildIn builds the two programs of a checkout.
func buildIn(checkout, dir string) error {
	build := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "./cmd/ekg", "./cmd/ekg-supervisor")
	build.Dir = checkout
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// TestE2E_Flood: a cell has more output than the log keeps. The cell ends for every client. Each client gets all of the
// output, or a message with the size of the lost part. The supervisor's memory stays bounded.
func TestE2E_Flood(t *testing.T) { flood(t, 20000, 8000, 3*time.Minute) }

// TestChaos_Flood runs the same test with a million displays, in `make chaos`.
func TestChaos_Flood(t *testing.T) { flood(t, 1000000, 100, 30*time.Minute) }

// flood runs a cell with this number of displays, each of size bytes. The sum exceeds the memory that is allowed.
func flood(t *testing.T, displays, size int, limit time.Duration) {
	bin, err := released()
	if err != nil {
		t.Fatal(err)
	}
	g := prepare(t, "", fmt.Sprintf("--log-limit=%d", floodLog))
	g.in.bin = bin
	g.start()
	id := g.kernel("python3")
	reading := g.dial(t, id, "reading", true)
	ws, err := g.connect(t.Context(), id, "other", false, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	other := &client{t: t, ws: ws, session: "other"} // it does not read
	other.send("shell", "kernel_info_request", "{}")
	cell := reading.begin(fmt.Sprintf(`from IPython.display import display
for i in range(%d): display({'text/plain': '%%%dd' %% i}, raw=True)`, displays, size))
	began := time.Now()
	counted := countDisplays(t, reading, cell, limit)
	counted.check(t, "the client that reads", displays)
	peak := peakMemory(t, g.supervisorOf(id))
	t.Logf("%d displays in %v; the supervisor took at most %d MiB",
		displays, time.Since(began).Round(time.Second), peak>>20)

	if time.Since(began) < 30*time.Second {
		other.got = make(chan message, 1024)
		go other.read()
		t.Cleanup(func() {
			_ = ws.Close() // this makes read end
			for range other.got {
				continue
			}
		})
	} else { // the supervisor drops a client that reads nothing for 45 s
		_ = ws.Close() // it may already have ended
		other = g.dial(t, id, "other", false)
	}
	counted = countDisplays(t, other, cell, limit)
	counted.check(t, "the client that did not read", displays)
	if peak = max(peak, peakMemory(t, g.supervisorOf(id))); peak > floodMemory {
		t.Errorf("the supervisor took %d MiB with a log of %d MiB, want at most %d MiB",
			peak>>20, floodLog>>20, floodMemory>>20)
	}
	reading.says("print('on')", "on\n")
}

// TestE2E_ReaderPauses: a page reads nothing while a cell puts out 200 MB. Then it gets everything. The default bounds
// of the log allow that, and the supervisor's memory does not grow with them.
func TestE2E_ReaderPauses(t *testing.T) {
	const displays, size = 2000, 100_000
	bin, err := released()
	if err != nil {
		t.Fatal(err)
	}
	g := prepare(t, "")
	g.in.bin = bin
	g.start()
	id := g.kernel("python3")
	ws, err := g.connect(t.Context(), id, "page", true, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	page := &client{t: t, ws: ws, session: "page", v1: true} // it does not read yet
	began := time.Now()
	cell := page.begin(fmt.Sprintf(`import time
from IPython.display import display
for i in range(%d):
    display({'text/plain': '%%%dd' %% i}, raw=True)
    time.sleep(0.005)  # no faster than the kernel can send`, displays, size))
	g.state(id, "busy", time.Minute)
	g.state(id, "idle", 3*time.Minute)
	paused := time.Since(began)
	page.got = make(chan message, 64)
	go page.read()
	t.Cleanup(func() {
		_ = ws.Close() // this makes read end
		for range page.got {
			continue
		}
	})
	counted := countDisplays(t, page, cell, 3*time.Minute)
	counted.check(t, "the page", displays)
	peak := peakMemory(t, g.supervisorOf(id))
	t.Logf("after a pause of %v %d of %d displays of %d kB came; the supervisor took at most %d MB",
		paused.Round(time.Second), counted.displays, displays, size/1000, peak/1e6)
	if counted.displays != displays || peak > 100e6 {
		t.Errorf("%d of %d displays came, and the supervisor took %d MB", counted.displays, displays, peak/1e6)
	}
	page.says("print('on')", "on\n")
}

// shown is the part of a flood that a client got.
type shown struct {
	displays, announced int
	notices             string
	others              string // notices that announce no loss
}

// countDisplays reads up to a cell's idle status. A client that sent the cell gets its reply before that or shortly
// after.
func countDisplays(t *testing.T, c *client, cell string, limit time.Duration) shown {
	t.Helper()
	var s shown
	timeout := time.After(limit)
	for {
		var m message
		var ok bool
		select {
		case m, ok = <-c.got:
		case <-timeout:
			t.Fatalf("%s: no idle after %d displays", c.session, s.displays)
		}
		switch {
		case !ok:
			t.Fatalf("%s: the websocket ended after %d displays: %v", c.session, s.displays, c.failed)
		case m.Header.MsgType == "display_data":
			s.displays++
		case m.Header.MsgType == "stream" && strings.HasPrefix(m.field("text"), "[ekg]"):
			n := 0
			if _, err := fmt.Sscanf(m.field("text"), "[ekg] %d messages", &n); err != nil {
				s.others += m.field("text")
			}
			s.announced += n
			s.notices += m.field("text")
		case m.Parent.MsgID == cell && m.field("execution_state") == "idle":
			return s
		}
	}
}

func (s shown) check(t *testing.T, client string, displays int) {
	t.Helper()
	t.Logf("%s: %d displays of %d; %d announced as missing: %.200q", client, s.displays, displays, s.announced, s.notices)
	if s.others != "" {
		t.Errorf("%s: the cell says %q", client, s.others)
	}
	// Lost statuses and other messages are counted, too.
	if missing := displays - s.displays; missing < 0 || s.announced < missing || s.announced > missing+displays/100+20 {
		t.Errorf("%s: %d displays are missing, and the cell says: %s", client, missing, s.notices)
	}
}

// TestE2E_LargeMessages: a message of 100 MB reaches the page, and its memory is given back. One that is too large is
// replaced by a remark, and the kernel keeps its variables.
func TestE2E_LargeMessages(t *testing.T) {
	bin, err := released()
	if err != nil {
		t.Fatal(err)
	}
	g := prepare(t, "", fmt.Sprintf("--log-limit=%d", floodLog))
	g.in.bin = bin
	g.start()
	id := g.kernel("python3")
	c := g.dial(t, id, "ann", true)
	c.says("x = 7; print(x)", "7\n")
	supervisor := g.supervisorOf(id)
	before := memoryOf(t, supervisor, "VmRSS")

	cell := c.begin("from IPython.display import display\ndisplay({'text/plain': 'y' * 100_000_000}, raw=True)")
	shown := countDisplays(t, c, cell, 3*time.Minute)
	if shown.displays != 1 || shown.notices != "" || shown.others != "" {
		t.Errorf("%d displays of 100 MB arrived: %s", shown.displays, shown.notices)
	}
	peak, most := memoryOf(t, supervisor, "VmHWM"), before+48<<20 // the log keeps 16 MiB in memory
	var now int64
	eventually(t, 2*time.Minute, "the memory is given back", func() error {
		if now = memoryOf(t, supervisor, "VmRSS"); now >= most {
			return fmt.Errorf("%d MiB are in use, and it was %d MiB", now>>20, before>>20)
		}
		return nil
	})
	t.Logf("the supervisor took %d MiB before, %d MiB at most, and %d MiB after a message of 100 MB",
		before>>20, peak>>20, now>>20)

	cell = c.begin("display({'text/plain': 'y' * 300_000_000}, raw=True)")
	shown = countDisplays(t, c, cell, 3*time.Minute)
	if shown.displays != 0 || !strings.Contains(shown.others, "A message of type display_data and 300000") {
		t.Errorf("%d displays of 300 MB arrived: %s", shown.displays, shown.notices)
	}
	c.says("print(x)", "7\n")
}

// peakMemory returns the largest resident memory of a process so far, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	return memoryOf(t, pid, "VmHWM")
}

// memoryOf returns a figure of a process's status, in bytes.
func memoryOf(t *testing.T, pid int, name string) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kib int64
		if _, err := fmt.Sscanf(line, name+": %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatalf("no %s in %s", name, status)
	return 0
}
