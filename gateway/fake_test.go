package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

const (
	testToken = "canary-5f2b7c90d1"
	idA       = "0a1b2c3d-0000-4000-8000-00000000000a"
	idB       = "0a1b2c3d-0000-4000-8000-00000000000b"
	idUnknown = "0a1b2c3d-0000-4000-8000-0000000000ff"
)

// fakeLauncher keeps kernels in memory, each with a supervisor that is a real HTTP server on a unix socket. A function
// field that is set replaces one method.
type fakeLauncher struct {
	t   testing.TB
	dir string

	start func(context.Context, launcher.Request) (launcher.Kernel, bool, error)
	dial  func(context.Context, string) (net.Conn, error)
	list  func() ([]launcher.Kernel, error)

	restarting func(id string) (func(), error)

	culled    []launcher.Culled
	culledErr error
	// measures are what it says besides its kernels.
	measures launcher.Measures

	// token is what supervisors demand.
	token string

	// newState is the state of a kernel that Start has made.
	newState launcher.State

	mu           sync.Mutex
	kernels      map[string]*fakeKernel
	gone         map[string]*launcher.GoneError
	reqs         []launcher.Request
	stops        map[string]string // reason by id
	stopRequests map[string]string // the request's id by id
	claims       []string
	dials        int
	changed      chan struct{} // closed at every change
}

type fakeKernel struct {
	launcher.Kernel
	super *fakeSupervisor // nil once it has ended
}

func newFakeLauncher(t testing.TB) *fakeLauncher {
	t.Helper()
	dir, err := os.MkdirTemp("", "ekg-gw")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeLauncher{t: t, dir: dir, newState: launcher.Idle, kernels: map[string]*fakeKernel{},
		gone: map[string]*launcher.GoneError{}, stops: map[string]string{}, stopRequests: map[string]string{}, changed: make(chan struct{})}
	t.Cleanup(func() {
		for _, k := range f.kernels {
			if k.super != nil {
				k.super.close()
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return f
}

// change runs f under the lock and wakes everyone in Wait.
func (f *fakeLauncher) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeLauncher) add(id, spec string, state launcher.State) *fakeSupervisor {
	var s *fakeSupervisor
	f.change(func() {
		s = newFakeSupervisor(f.t, id, filepath.Join(f.dir, id[len(id)-12:]+fmt.Sprint(len(f.reqs))))
		f.kernels[id] = &fakeKernel{Kernel: launcher.Kernel{ID: id, SpecName: spec, State: state,
			Created: time.Date(2026, 11, 21, 5, 53, 26, 0, time.UTC).Add(time.Duration(len(f.kernels)) * time.Second)}, super: s}
	})
	return s
}

// addStarting adds a kernel that has no supervisor yet. One is made with give.
func (f *fakeLauncher) addStarting(id, reason string) {
	f.change(func() {
		f.kernels[id] = &fakeKernel{Kernel: launcher.Kernel{ID: id, SpecName: "python3", State: launcher.Starting, Reason: reason,
			Stale: true, Created: time.Date(2026, 11, 21, 5, 53, 26, 0, time.UTC)}}
	})
}

// give gives a kernel its supervisor, which is as prepare leaves it when the first connection comes.
func (f *fakeLauncher) give(id string, prepare func(*fakeSupervisor)) {
	s := newFakeSupervisor(f.t, id, filepath.Join(f.dir, id[len(id)-12:]))
	prepare(s)
	f.change(func() { f.kernels[id].super, f.kernels[id].Stale, f.kernels[id].Reason = s, false, "" })
}

func (f *fakeLauncher) set(id string, state launcher.State, reason string) {
	f.change(func() { f.kernels[id].State, f.kernels[id].Reason = state, reason })
}

func (f *fakeLauncher) stopped() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := map[string]string{}
	for k, v := range f.stops {
		m[k] = v
	}
	return m
}

func (f *fakeLauncher) requests() []launcher.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.reqs)
}

func (f *fakeLauncher) Start(ctx context.Context, req launcher.Request) (launcher.Kernel, bool, error) {
	if f.start != nil {
		return f.start(ctx, req)
	}
	return f.startForReal(req)
}

func (f *fakeLauncher) startForReal(req launcher.Request) (launcher.Kernel, bool, error) {
	f.mu.Lock()
	k, there := f.kernels[req.ID]
	f.reqs = append(f.reqs, req)
	f.mu.Unlock()
	if there {
		if k.SpecName != req.Spec.Name || k.Owner != req.Owner {
			return launcher.Kernel{}, false, launcher.ErrConflict
		}
		return k.Kernel, false, nil
	}
	f.add(req.ID, req.Spec.Name, f.newState)
	f.change(func() { f.kernels[req.ID].Owner = req.Owner })
	k2, err := f.Kernel(context.Background(), req.ID)
	return k2, true, err
}

func (f *fakeLauncher) Kernel(_ context.Context, id string) (launcher.Kernel, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k, ok := f.kernels[id]; ok {
		return k.Kernel, nil
	}
	if gone, ok := f.gone[id]; ok {
		return launcher.Kernel{}, gone
	}
	return launcher.Kernel{}, fmt.Errorf("fake: %w", launcher.ErrNotFound)
}

func (f *fakeLauncher) Kernels(context.Context) ([]launcher.Kernel, error) {
	if f.list != nil {
		return f.list()
	}
	return f.listForReal()
}

func (f *fakeLauncher) listForReal() ([]launcher.Kernel, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []launcher.Kernel
	for _, k := range f.kernels {
		all = append(all, k.Kernel)
		all[len(all)-1].Notes = k.Notes.Clone()
	}
	slices.SortFunc(all, func(a, b launcher.Kernel) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

func (f *fakeLauncher) Culled(context.Context) ([]launcher.Culled, error) {
	return f.culled, f.culledErr
}

func (f *fakeLauncher) Wait(ctx context.Context, id string, cond func(launcher.Kernel) bool) (launcher.Kernel, error) {
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		k, err := f.Kernel(ctx, id)
		if err != nil || cond(k) {
			return k, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return k, ctx.Err()
		}
	}
}

func (f *fakeLauncher) Claim(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claims = append(f.claims, id)
}

// claimed returns how often a kernel was claimed.
func (f *fakeLauncher) claimed(id string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(f.claims), func(c string) bool { return c != id }))
}

func (f *fakeLauncher) Revive(_ context.Context, id string) (launcher.Kernel, error) {
	f.mu.Lock()
	if k := f.kernels[id]; k.super != nil {
		defer f.mu.Unlock()
		return k.Kernel, nil
	}
	spec := f.kernels[id].SpecName
	f.reqs = append(f.reqs, launcher.Request{ID: id})
	f.mu.Unlock()
	f.add(id, spec, f.newState)
	return f.Kernel(context.Background(), id)
}

func (f *fakeLauncher) Restarting(_ context.Context, id string) (func(), error) {
	if f.restarting != nil {
		return f.restarting(id)
	}
	return func() {}, nil
}

func (f *fakeLauncher) Stop(ctx context.Context, id, reason string) error {
	f.mu.Lock()
	k, ok := f.kernels[id]
	f.mu.Unlock()
	if !ok {
		return launcher.ErrNotFound
	}
	if k.super != nil {
		k.super.close()
	}
	f.change(func() {
		delete(f.kernels, id)
		f.stops[id] = reason
		f.stopRequests[id] = launcher.RequestID(ctx)
	})
	return nil
}

func (f *fakeLauncher) UpdateNotes(
	_ context.Context, id string, change func(launcher.Notes) (launcher.Notes, error),
) (launcher.Notes, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok := f.kernels[id]
	if !ok {
		return launcher.Notes{}, launcher.ErrNotFound
	}
	next, err := change(k.Notes.Clone())
	if err == nil {
		k.Notes = next.Clone()
	}
	return next, err
}

func (f *fakeLauncher) Token(string) string { return f.token }

func (f *fakeLauncher) Measure() launcher.Measures {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.measures
	for _, k := range f.kernels {
		m.Kernels = append(slices.Clip(m.Kernels), k.Kernel)
	}
	return m
}

func (f *fakeLauncher) Dial(ctx context.Context, id string) (net.Conn, error) {
	if f.dial != nil {
		return f.dial(ctx, id)
	}
	f.mu.Lock()
	k, ok := f.kernels[id]
	f.dials++
	var now fakeKernel
	if ok {
		now = *k
	}
	f.mu.Unlock()
	switch {
	case !ok:
		return nil, launcher.ErrNotFound
	case now.super == nil && now.State == launcher.Starting:
		return nil, launcher.ErrNoSupervisor
	case now.super == nil:
		return nil, &launcher.GoneError{ID: id, Reason: now.Reason}
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", now.super.path)
}

func (f *fakeLauncher) Close() error { return nil }

// fakeSupervisor answers the routes of one kernel and keeps what it was sent.
type fakeSupervisor struct {
	t      testing.TB
	id     string
	path   string
	server *http.Server

	// Set before the first request.
	channels func(conn net.Conn, early io.Reader) // after the 101; default: echo

	mu      sync.Mutex
	seen    []string         // requests, each as one dump
	answer  http.HandlerFunc // instead of everything but channels
	upgrade http.HandlerFunc // instead of the whole handshake
	wg      sync.WaitGroup
}

func newFakeSupervisor(t testing.TB, id, path string) *fakeSupervisor {
	s := &fakeSupervisor{t: t, id: id, path: path}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s.server = &http.Server{Handler: http.HandlerFunc(s.serve), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	s.wg.Go(func() { _ = s.server.Serve(l) })
	return s
}

func (s *fakeSupervisor) close() {
	_ = s.server.Close()
	s.wg.Wait()
}

// answerWith replaces the answers to everything but channels; nil is what they are at first.
func (s *fakeSupervisor) answerWith(h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = h
}

// upgradeWith replaces the websocket's handshake and all that follows.
func (s *fakeSupervisor) upgradeWith(h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.upgrade = h
}

// sent returns all it was ever sent, as text.
func (s *fakeSupervisor) sent() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b bytes.Buffer
	for _, text := range s.seen {
		b.WriteString(text + "\n")
	}
	return b.String()
}

// requests returns the same, each by itself.
func (s *fakeSupervisor) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

func (s *fakeSupervisor) serve(w http.ResponseWriter, r *http.Request) {
	var dump bytes.Buffer
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(&dump, "%s %s host=%s\n", r.Method, r.URL, r.Host)
	_ = r.Header.Write(&dump)
	dump.Write(body)
	s.mu.Lock()
	s.seen = append(s.seen, dump.String())
	answer, upgrade := s.answer, s.upgrade
	s.mu.Unlock()

	base := "/api/kernels/" + s.id
	switch {
	case r.URL.Path == base+"/channels" && upgrade != nil:
		upgrade(w, r)
	case r.URL.Path == base+"/channels":
		s.accept(w, r)
	case answer != nil:
		answer(w, r)
	case r.Method == "POST" && r.URL.Path == base+"/interrupt":
		w.WriteHeader(http.StatusNoContent)
	case r.URL.Path == base || r.Method == "POST" && r.URL.Path == base+"/restart":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":%q,"name":"python3","last_activity":"2026-11-21T05:53:26.1Z","execution_state":"busy","connections":3}`, s.id)
	default:
		w.WriteHeader(http.StatusMisdirectedRequest)
	}
}

func (s *fakeSupervisor) accept(w http.ResponseWriter, r *http.Request) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	sum := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Set-Cookie: evil=1\r\nSec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
	if s.channels != nil {
		s.channels(conn, rw)
		return
	}
	_, _ = io.Copy(conn, rw)
}

// testGateway is a gateway on a real TCP port in front of a fake launcher.
type testGateway struct {
	*Gateway
	fake *fakeLauncher
	http *httptest.Server
	log  *syncBuffer
	t    testing.TB
}

func startGateway(t testing.TB, change func(*Options)) *testGateway {
	t.Helper()
	f := newFakeLauncher(t)
	logged := &syncBuffer{}
	o := Options{
		Launcher: f, Specs: testSpecs(t), Version: "1.2.3", Token: testToken, StartWait: 5 * time.Second,
		Log: slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&o)
	}
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	tg := &testGateway{Gateway: g, fake: f, log: logged, t: t}
	tg.http = httptest.NewUnstartedServer(g.Handler())
	tg.http.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	tg.http.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		g.Drain(ctx)
		tg.http.Close()
	})
	return tg
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// testSpecs gives python3 and r, read from a directory as the program does it.
func testSpecs(t testing.TB) Specs {
	t.Helper()
	return &specDir{specs: []kernelspecs.Spec{
		{Name: "python3", Dir: writeSpecDir(t), Argv: []string{"python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"},
			DisplayName: "Python 3", Language: "python", InterruptMode: "signal", Metadata: json.RawMessage(`{"debugger":true}`)},
		{Name: "r", Dir: t.TempDir(), DisplayName: "R", Language: "R", InterruptMode: "signal"},
	}}
}

type specDir struct{ specs []kernelspecs.Spec }

func (d *specDir) List() []kernelspecs.Spec { return d.specs }
func (d *specDir) Get(name string) (kernelspecs.Spec, bool) {
	for _, s := range d.specs {
		if s.Name == name {
			return s, true
		}
	}
	return kernelspecs.Spec{}, false
}

func writeSpecDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "python3")
	for name, text := range map[string]string{
		"python3/logo-svg.svg": "<svg/>", "python3/sub/a.txt": "a", "secret.txt": "outside",
	} {
		path := filepath.Join(filepath.Dir(dir), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// reply is an answer, read to its end.
type reply struct {
	*http.Response
	body string
}

// do sends one request with the token. Options change it before it goes out.
func (g *testGateway) do(method, path, body string, change ...func(*http.Request)) reply {
	g.t.Helper()
	r, err := http.NewRequest(method, g.http.URL+path, bytes.NewBufferString(body))
	if err != nil {
		g.t.Fatal(err)
	}
	r.Header.Set("Authorization", "token "+testToken)
	for _, f := range change {
		f(r)
	}
	resp, err := g.http.Client().Transport.RoundTrip(r)
	if err != nil {
		g.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return reply{resp, ""} // whatever comes then has no end
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return reply{resp, string(b)}
}

// want fails unless the answer has the status and, if text is not empty, contains it.
func (r reply) want(t testing.TB, status int, text string) reply {
	t.Helper()
	if r.StatusCode != status || !bytes.Contains([]byte(r.body), []byte(text)) {
		t.Errorf("%s %s: got %d %s, want %d with %q", r.Request.Method, r.Request.URL.Path, r.StatusCode, r.body, status, text)
	}
	if status >= 400 && r.Request.Method != "HEAD" {
		var e errorBody
		if err := json.Unmarshal([]byte(r.body), &e); err != nil || e.Reason == "" || e.Message == "" {
			t.Errorf("%s %s: error body %q is not {reason, message}", r.Request.Method, r.Request.URL.Path, r.body)
		}
	}
	return r
}

// decode reads the body's JSON.
func decode[T any](t testing.TB, r reply) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(r.body), &v); err != nil {
		t.Fatalf("%s: %v", r.body, err)
	}
	return v
}

// eventually waits for a condition that some other process or goroutine brings about.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	over := time.After(20 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("never happened: %s", what)
		}
	}
}
