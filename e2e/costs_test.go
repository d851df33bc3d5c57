//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// idlePeriod is how long an idle supervisor is measured. Its heartbeat is asked twice in it.
const idlePeriod = time.Minute

// use is what a process has used since its start, of all its threads together.
type use struct {
	processor time.Duration
	switches  int64 // of threads, voluntary or not
}

// useOf reads what a process has used.
func useOf(t *testing.T, pid int) use {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("process %d has %d threads: %v", pid, len(threads), err)
	}
	var u use
	for _, thread := range threads {
		b, err := os.ReadFile(thread + "/schedstat")
		if err != nil {
			continue // the thread has ended
		}
		var ran int64 // nanoseconds
		if _, err := fmt.Sscan(string(b), &ran); err != nil {
			t.Fatal(err)
		}
		u.processor += time.Duration(ran)
		status, _ := os.ReadFile(thread + "/status") // as above
		for line := range bytes.Lines(status) {
			var n int64
			if _, value, ok := strings.Cut(string(line), "ctxt_switches:"); ok {
				if _, err := fmt.Sscan(value, &n); err != nil {
					t.Fatal(err)
				}
				u.switches += n
			}
		}
	}
	return u
}

// pss returns the memory of a process in KiB. Memory that it shares is divided among its users.
func pss(t *testing.T, pid int) (kib int64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, value, _ := strings.Cut(string(b), "\nPss:")
	if _, err := fmt.Sscan(value, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

// measured is a supervisor that TestCosts_Processors measures.
type measured struct {
	setting     string    // in the environment of its supervisors
	pages       []*client // of a kernel for each of floods
	supervisors []int     // their process ids
	parent      int       // process id of the last one's parent
}

// floods are cells that put out small displays as fast as they can. ZeroMQ's own library drops what is not read fast
// enough. The fake kernel drops nothing, and is faster.
var floods = []struct {
	name, spec, code string
	displays         int
	others           int // pages that also read, compressed if the messages are large
}{
	{"ipykernel", "python3", fmt.Sprintf(pythonFlood, "''"), 50_000, 0},
	{"ipykernel, 8 more pages", "python3", fmt.Sprintf(pythonFlood, "''"), 50_000, 8},
	{"ipykernel, 10 KB each, 4 more pages", "python3", fmt.Sprintf(pythonFlood, "os.urandom(5000).hex()"), 5_000, 4},
	{"the fake kernel", "fake", "flood %d", 200_000, 0},
}

// pythonFlood is a cell for Sprintf, with an expression that is evaluated once.
const pythonFlood = `import os; from IPython.display import display; more = %s
for i in range(%%d): display({'text/plain': str(i) + more}, raw=True)`

// startMeasured starts a gateway with kernels whose supervisors have a setting in its environment.
func startMeasured(t *testing.T, bin, setting string) measured {
	t.Helper()
	g := prepare(t, setting)
	g.in.bin = bin
	program := filepath.Join(g.dir, "ekg-supervisor")
	script := fmt.Sprintf("#!/bin/sh\nexec env %s %s/ekg-supervisor \"$@\"\n", setting, bin)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	g.args = append(g.args, "--supervisor", program, "--compress-websockets")
	g.spec("fake", filepath.Join(bin, "kernel"), "-f", "{connection_file}")
	g.start()
	m := measured{setting: setting}
	for _, f := range floods {
		id := g.kernel(f.spec)
		m.pages, m.supervisors = append(m.pages, g.dial(t, id, "page", true)), append(m.supervisors, g.supervisorOf(id))
		m.parent = g.parentOf(id)
		for n := range f.others {
			g.readAlong(t, id, fmt.Sprintf("other-%d", n))
		}
	}
	m.pages[0].says("print('up')", "up\n")
	return m
}

// readAlong connects a page of another machine that reads everything until the test ends.
func (g *gateway) readAlong(t *testing.T, id, session string) {
	t.Helper()
	d := websocket.Dialer{EnableCompression: true, Subprotocols: []string{subprotocolV1}}
	ws, _, err := d.DialContext(t.Context(), "ws"+strings.TrimPrefix(g.url, "http")+"/api/kernels/"+id+
		"/channels?session_id="+session,
		http.Header{"Authorization": {"token " + g.token}, "X-Forwarded-For": {"192.0.2.1"}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for err := error(nil); err == nil; {
			_, _, err = ws.NextReader() // the client does not decompress
		}
	}()
	t.Cleanup(func() {
		_ = ws.Close() // it may already be closed
		<-done
	})
}

// flood makes a cell of the kind put out its displays. It returns a line of figures.
func (m measured) flood(t *testing.T, kind int) string {
	f, page, supervisor := floods[kind], m.pages[kind], m.supervisors[kind]
	before, began := useOf(t, supervisor), time.Now()
	shown := countDisplays(t, page, page.begin(fmt.Sprintf(f.code, f.displays)), 5*time.Minute)
	took, after := time.Since(began), useOf(t, supervisor)
	return fmt.Sprintf("%d displays, %d lost and %d announced, %.0f a second; %v of a processor, %d switches, peak %d MiB",
		f.displays, f.displays-shown.displays, shown.announced, float64(f.displays)/took.Seconds(),
		(after.processor - before.processor).Round(time.Millisecond), after.switches-before.switches,
		peakMemory(t, supervisor)>>20)
}

// TestCosts_Processors compares supervisors that use different numbers of processors at once: while their kernels are
// idle, and while a cell puts out small displays as fast as it can. The first one chooses the number itself. The idle
// ones are measured at the same time, the others in turns. `make costs` runs it. EKG_ROUNDS says how many turns.
func TestCosts_Processors(t *testing.T) {
	rounds := 3
	if v := os.Getenv("EKG_ROUNDS"); v != "" {
		if _, err := fmt.Sscan(v, &rounds); err != nil {
			t.Fatal(err)
		}
	}
	bin, err := released()
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", bin+"/", "../launcher/launchertest/kernel")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var all []measured
	for _, setting := range []string{"", "GOMAXPROCS=2", "GOMAXPROCS=16", "GOMAXPROCS=64"} {
		all = append(all, startMeasured(t, bin, setting))
	}
	time.Sleep(2 * time.Second) // the starts are over
	before := make([]use, len(all))
	for i, m := range all {
		before[i] = useOf(t, m.supervisors[0])
	}
	time.Sleep(idlePeriod)
	for i, m := range all {
		after := useOf(t, m.supervisors[0])
		t.Logf("idle, %q: Pss %d KiB and its parent's %d KiB, %d threads; %.2f switches and %.3f ms of a processor a second",
			m.setting, pss(t, m.supervisors[0]), pss(t, m.parent), threadsOf(t, m.supervisors[0]),
			float64(after.switches-before[i].switches)/idlePeriod.Seconds(),
			float64((after.processor-before[i].processor).Microseconds())/1000/idlePeriod.Seconds())
	}
	for range rounds {
		for kind := range floods {
			for _, m := range all {
				t.Logf("flood of %s, %q: %s", floods[kind].name, m.setting, m.flood(t, kind))
			}
		}
	}
}

// threadsOf returns the number of a process's threads.
func threadsOf(t *testing.T, pid int) int {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(threads)
}
