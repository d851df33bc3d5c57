package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// unexpected has the calls that panic.
type unexpected struct{ launcher.Launcher }

// fakeLauncher has the kernels that a test gives it, and records. An unexpected call panics.
type fakeLauncher struct {
	unexpected
	launchertest.MemoryRecords
	kernels []launcher.Kernel
	stop    func(ctx context.Context, id string) error
	dial    func(ctx context.Context) (net.Conn, error)
	close   func() error
}

func (f *fakeLauncher) Kernels(context.Context) ([]launcher.Kernel, error) { return f.kernels, nil }

func (f *fakeLauncher) KernelsFor(context.Context, string, []string) ([]launcher.Kernel, error) {
	return f.kernels, nil
}

func (f *fakeLauncher) Kernel(_ context.Context, id string) (launcher.Kernel, error) {
	for _, k := range f.kernels {
		if k.ID == id {
			return k, nil
		}
	}
	return launcher.Kernel{}, launcher.ErrNotFound
}

func (f *fakeLauncher) Claim(string) {}

func (f *fakeLauncher) Measure() launcher.Measures { return launcher.Measures{Kernels: f.kernels} }

func (f *fakeLauncher) Token(string) string { return "" }

func (f *fakeLauncher) Dial(ctx context.Context, _ string) (net.Conn, error) { return f.dial(ctx) }

func (f *fakeLauncher) Stop(ctx context.Context, id, _ string) error { return f.stop(ctx, id) }

func (f *fakeLauncher) Close() error {
	if f.close != nil {
		return f.close()
	}
	return nil
}

// opensLauncher returns an opener that returns a launcher or an error.
func opensLauncher(l launcher.Launcher, err error) launcherOpener {
	return func(
		context.Context, *settings.Settings, launcher.Limits, *slog.Logger, launcher.Observer,
	) (launcher.Launcher, error) {
		return l, err
	}
}

// running is a server in this process.
type running struct {
	t      *testing.T
	url    *url.URL
	stdout *transcript.Buffer
	log    *transcript.Buffer
	end    context.CancelFunc
	ended  chan error
}

// start runs a server with a fake launcher, on a free port unless the flags say otherwise.
func start(t *testing.T, fake *fakeLauncher, flags map[string][]string) *running {
	t.Helper()
	all := map[string][]string{"listen": {"127.0.0.1:0"}, "state-dir": {t.TempDir()}}
	for name, texts := range flags {
		all[name] = texts
	}
	s, err := settings.Load(sourcesOf(all, nil))
	if err != nil {
		t.Fatal(err)
	}
	r := &running{t: t, stdout: &transcript.Buffer{}, log: &transcript.Buffer{}, ended: make(chan error, 1)}
	v := newServer(s, r.stdout, slog.New(slog.NewTextHandler(r.log, nil)))
	v.openLauncher = opensLauncher(fake, nil)
	ready := make(chan string, 1)
	v.ready = func(u string) { ready <- u }
	ctx, cancel := context.WithCancel(t.Context())
	r.end = cancel
	go func() { r.ended <- v.Run(ctx) }()
	t.Cleanup(cancel)
	select {
	case u := <-ready:
		if strings.HasPrefix(u, "http+unix:") {
			u = "http://gateway/" // net/url accepts no slashes in a host
		}
		if r.url, err = url.Parse(u); err != nil {
			t.Fatal(err)
		}
	case err := <-r.ended:
		t.Fatalf("did not start: %v", err)
	case <-time.After(10 * time.Second):
		t.Fatal("is not ready after 10 s")
	}
	return r
}

// TestServe_FileBeforeReady: other commands of this user find a gateway as soon as /readyz says that it is ready.
func TestServe_FileBeforeReady(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := settings.Load(sourcesOf(map[string][]string{"listen": {address}, "state-dir": {t.TempDir()}}, nil))
	if err != nil {
		t.Fatal(err)
	}
	v := newServer(s, &transcript.Buffer{}, slog.New(slog.DiscardHandler))
	v.openLauncher = opensLauncher(&fakeLauncher{}, nil)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	for isReady := false; !isReady; {
		select {
		case err := <-ended:
			t.Fatalf("did not start: %v", err)
		default:
		}
		resp, err := http.Get("http://" + address + "/readyz")
		if err == nil {
			isReady = resp.StatusCode == http.StatusOK
			_ = resp.Body.Close() // nothing of it is read
		}
	}
	if v.file.Load() == nil {
		t.Error("it is ready, and has no file yet")
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// stop ends the server and returns the result of Run.
func (r *running) stop() error {
	r.t.Helper()
	r.end()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(30 * time.Second):
		r.t.Fatal("has not ended after 30 s")
		return nil
	}
}

// get sends a request on a connection that does not outlive it.
func (r *running) get(path, token string, transport *http.Transport) (int, string) {
	r.t.Helper()
	transport.DisableKeepAlives = true
	u := url.URL{Scheme: r.url.Scheme, Host: r.url.Host, Path: path}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, u.String(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "token "+token)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Error(err)
	}
	return resp.StatusCode, string(body)
}

func TestServer_Run(t *testing.T) {
	defer goleak.VerifyNone(t)
	state := t.TempDir()
	closed := false
	r := start(t, &fakeLauncher{close: func() error { closed = true; return nil }},
		map[string][]string{"state-dir": {state}, "base-url": {"/lab/"}})
	token := r.url.Query().Get("token")
	want := fmt.Sprintf("ekg is ready at http://%s/lab/?token=%s\n", r.url.Host, token)
	if r.stdout.String() != want || len(token) < 32 {
		t.Errorf("printed %q, want %q", r.stdout, want)
	}
	for _, tt := range []struct {
		path, token string
		want        int
	}{
		{"/lab/readyz", token, 200},
		{"/lab/api/kernels", token, 200},
		{"/lab/api/kernels", "", 403},
		{"/lab/api/kernels", "x" + token[1:], 403},
	} {
		if code, body := r.get(tt.path, tt.token, &http.Transport{}); code != tt.want {
			t.Errorf("%s with token %q: got %d %s, want %d", tt.path, tt.token, code, body, tt.want)
		}
	}
	if _, body := r.get("/lab/api", "", &http.Transport{}); !strings.Contains(body, `"version":"`+version+`"`) {
		t.Errorf("/api does not show the version %q: %s", version, body)
	}
	if err := r.stop(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if !closed {
		t.Error("the launcher was not closed")
	}
	if strings.Contains(r.log.String(), token) {
		t.Errorf("the token is in the log:\n%s", r.log)
	}
	// The next gateway uses the same token.
	r = start(t, &fakeLauncher{}, map[string][]string{"state-dir": {state}})
	if got := r.url.Query().Get("token"); got != token {
		t.Errorf("the next gateway has another token")
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// TestServer_GivenToken: a token that an operator has chosen is not printed, since output may be stored in unsafe
// places.
func TestServer_GivenToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("canary\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flags := range []map[string][]string{{"token": {"canary"}}, {"token-file": {file}}} {
		r := start(t, &fakeLauncher{}, flags)
		if code, _ := r.get("/api/kernels", "canary", &http.Transport{}); code != 200 {
			t.Errorf("%v: got %d", flags, code)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if strings.Contains(r.stdout.String()+r.log.String(), "canary") ||
			!strings.HasSuffix(r.stdout.String(), "/?token=...\n") {
			t.Errorf("%v: printed %q and logged\n%s", flags, r.stdout, r.log)
		}
	}
	r := start(t, &fakeLauncher{}, map[string][]string{"no-auth": {"true"}})
	if code, _ := r.get("/api/kernels", "", &http.Transport{}); code != 200 {
		t.Errorf("without authentication: got %d", code)
	}
	if err := r.stop(); err != nil || strings.Contains(r.stdout.String(), "token") {
		t.Errorf("got %v, printed %q", err, r.stdout)
	}
}

// TestServer_DrainDelay: a load balancer sees that the gateway is ending while it is still served.
func TestServer_DrainDelay(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
	r := start(t, &fakeLauncher{}, map[string][]string{"no-auth": {"true"}})
	r.end()
	deadline := time.After(5 * time.Second)
	for {
		code, body := r.get("/readyz", "", &http.Transport{})
		if code == http.StatusServiceUnavailable {
			break
		}
		if code != http.StatusOK {
			t.Fatalf("got %d %s before /readyz failed", code, body)
		}
		select {
		case <-deadline:
			t.Fatal("/readyz does not fail")
		default:
		}
	}
	if code, body := r.get("/api/kernels", "", &http.Transport{}); code != http.StatusOK {
		t.Errorf("in the delay: got %d %s", code, body)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if code, _ := r.get("/readyz", "", &http.Transport{}); code != 0 {
		t.Errorf("after the end: got %d", code)
	}
}

// TestServer_StopKernels: with --stop-kernels-on-exit all kernels are stopped at the same time. One that fails to stop
// does not delay the others. Without the flag all kernels go on.
func TestServer_StopKernels(t *testing.T) {
	const n = 40 // more than are stopped at the same time
	fake := &fakeLauncher{}
	for i := range n {
		fake.kernels = append(fake.kernels, launcher.Kernel{ID: fmt.Sprintf("%08x-0000-4000-8000-000000000000", i)})
	}
	var mu sync.Mutex
	stopped := map[string]bool{}
	together := make(chan struct{})
	fake.stop = func(ctx context.Context, id string) error {
		mu.Lock()
		stopped[id] = true
		if len(stopped) == stopAtOnce {
			close(together)
		}
		mu.Unlock()
		// A sequential stop would wait here until ctx ends.
		select {
		case <-together:
		case <-ctx.Done():
			return ctx.Err()
		}
		switch id {
		case fake.kernels[0].ID:
			return errors.New("resists")
		case fake.kernels[1].ID:
			return &launcher.GoneError{ID: id, Reason: "has ended meanwhile"}
		}
		return nil
	}
	r := start(t, fake, nil)
	if err := r.stop(); err != nil || len(stopped) != 0 {
		t.Errorf("without the flag: %d kernels stopped, %v", len(stopped), err)
	}
	r = start(t, fake, map[string][]string{"stop-kernels-on-exit": {"true"}})
	err := r.stop()
	if want := "ending kernels: kernel 00000000-0000-4000-8000-000000000000: resists"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if len(stopped) != n {
		t.Errorf("%d of %d kernels were stopped", len(stopped), n)
	}
}

// TestServer_FailedStart: if a step of the start fails, all earlier steps are undone.
func TestServer_FailedStart(t *testing.T) {
	defer goleak.VerifyNone(t)
	state := t.TempDir()
	if err := os.WriteFile(settings.TokenPath(state), []byte("two words\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	opened := opensLauncher(&fakeLauncher{}, nil)
	tests := []struct {
		name  string
		flags map[string][]string
		open  launcherOpener
		want  string
	}{
		{"port taken", map[string][]string{"listen": {busy.Addr().String()}}, opened,
			fmt.Sprintf("--listen: listen tcp %s: bind: address already in use", busy.Addr())},
		{"no certificate", map[string][]string{"tls-cert": {"/nope"}, "tls-key": {"/nope"}}, opened,
			"--tls-cert: open /nope: no such file or directory"},
		{"no launcher", nil, opensLauncher(nil, errors.New("no")), "no"},
		{"no token", map[string][]string{"state-dir": {state}}, opened,
			"--state-dir: " + settings.TokenPath(state) + " does not hold exactly one word"},
		{"no token file", map[string][]string{"token-file": {"/nope"}}, opened,
			"--token-file: open /nope: no such file or directory"},
		{"no folder of jobs", map[string][]string{"jobs-dir": {"/dev/null"}}, opened,
			"--jobs-dir: the folder of jobs: mkdir /dev/null: not a directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			flags := map[string][]string{"listen": {"127.0.0.1:0"}, "state-dir": {t.TempDir()}}
			for name, texts := range tt.flags {
				flags[name] = texts
			}
			s, err := settings.Load(sourcesOf(flags, nil))
			if err != nil {
				t.Fatal(err)
			}
			v := newServer(s, io.Discard, discard)
			v.openLauncher = tt.open
			if err := v.Run(t.Context()); err == nil || err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

// TestServer_EndsLogs: a gateway that ends does not wait for clients that follow a log.
func TestServer_EndsLogs(t *testing.T) {
	dir, err := os.MkdirTemp("", "ekg") // t.TempDir's paths are too long
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	supervisor := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"number":1,"header":{"msg_type":"stream"},"content":{"text":"a"}}`+"\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})}
	done := make(chan error, 1)
	go func() { done <- supervisor.Serve(l) }()
	defer func() {
		_ = supervisor.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	fake := &fakeLauncher{
		kernels: []launcher.Kernel{{ID: kernelF, State: api.Idle}},
		dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", l.Addr().String())
		},
	}
	r := start(t, fake, map[string][]string{"no-auth": {"true"}})
	plain := &http.Transport{}
	defer plain.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		r.url.JoinPath("api/kernels/", kernelF, "log").String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := plain.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("got %v, %v", resp, err)
	}
	defer func() { _ = resp.Body.Close() }()
	began := time.Now()
	if err := r.stop(); err != nil || time.Since(began) > finishRequests/2 {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the log ended with %v", err)
	}
}
