package gateway

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/usage"
	"github.com/elastic-kernel-gateway/ekg/launcher/local"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/connectionfile"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/zeromq"
)

// localBench is a gateway with the local launcher, in this process.
type localBench struct {
	*testGateway
	dir            string // short, for sockets
	state, runtime string
	kernel         string // path of the fake kernel; set by build
	users          Users  // nil: the gateway has none
}

func newLocalBench(b *testing.B) *localBench {
	dir, err := os.MkdirTemp("", "ekg-b")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	l := &localBench{dir: dir, state: filepath.Join(dir, "state"), runtime: filepath.Join(dir, "run")}
	for _, d := range []string{l.state, l.runtime} {
		if err := os.Mkdir(d, 0o700); err != nil {
			b.Fatal(err)
		}
	}
	return l
}

// build builds the supervisor and the fake kernel.
func (l *localBench) build(b *testing.B) (supervisor string) {
	for _, program := range []string{"../cmd/ekg-supervisor", "../launcher/launchertest/kernel"} {
		if out, err := exec.Command("go", "build", "-o", l.dir+"/", program).CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
	l.kernel = filepath.Join(l.dir, "kernel")
	return filepath.Join(l.dir, "ekg-supervisor")
}

// open starts the gateway.
func (l *localBench) open(b *testing.B, supervisor string) *local.Launcher {
	launcher, err := local.Open(b.Context(), local.Options{StateDir: l.state, RuntimeDir: l.runtime,
		Supervisor: supervisor, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = launcher.Close() })
	specs := []kernelspecs.Spec{{Name: "python3", Language: "fake",
		Argv: []string{l.kernel, "-f", "{connection_file}"}, InterruptMode: "signal"}}
	token := testToken
	if l.users != nil {
		token = ""
	}
	g, err := New(Options{Token: token, Users: l.users, Options: kernels.Options{Launcher: launcher,
		Log: slog.New(slog.DiscardHandler), StartWait: kernels.DefaultStartWait, Specs: &specDir{specs: specs}}})
	if err != nil {
		b.Fatal(err)
	}
	g.SetReady(true)
	srv := httptest.NewServer(g.Handler())
	b.Cleanup(srv.Close)
	l.testGateway = &testGateway{Gateway: g, http: srv, t: b}
	return launcher
}

// BenchmarkStart measures the time from a POST to the first reply of a kernel that answers at once. x/direct compares
// with the same kernel as a process of a client that speaks ZeroMQ.
func BenchmarkStart(b *testing.B) {
	l := newLocalBench(b)
	l.open(b, l.build(b))
	var ours, direct []time.Duration
	for b.Loop() {
		began := time.Now()
		id := decode[api.Model](b, l.do("POST", "/api/kernels", "{}").want(b, http.StatusCreated, `"idle"`)).ID
		l.firstReply(b, id)
		ours = append(ours, time.Since(began))
		l.do("DELETE", "/api/kernels/"+id, "").want(b, http.StatusNoContent, "")
		direct = append(direct, l.startDirectly(b))
	}
	slices.Sort(ours)
	slices.Sort(direct)
	middle, bare := ours[len(ours)/2], direct[len(direct)/2]
	b.ReportMetric(float64(middle)/float64(time.Millisecond), "ms/reply")
	b.ReportMetric(float64(middle)/float64(bare), "x/direct")
}

// firstReply asks the kernel for its information through the gateway.
func (l *localBench) firstReply(b *testing.B, id string) {
	ws, _, err := websocket.DefaultDialer.DialContext(b.Context(), "ws"+strings.TrimPrefix(l.http.URL, "http")+
		"/api/kernels/"+id+"/channels", http.Header{"Authorization": {"token " + testToken}})
	if err != nil {
		b.Fatal(err)
	}
	defer ws.Close() //nolint:errcheck // nothing was sent last
	m := jupyter.New(jupyter.Shell, "kernel_info_request", "bench", nil, struct{}{})
	request := fmt.Sprintf(`{"channel":"shell","header":%s,"parent_header":{},"metadata":{},"content":{}}`, m.Header)
	if err := ws.WriteMessage(websocket.TextMessage, []byte(request)); err != nil {
		b.Fatal(err)
	}
	for answer := ""; !strings.Contains(answer, `"kernel_info_reply"`); {
		_, data, err := ws.ReadMessage()
		if err != nil {
			b.Fatal(err)
		}
		answer = string(data)
	}
}

// startDirectly starts the kernel and asks it for its information, without ekg.
func (l *localBench) startDirectly(b *testing.B) time.Duration {
	began := time.Now()
	file := filepath.Join(l.dir, "connection.json")
	c, err := connectionfile.New(&api.Config{Transport: "tcp"})
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(file, c.File, 0o600); err != nil {
		b.Fatal(err)
	}
	argv := process.Command([]string{l.kernel, "-f", "{connection_file}"}, file)
	cmd := exec.Command(argv[0], argv[1:]...)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer cmd.Wait()         //nolint:errcheck // it was killed
	defer cmd.Process.Kill() //nolint:errcheck // seen by Wait
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
	defer cancel()
	var s zeromq.Socket
	for s == nil {
		if s, err = zeromq.Dial(ctx, c.Endpoints[jupyter.Shell], zeromq.Dealer, nil, zeromq.Limits{}); err != nil {
			if ctx.Err() != nil {
				b.Fatal(err)
			}
			<-time.After(200 * time.Microsecond)
		}
	}
	defer s.Close() //nolint:errcheck // never fails
	m := jupyter.New(jupyter.Shell, "kernel_info_request", "bench", nil, struct{}{})
	if err := s.Send(m.Frames(c.Signer)); err != nil {
		b.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

// BenchmarkList measures GET /api/kernels of the local launcher. One fake supervisor in this process stands for all.
func BenchmarkList(b *testing.B) {
	for _, n := range []int{1000, 9900} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var limit syscall.Rlimit
			if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < uint64(2*n+100) {
				b.Skipf("it needs %d open files: %v", 2*n+100, err)
			}
			l := newLocalBench(b)
			l.supervise(b, n)
			awaitStreams(b, l.open(b, os.Args[0]), n)
			var took []time.Duration
			b.ReportAllocs()
			used := usage.ProcessorTime([]int{os.Getpid()})
			for b.Loop() {
				began := time.Now()
				r := httptest.NewRequest("GET", "/api/kernels", nil)
				r.Header.Set("Authorization", "token "+testToken)
				w := &counted{header: http.Header{}}
				l.Handler().ServeHTTP(w, r)
				if w.status != http.StatusOK || w.length < n*100 {
					b.Fatal(w)
				}
				took = append(took, time.Since(began))
			}
			used = usage.ProcessorTime([]int{os.Getpid()}) - used
			b.ReportMetric(used.Seconds()*1e3/float64(len(took)), "cpu-ms")
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100])/float64(time.Millisecond), "p99-ms")
		})
	}
}

// awaitStreams waits until the launcher follows the status of all kernels.
func awaitStreams(b *testing.B, launcher *local.Launcher, n int) {
	for streaming := 0; streaming < n; {
		all, err := launcher.Kernels(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		streaming = 0
		for _, k := range all {
			if !k.Stale {
				streaming++
			}
		}
	}
}

// BenchmarkSessions measures requests of a user with one session beside the kernels of other users.
func BenchmarkSessions(b *testing.B) {
	for _, others := range []int{100, 1000, 4000} {
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < uint64(2*others+100) {
			b.Skipf("it needs %d open files: %v", 2*others+100, err)
		}
		l := newLocalBench(b)
		l.users = usersIn(b, filepath.Join(l.dir, "users.yaml"))
		l.supervise(b, others+1)
		awaitStreams(b, l.open(b, os.Args[0]), others+1)
		id := decode[sessionModel](b, l.do("POST", "/api/sessions",
			`{"path":"a.ipynb","type":"notebook","kernel":{"id":"3f0a6f5e-1d2c-4b7a-9e10-000000000000"}}`, as("ann")).
			want(b, http.StatusCreated, "")).ID
		for name, of := range map[string]struct {
			path   string
			status int
		}{
			"list": {"/api/sessions", http.StatusOK},
			"get":  {"/api/sessions/" + id, http.StatusOK},
			"404":  {"/api/sessions/" + idUnknown, http.StatusNotFound},
		} {
			b.Run(fmt.Sprintf("%s/others=%d", name, others), func(b *testing.B) {
				for b.Loop() {
					r := httptest.NewRequest("GET", of.path, nil)
					as("ann")(r)
					w := &counted{header: http.Header{}}
					if l.Handler().ServeHTTP(w, r); w.status != of.status {
						b.Fatal(w)
					}
				}
			})
		}
	}
}

// counted is an answer whose body is not kept, so that memory for it is not measured.
type counted struct {
	header http.Header
	status int
	length int
}

func (w *counted) Header() http.Header    { return w.header }
func (w *counted) WriteHeader(status int) { w.status = status }
func (w *counted) Write(b []byte) (int, error) {
	w.length += len(b)
	return len(b), nil
}

// supervise makes the folders of n kernels, and serves their status streams on one socket. The first one is ann's.
func (l *localBench) supervise(b *testing.B, n int) {
	lock, err := os.Create(filepath.Join(l.dir, "lock"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = lock.Close() })
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		b.Fatal(err)
	}
	sum := sha256.Sum256([]byte(l.state))
	run := filepath.Join(l.runtime, hex.EncodeToString(sum[:3])+"bench")
	if err := os.Mkdir(run, 0o700); err != nil {
		b.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(run, "s"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go streamStatus(conn)
		}
	}()
	for i := range n {
		id := fmt.Sprintf("3f0a6f5e-1d2c-4b7a-9e10-%012d", i)
		dir := filepath.Join(l.state, "kernels", id)
		owner := fmt.Sprint("user", i)
		if i == 0 {
			owner = "ann"
		}
		if l.users == nil {
			owner = ""
		}
		record, err := json.Marshal(map[string]any{"protocol": api.ProtocolVersion, "id": id, "spec_name": "python3",
			"owner":   owner,
			"created": time.Now().UTC(), "socket": filepath.Join(run, "s"), "run_dir": run})
		if err == nil {
			err = os.MkdirAll(dir, 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "kernel.json"), record, 0o600)
		}
		if err == nil {
			err = os.Link(lock.Name(), filepath.Join(dir, "lock")) // a lock belongs to the file, not to its names
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// streamStatus answers one request with the status of an idle kernel, and waits until the gateway goes away.
func streamStatus(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // nothing depends on it
	in := bufio.NewReaderSize(conn, 512)
	r, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	if r.Method != http.MethodGet {
		_, _ = fmt.Fprint(conn, "HTTP/1.1 204 No Content\r\n\r\n")
		return
	}
	st := api.Status{Protocol: api.ProtocolVersion, KernelID: strings.Split(r.URL.Path, "/")[3], PID: os.Getpid(),
		State: api.Idle, LastActivity: time.Now().UTC(), LogLimit: 1 << 26}
	_, _ = fmt.Fprint(conn, "HTTP/1.1 200 OK\r\n\r\n")
	if json.NewEncoder(conn).Encode(st) == nil {
		_, _ = in.ReadByte()
	}
}
