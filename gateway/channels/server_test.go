package channels

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	idA = "0a1b2c3d-0000-4000-8000-00000000000a"

	// fakeKernelVariable makes this test's program run as the fake kernel.
	fakeKernelVariable = "EKG_TEST_FAKE_KERNEL"
	requestIDHeader    = "X-Request-Id"
)

func TestMain(m *testing.M) {
	if os.Getenv(fakeKernelVariable) != "" {
		os.Exit(launchertest.FakeKernelMain(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// testServer carries websockets like package gateway does: requests for /ID are joined to the supervisor of kernel ID.
type testServer struct {
	t        testing.TB
	dir      string // of unix sockets
	registry *Registry[string]
	lobby    *Lobby
	http     *httptest.Server
	handOver bool // clients' sockets are handed over to supervisors that take them

	mu      sync.Mutex
	changed chan struct{} // guarded by mu; closed and replaced at each change
	kernels map[string]*testKernel
	failed  error // guarded by mu; error of the last carrier's end
}

// testKernel is a kernel as its launcher would show it.
type testKernel struct {
	launcher.Kernel
	socket string // of its supervisor; "" while there is none
	server *http.Server
	gone   error // what the launcher says of a kernel that was removed
}

func startServer(t testing.TB) *testServer {
	t.Helper()
	dir, err := os.MkdirTemp("", "ekg-ch") // t.TempDir is too long for unix sockets
	if err != nil {
		t.Fatal(err)
	}
	s := &testServer{t: t, dir: dir, handOver: true, registry: NewRegistry[string](0, NewPlaces(0)), lobby: NewLobby(),
		changed: make(chan struct{}), kernels: map[string]*testKernel{}}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.http.Start()
	t.Cleanup(func() {
		s.http.Close()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.registry.Drain(ctx)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *testServer) serve(w http.ResponseWriter, r *http.Request) {
	id := strings.TrimPrefix(r.URL.Path, "/")
	c, err := s.registry.Add(r.Context(), id, "", "")
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer s.registry.Remove(c)
	extra := http.Header{requestIDHeader: {"1"}}
	up, err := s.connect(c.Context(), r, id)
	var carrier Carrier
	switch {
	case err == nil:
		carrier, err = Join(w, up, extra)
	case errors.Is(err, launcher.ErrNoSupervisor):
		carrier, err = s.lobby.Enter(w, r, r.URL.Query().Get("user"), s.kernel(r, id), extra)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	err = c.Carry(carrier)
	s.change(func() { s.failed = err })
}

// kernel describes a kernel to the lobby.
func (s *testServer) kernel(r *http.Request, id string) Kernel {
	return Kernel{
		Wait: func(ctx context.Context, cond func(launcher.Kernel) bool) (launcher.Kernel, error) {
			for {
				s.mu.Lock()
				k, changed := *s.kernels[id], s.changed
				s.mu.Unlock()
				if k.gone != nil || cond(k.Kernel) {
					return k.Kernel, k.gone
				}
				select {
				case <-changed:
				case <-ctx.Done():
					return k.Kernel, ctx.Err()
				}
			}
		},
		Reason: func(k launcher.Kernel) string { return strings.Replace(k.Reason, "no GPU", "no GPU of 8", 1) },
		Connect: func(ctx context.Context, subprotocol string) (*Upstream, error) {
			r := r.Clone(ctx)
			r.Header.Del("Sec-Websocket-Extensions")
			r.Header.Del("Sec-Websocket-Protocol")
			if subprotocol != "" {
				r.Header.Set("Sec-Websocket-Protocol", subprotocol)
			}
			up, err := s.connect(ctx, r, id)
			var answered *StatusError
			if errors.As(err, &answered) {
				return nil, &RejectedError{string(answered.Body)}
			}
			return up, err
		},
	}
}

func (s *testServer) connect(ctx context.Context, r *http.Request, id string) (*Upstream, error) {
	out, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+id+"/api/kernels/"+id+"/channels?"+
		r.URL.RawQuery, nil)
	if err != nil {
		return nil, err
	}
	out.Header = r.Header.Clone()
	return Dial(ctx, func(ctx context.Context) (net.Conn, error) {
		s.mu.Lock()
		socket := s.kernels[id].socket
		s.mu.Unlock()
		if socket == "" {
			return nil, launcher.ErrNoSupervisor
		}
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}, out, s.handOver && CanHandOver(r))
}

// change changes kernels and wakes all who wait for them.
func (s *testServer) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	close(s.changed)
	s.changed = make(chan struct{})
}

// addStarting adds a kernel without a supervisor.
func (s *testServer) addStarting(id, reason string) {
	s.change(func() {
		s.kernels[id] = &testKernel{Kernel: launcher.Kernel{ID: id, State: api.Starting, Reason: reason, Stale: true}}
	})
}

// set sets a kernel's state.
func (s *testServer) set(id string, state api.State, reason string) {
	s.change(func() { s.kernels[id].State, s.kernels[id].Reason = state, reason })
}

// give gives a kernel its supervisor, which answers all requests with the handler.
func (s *testServer) give(id string, handler http.HandlerFunc) {
	s.t.Helper()
	socket := filepath.Join(s.dir, id)
	_ = os.Remove(socket) // of an earlier kernel with this id
	l, err := net.Listen("unix", socket)
	if err != nil {
		s.t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) })
	s.t.Cleanup(func() { _ = server.Close(); wg.Wait() })
	s.change(func() { k := s.kernels[id]; k.socket, k.server, k.Stale, k.Reason = socket, server, false, "" })
}

// supervise adds a kernel whose supervisor accepts each websocket and gives its connection to run.
func (s *testServer) supervise(id string, run func(conn net.Conn, early io.Reader)) {
	s.t.Helper()
	s.addStarting(id, "")
	s.give(id, func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			s.t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		run(conn, rw)
	})
}

// dial opens a websocket by hand, so that a test has the bare bytes, and checks that it was accepted.
func (s *testServer) dial(id string, change ...func(*http.Request)) (*net.TCPConn, *bufio.Reader) {
	s.t.Helper()
	r, err := http.NewRequest("GET", s.http.URL+"/"+id, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Connection", "keep-alive, Upgrade")
	r.Header.Set("Upgrade", "websocket")
	r.Header.Set("Sec-WebSocket-Version", "13")
	r.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	for _, f := range change {
		f(r)
	}
	conn, err := net.Dial("tcp", r.URL.Host)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	if err := r.Write(conn); err != nil {
		s.t.Fatal(err)
	}
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, r)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		s.t.Fatalf("got %v, %v, want 101", resp, err)
	}
	return conn.(*net.TCPConn), br
}

// wantNothingHeld fails unless all connections end and the lobby is empty then.
func (s *testServer) wantNothingHeld() {
	s.t.Helper()
	s.registry.wg.Wait()
	if n := s.lobby.Held(); n != 0 {
		s.t.Errorf("%d bytes are still counted as held", n)
	}
}
