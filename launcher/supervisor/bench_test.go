package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/wsclient"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/connectionfile"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/listener"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/zeromq"
)

// The benchmarks compare ways to the same fake kernel, which is a process of its own: ZeroMQ directly, a supervisor in
// this process with each of the websocket framings, and gateway and supervisor as installed. The machine affects all
// ways of a run alike, so the ratios count. The client that measures the supervisor's allocations makes none itself.

// path is one way to a kernel.
type path interface {
	// ask sends a request.
	ask(msgType string, content map[string]any)
	// answered reads until the reply to the last request and returns when the reply came. It calls count for every other
	// message. It reads on until the idle before it returns.
	answered(reply []byte, count func()) time.Time
}

// mostSearched is the size in bytes above which a message is output, which need not be searched for marks.
const mostSearched = 4 << 10

// Marks of messages: an idle, and a message that belongs to a request of the benchmark.
var (
	idleMark = []byte(`"execution_state":"idle"`)
	askMark  = []byte(`"session":"bench"`)
)

// directPath is a Jupyter client without a gateway. Like a client in C, it only splits the messages of iopub into
// frames.
type directPath struct {
	b      *testing.B
	signer *jupyter.Signer
	shell  zeromq.Socket
	idle   chan struct{}
	count  chan func() // called by the iopub reader; replaced for each request
}

func newDirectPath(b *testing.B) *directPath {
	dir := benchDir(b)
	cfg := api.Config{Transport: "tcp", ConnectionFile: filepath.Join(dir, "connection.json"), Argv: fakeKernelArgv()}
	c, err := connectionfile.New(&cfg)
	if err != nil {
		b.Fatal(err)
	}
	if err := files.Write(cfg.ConnectionFile, c.File); err != nil {
		b.Fatal(err)
	}
	argv := process.Command(cfg.Argv, cfg.ConnectionFile)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), fakeKernelVariable+"=1")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // seen by Wait
		cmd.Wait()         //nolint:errcheck // it was killed
	})
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	defer cancel()
	p := &directPath{b: b, signer: c.Signer, idle: make(chan struct{}), count: make(chan func(), 1)}
	if p.shell, err = dialUntil(ctx, c.Endpoints[jupyter.Shell], zeromq.Dealer, nil, bridgeLimits); err != nil {
		b.Fatal(err)
	}
	iopub, err := dialUntil(ctx, c.Endpoints[jupyter.IOPub], zeromq.Sub, nil, bridgeLimits)
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.readIOPub(iopub)
	}()
	b.Cleanup(func() {
		_ = p.shell.Close()
		_ = iopub.Close()
		<-done
	})
	// Until the subscription works, idles are lost.
	for up := false; !up; {
		p.ask("is_complete_request", map[string]any{"code": ""})
		p.count <- func() {}
		if _, err := p.shell.Recv(); err != nil {
			b.Fatal(err)
		}
		select {
		case <-p.idle:
			up = true
		case <-time.After(200 * time.Millisecond):
			<-p.count
		}
	}
	return p
}

func (p *directPath) readIOPub(iopub zeromq.Socket) {
	var count func()
	for {
		frames, err := iopub.Recv()
		if err != nil {
			return
		}
		if count == nil {
			count = <-p.count
		}
		count()
		if content := frames[len(frames)-1]; len(content) < mostSearched && bytes.Contains(content, []byte(`"idle"`)) {
			count = nil
			p.idle <- struct{}{}
		}
	}
}

func (p *directPath) ask(msgType string, content map[string]any) {
	m := jupyter.New(jupyter.Shell, msgType, "bench", nil, content)
	if err := p.shell.Send(m.Frames(p.signer)); err != nil {
		p.b.Fatal(err)
	}
}

func (p *directPath) answered(reply []byte, count func()) time.Time {
	p.count <- count
	frames, err := p.shell.Recv()
	if err != nil {
		p.b.Fatal(err)
	}
	m, err := jupyter.ParseFrames(jupyter.Shell, frames, p.signer)
	if err != nil || !bytes.Contains(m.Header, reply) {
		p.b.Fatalf("%s: %v", m.Header, err)
	}
	at := time.Now()
	<-p.idle
	return at
}

// websocketPath is a client of a supervisor. It reads frames without allocating anything.
type websocketPath struct {
	b       testing.TB
	conn    *wsclient.Conn
	gateway *gatewayProcesses // nil: the supervisor is in this process
}

// dialChannels connects to a kernel's channels.
func dialChannels(b testing.TB, network, address, kernel string, v1 bool) *wsclient.Conn {
	conn, err := net.Dial(network, address)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	c, err := wsclient.Upgrade(conn, "localhost", kernel, "bench", v1)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// newSupervisorPath starts a supervisor with a kernel of its own and connects one client.
func newSupervisorPath(b testing.TB, v1 bool) *websocketPath {
	dir := benchDir(b)
	cfg := api.Config{
		Protocol: api.ProtocolVersion, KernelID: uuid.NewString(), SpecName: "fake", Argv: fakeKernelArgv(),
		Env:        map[string]string{"PATH": os.Getenv("PATH"), fakeKernelVariable: "1"},
		WorkingDir: dir, InterruptMode: "signal", Listen: "unix:" + filepath.Join(dir, "s"),
		ConnectionFile: filepath.Join(dir, "connection.json"), Transport: "tcp", RunDir: dir,
		LockFile: filepath.Join(dir, "lock"), EndFile: filepath.Join(dir, "ended.json"),
		LogLimit: 1 << 30, SpillDir: dir, StopGrace: time.Second, DeadLinger: time.Minute, RestartLimit: 3,
	}
	l, err := listener.Open(&cfg)
	if err != nil {
		b.Fatal(err)
	}
	s := New(cfg, "bench", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, s, l) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	deadline := time.After(testLimit)
	for st, change := s.Status(); st.State != api.Idle; st, change = s.Status() {
		select {
		case <-change:
		case <-deadline:
			b.Fatalf("never idle: %+v", st)
		}
	}
	return &websocketPath{b: b, conn: dialChannels(b, "unix", filepath.Join(dir, "s"), cfg.KernelID, v1)}
}

func (p *websocketPath) ask(msgType string, content map[string]any) {
	m := jupyter.New(jupyter.Shell, msgType, "bench", nil, content)
	frame, err := p.conn.Frame(&m)
	if err == nil {
		err = p.conn.Write(frame)
	}
	if err != nil {
		p.b.Fatal(err)
	}
}

func (p *websocketPath) answered(reply []byte, count func()) time.Time {
	var at time.Time
	for replied, idle := false, false; !replied || !idle; {
		m, err := p.conn.Next()
		if err != nil {
			p.b.Fatal(err)
		}
		switch {
		case len(m) > mostSearched:
			count()
		case bytes.Contains(m, reply):
			at, replied = time.Now(), true
		case !bytes.Contains(m, askMark):
			// The present state, which a new client gets first, answers no request.
		case bytes.Contains(m, idleMark):
			idle = true
			count()
		default:
			count()
		}
	}
	return at
}

func benchDir(b testing.TB) string {
	dir, err := os.MkdirTemp("", "ekg-b") // b.TempDir is too long for socket paths
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// messagePaths returns the ways to a kernel, direct first. EKG_BENCH_PATHS may name some of them, as "direct,json", for
// a profile of one.
func messagePaths(b *testing.B) (names []string, paths []path) {
	all := []struct {
		name string
		open func() path
	}{
		{"direct", func() path { return newDirectPath(b) }},
		{"v1", func() path { return newSupervisorPath(b, true) }},
		{"json", func() path { return newSupervisorPath(b, false) }},
		{"gateway-v1", func() path { return newGatewayPath(b, true) }},
		{"gateway-json", func() path { return newGatewayPath(b, false) }},
	}
	wanted := strings.Split(os.Getenv("EKG_BENCH_PATHS"), ",")
	for _, a := range all {
		if wanted[0] == "" || slices.Contains(wanted, a.name) {
			names, paths = append(names, a.name), append(paths, a.open())
		}
	}
	return names, paths
}

// TestMessagePath_Allocations holds what a supervisor allocates for each message of a flood: how often, and how many
// bytes for each byte of the message. A further copy of large messages in new memory adds 1 to the latter.
func TestMessagePath_Allocations(t *testing.T) {
	for _, v1 := range []bool{true, false} {
		p := newSupervisorPath(t, v1)
		for _, tt := range []struct {
			size, messages int
			allocs, bytes  float64
		}{{80, 5000, 6, 50}, {10_000, 500, 8, 1.9}, {1_000_000, 10, 60, 1.7}} {
			allocs, size := math.Inf(1), math.Inf(1)
			// Other goroutines of the process are counted too, and a new connection's buffers. Under the race detector pools
			// forget. So one flood of several must keep the bounds.
			for floods := 0; floods < 20 && (allocs > tt.allocs || size > tt.bytes); floods++ {
				var before, after runtime.MemStats
				n := 0
				runtime.ReadMemStats(&before)
				p.ask("execute_request",
					map[string]any{"code": fmt.Sprintf("flood %d of %d", tt.messages, tt.size), "silent": false})
				p.answered([]byte("execute_reply"), func() { n++ })
				runtime.ReadMemStats(&after)
				if n != tt.messages+3 {
					t.Fatalf("%d messages on iopub, want %d", n, tt.messages+3)
				}
				allocs = min(allocs, float64(after.Mallocs-before.Mallocs)/float64(tt.messages))
				size = min(size, float64(after.TotalAlloc-before.TotalAlloc)/float64(tt.messages*tt.size))
			}
			t.Logf("v1 %v, messages of %d bytes: %.2f allocations, %.2f bytes for each byte", v1, tt.size, allocs, size)
			if allocs > tt.allocs || size > tt.bytes {
				t.Errorf("v1 %v, messages of %d bytes: %.2f allocations and %.2f bytes for each byte, want at most %.1f and %.1f",
					v1, tt.size, allocs, size, tt.allocs, tt.bytes)
			}
		}
	}
}

// BenchmarkMessagePath_RoundTrip is a request and its reply, with nothing else going on.
func BenchmarkMessagePath_RoundTrip(b *testing.B) {
	names, paths := messagePaths(b)
	took := make([][]time.Duration, len(paths))
	for b.Loop() {
		for i, p := range paths {
			start := time.Now()
			p.ask("is_complete_request", map[string]any{"code": "x"})
			took[i] = append(took[i], p.answered([]byte("is_complete_reply"), func() {}).Sub(start))
		}
	}
	b.ReportMetric(0, "ns/op") // a time over all paths means nothing
	var direct float64
	for i, name := range names {
		slices.Sort(took[i])
		p50 := float64(took[i][len(took[i])/2].Microseconds())
		if i == 0 {
			direct = p50
		} else {
			b.ReportMetric(p50/direct, name+"/direct")
		}
		b.ReportMetric(p50, name+"-µs-p50")
	}
}

// BenchmarkMessagePath_Flood is a cell that displays without a pause.
func BenchmarkMessagePath_Flood(b *testing.B) {
	names, paths := messagePaths(b)
	for _, of := range []struct {
		name     string
		bytes    int // of text, in each message
		messages int
	}{{"100B", 80, 50_000}, {"10kB", 10_000, 10_000}, {"1MB", 1_000_000, 200}, {"100MB", 100_000_000, 3}} {
		b.Run(of.name, func(b *testing.B) { benchmarkFlood(b, names, paths, of.messages, of.bytes) })
	}
}

func benchmarkFlood(b *testing.B, names []string, paths []path, messages, size int) {
	took := make([][]time.Duration, len(paths))
	allocs := make([]uint64, len(paths))
	cpu := make([]cpuTime, len(paths))
	for b.Loop() {
		for i, p := range paths {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			used := cpuOf(p)
			start := time.Now()
			n := 0
			p.ask("execute_request", map[string]any{"code": fmt.Sprintf("flood %d of %d", messages, size), "silent": false})
			p.answered([]byte("execute_reply"), func() { n++ })
			took[i] = append(took[i], time.Since(start))
			runtime.ReadMemStats(&after)
			allocs[i] += after.Mallocs - before.Mallocs
			now := cpuOf(p)
			cpu[i].gateway += now.gateway - used.gateway
			cpu[i].supervisor += now.supervisor - used.supervisor
			if n != messages+3 { // busy, execute_input, idle
				b.Fatalf("%s: %d messages on iopub, want %d", names[i], n, messages+3)
			}
		}
	}
	b.ReportMetric(0, "ns/op") // a time over all paths means nothing
	var direct float64
	for i, name := range names {
		slices.Sort(took[i])
		rate := float64(messages) / took[i][len(took[i])/2].Seconds()
		all := float64(len(took[i]) * messages)
		if i == 0 {
			direct = rate
		} else {
			b.ReportMetric(rate/direct, name+"/direct")
		}
		b.ReportMetric(rate, name+"-msg/s")
		if p, ok := paths[i].(*websocketPath); ok && p.gateway != nil {
			b.ReportMetric(float64(cpu[i].gateway.Microseconds())/all, name+"-µs-cpu-gateway/msg")
			b.ReportMetric(float64(cpu[i].supervisor.Microseconds())/all, name+"-µs-cpu-supervisor/msg")
			b.ReportMetric(p.gateway.peak(), name+"-MB-peak")
		} else {
			b.ReportMetric(float64(allocs[i])/all, name+"-allocs/msg")
		}
	}
}
