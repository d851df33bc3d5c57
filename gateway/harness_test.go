package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
)

const (
	testToken = "canary-5f2b7c90d1"
	idA       = "0a1b2c3d-0000-4000-8000-00000000000a"
	idB       = "0a1b2c3d-0000-4000-8000-00000000000b"
	idUnknown = "0a1b2c3d-0000-4000-8000-0000000000ff"
)

// testGateway is a gateway on a real TCP port in front of a fake launcher.
type testGateway struct {
	*Gateway
	fake *fakeLauncher
	http *httptest.Server
	log  *transcript.Buffer
	t    testing.TB
}

func startGateway(t testing.TB, change func(*Options)) *testGateway {
	t.Helper()
	f := newFakeLauncher(t)
	logged := &transcript.Buffer{}
	o := Options{Version: "1.2.3", Token: testToken, Options: kernels.Options{
		Launcher: f, Specs: testSpecs(t), StartWait: 5 * time.Second,
		Log: slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}}
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

// runJobs runs the gateway's jobs until the test ends.
func (g *testGateway) runJobs() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { g.RunJobs(ctx) })
	g.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// testSpecs gives python3 and r, read from a directory as the program does it.
func testSpecs(t testing.TB) kernels.Specs {
	t.Helper()
	return &specDir{specs: []kernelspecs.Spec{
		{Name: "python3", Dir: writeSpecDir(t),
			Argv:        []string{"python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"},
			DisplayName: "Python 3", Language: "python", InterruptMode: "signal",
			Metadata: json.RawMessage(`{"debugger":true}`)},
		{Name: "r", Dir: t.TempDir(), DisplayName: "R", Language: "R", InterruptMode: "signal"},
	}}
}

type specDir struct {
	specs []kernelspecs.Spec
	users kernelspecs.Users
}

func (d *specDir) Users(string) kernelspecs.Users { return d.users }
func (d *specDir) List() []kernelspecs.Spec       { return d.specs }
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
	if resp.StatusCode == http.StatusSwitchingProtocols || resp.Header.Get("Content-Type") == "text/event-stream" {
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
		t.Errorf("%s %s: got %d %s, want %d with %q", r.Request.Method, r.Request.URL.Path, r.StatusCode, r.body, status,
			text)
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

// bareGateway returns a gateway that serves no requests.
func bareGateway(o kernels.Options) *Gateway {
	if o.Specs == nil {
		o.Specs = &specDir{}
	}
	served := kernels.New(o, nil)
	log := slog.New(slog.DiscardHandler)
	routes := &jobRoutes{manager: jobs.New(&launchertest.MemoryRecords{}, nil, jobs.Policy{}, log)}
	return &Gateway{opts: Options{Options: o}, kernels: served, models: &models{kernels: served, jobs: routes}}
}
