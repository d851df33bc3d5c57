//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// secret is the token. It resembles nothing else that is sent, so a search finds it only where it leaked.
const secret = "e2e-7f3b9c5d1a8e4f60"

// installed holds the folders of hack/env/setup and of the programs under test.
type installed struct {
	dir        string // the folder of hack/env/setup
	bin        string // ekg, ekg-supervisor and the fake kernel, with the race detector
	artifacts  string // logs and screenshots, kept after the run
	repository string
}

// install runs hack/env/setup and builds the programs, once.
var install = sync.OnceValues(func() (installed, error) {
	repository, err := filepath.Abs("..")
	if err != nil {
		return installed{}, err
	}
	in := installed{
		repository: repository,
		artifacts:  filepath.Join(repository, "artifacts"),
		bin:        filepath.Join(repository, "artifacts", "bin"),
	}
	if err := os.MkdirAll(in.bin, 0o755); err != nil {
		return in, err
	}
	setup := exec.Command(filepath.Join(repository, "hack/env/setup"))
	setup.Stderr = os.Stderr
	out, err := setup.Output()
	if err != nil {
		return in, fmt.Errorf("hack/env/setup: %w", err)
	}
	in.dir = strings.TrimSpace(string(out))
	if given := os.Getenv("EKG_E2E_BIN"); given != "" {
		in.bin = given // programs built in another way, for example as in a release
		return in, nil
	}
	build := exec.Command("go", "build", "-race", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", in.bin+"/", "./cmd/ekg",
		"./cmd/ekg-supervisor", "./cmd/ekg-gpu", "./cmd/ekg-gpu-agent", "./launcher/launchertest/kernel")
	build.Dir = repository
	if out, err := build.CombinedOutput(); err != nil {
		return in, fmt.Errorf("go build: %w\n%s", err, out)
	}
	return in, nil
})

// theInstallation returns the result of install.
func theInstallation(t *testing.T) installed {
	t.Helper()
	in, err := install()
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// gateway is one `ekg serve` of a test, with its own state directory, home and kernelspecs.
type gateway struct {
	t     *testing.T
	in    installed
	dir   string
	addr  string
	url   string
	token string
	args  []string
	vars  []string // added to its environment
	finds []string // added to the environment of commands that are its clients
	log   string   // file
	cmd   *exec.Cmd
	done  chan error // receives the result of Wait
}

// newGateway prepares a gateway and starts it. At the end of the test it stops the gateway and its kernels. A race that
// its programs found fails the test.
func newGateway(t *testing.T, args ...string) *gateway {
	t.Helper()
	return newGatewayNamed(t, "", args...)
}

// newGatewayWithout starts a gateway that requires no token.
func newGatewayWithout(t *testing.T) *gateway {
	t.Helper()
	g := prepare(t, "", "--no-auth")
	g.token = ""
	g.start()
	return g
}

// newGatewayNamed is newGateway for a test with several gateways. The name distinguishes their logs.
func newGatewayNamed(t *testing.T, title string, args ...string) *gateway {
	t.Helper()
	g := prepare(t, title, args...)
	g.start()
	return g
}

// prepare makes a gateway without starting its process.
func prepare(t *testing.T, title string, args ...string) *gateway {
	t.Helper()
	in := theInstallation(t)
	dir, err := os.MkdirTemp("", "ekg-e2e-") // short, because it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, in: in, dir: dir, addr: freeAddress(t, "127.0.0.1"), token: secret, args: args}
	g.url = "http://" + g.addr
	name := strings.NewReplacer("/", "-", " ", "-").Replace(t.Name() + title)
	g.log = filepath.Join(in.artifacts, name+".log")
	if err := os.WriteFile(g.log, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"home", "run", "specs"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	g.spec("missing-program", "/opt/no-such-program", "{connection_file}")
	g.spec("exits-at-once", "/bin/sh", "-c", "echo these are my last words >&2; exit 3")
	g.specWith("fake", map[string]any{"env": endsAtOnce}, filepath.Join(in.bin, "kernel"), "-f", "{connection_file}")
	t.Cleanup(g.cleanUp)
	return g
}

// endsAtOnce is a variable of kernels that are programs with the race detector. Without it, each of them would wait for
// a second before it ends.
var endsAtOnce = map[string]string{"GORACE": "atexit_sleep_ms=0"}

// spec writes a kernelspec.
func (g *gateway) spec(name string, argv ...string) {
	g.t.Helper()
	g.specWith(name, nil, argv...)
}

// specWith writes a kernelspec with further keys.
func (g *gateway) specWith(name string, more map[string]any, argv ...string) {
	g.t.Helper()
	spec := map[string]any{"argv": argv, "display_name": name, "language": "python"}
	maps.Copy(spec, more)
	b, err := json.Marshal(spec)
	if err != nil {
		g.t.Fatal(err)
	}
	dir := filepath.Join(g.dir, "specs", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		g.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kernel.json"), b, 0o644); err != nil {
		g.t.Fatal(err)
	}
}

// moveTo makes a gateway that is not running yet listen on another loopback address. Outgoing connections take free
// ports of 127.0.0.1. On other addresses a port stays free while the gateway is down.
func (g *gateway) moveTo(ip string) {
	g.t.Helper()
	g.addr = freeAddress(g.t, ip)
	g.url = "http://" + g.addr
}

func freeAddress(t *testing.T, ip string) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// env returns the environment of ekg and of the clients' programs. It hides the machine's own Jupyter.
func (g *gateway) env(more ...string) []string {
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(g.dir, "home"), "LANG=C.UTF-8", "TMPDIR=" + os.TempDir(),
		"GORACE=halt_on_error=0 atexit_sleep_ms=0 log_path=" + filepath.Join(g.dir, "race"),
		"IPYTHONDIR=" + filepath.Join(g.dir, "ipython"),
	}, more...)
}

// start starts the gateway and waits until it is ready. Any goroutine may call it.
func (g *gateway) start() {
	if err := g.tryStart(); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) tryStart() error {
	args := []string{
		"serve", "--listen", g.addr,
		"--state-dir", filepath.Join(g.dir, "state"),
		"--runtime-dir", filepath.Join(g.dir, "run"),
		"--kernelspec-dir", filepath.Join(g.in.dir, "share/jupyter/kernels"),
		"--kernelspec-dir", filepath.Join(g.dir, "specs"),
	}
	args = append(args, g.args...)
	if g.token != "" {
		args = append(args, "--token", g.token)
	}
	cmd := exec.Command(filepath.Join(g.in.bin, "ekg"), args...)
	cmd.Env = g.env(g.vars...)
	log, err := os.OpenFile(g.log, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	g.cmd, g.done = cmd, done
	return poll(20*time.Second, "the gateway is ready", func() error { return answers200(g.url + "/readyz") })
}

// answers200 returns an error unless a GET request without a token is answered with 200.
func answers200(url string) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return nil
}

// signal sends the gateway a signal and waits for its end.
func (g *gateway) signal(sig syscall.Signal) error {
	if err := g.cmd.Process.Signal(sig); err != nil {
		return err
	}
	select {
	case <-g.done: //nolint:errcheck // only the end matters here
		g.done <- nil // for a second call, and for cleanUp
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("the gateway lives 30 s after %v", sig)
	}
}

func (g *gateway) kill() {
	g.t.Helper()
	if err := g.signal(syscall.SIGKILL); err != nil {
		g.t.Fatal(err)
	}
}

// cleanUp stops the gateway. Then it kills, by process id, all processes of its state directory that are left.
func (g *gateway) cleanUp() {
	if g.cmd == nil {
		return // it never started
	}
	_ = g.cmd.Process.Signal(syscall.SIGTERM) // it may already have ended
	select {
	case <-g.done: //nolint:errcheck // only the end matters here
	case <-time.After(20 * time.Second):
		g.t.Error("the gateway does not end after SIGTERM")
		_ = g.cmd.Process.Kill() // the second way to the same end
		<-g.done                 //nolint:errcheck // only the end matters here
	}
	for _, p := range processes(g.t, func(p process) bool { return strings.Contains(p.cmdline, g.dir) }) {
		_ = syscall.Kill(p.pid, syscall.SIGKILL) // it may have ended by itself
	}
	removeGroups(g.t, filepath.Join(g.dir, "state"))
	races, err := filepath.Glob(filepath.Join(g.dir, "race*"))
	if err != nil {
		g.t.Error(err)
	}
	logs, err := filepath.Glob(filepath.Join(g.dir, "state/*/*/supervisor.log"))
	if err != nil {
		g.t.Error(err)
	}
	for _, f := range append(append(races, logs...), g.log) {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte("DATA RACE")) {
			g.t.Errorf("%s:\n%.6000s", f, b)
		}
	}
	if g.t.Failed() {
		g.t.Logf("log of ekg: %s", g.log)
	}
	if err := os.RemoveAll(g.dir); err != nil {
		g.t.Errorf("remove the gateway's folder: %v", err)
	}
}

// poll calls ask until it returns nil, at most every 20 ms. After limit it returns the last error.
func poll(limit time.Duration, what string, ask func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit) // also used after the test's own context has ended
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return fmt.Errorf("not within %v: %s: %w", limit, what, err)
		}
	}
}

// eventually is poll for a test, which fails after limit.
func eventually(t *testing.T, limit time.Duration, what string, ask func() error) {
	t.Helper()
	if err := poll(limit, what, ask); err != nil {
		t.Fatal(err)
	}
}

func (g *gateway) eventually(limit time.Duration, what string, ask func() error) {
	g.t.Helper()
	eventually(g.t, limit, what, ask)
}

// scrape returns the metrics that a gateway serves at this address.
func scrape(t *testing.T, address string) string {
	t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// model is Jupyter's kernel model.
type model struct {
	ID             string `json:"id"`
	Name           string `json:"name"`
	LastActivity   string `json:"last_activity"`
	ExecutionState string `json:"execution_state"`
	Connections    int    `json:"connections"`
	Reason         string `json:"reason"`
}

// ask sends one request and returns status and body.
func (g *gateway) ask(method, path, body string) (int, []byte) {
	g.t.Helper()
	status, b, err := g.tryAsk(method, path, body)
	if err != nil {
		g.t.Fatal(err)
	}
	return status, b
}

func (g *gateway) tryAsk(method, path, body string) (int, []byte, error) {
	req, err := http.NewRequest(method, g.url+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "token "+g.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if resp.StatusCode >= 400 {
		b = bytes.ReplaceAll(b, []byte(`\n`), []byte(" ")) // messages have line breaks, which tests do not care about
	}
	return resp.StatusCode, b, err
}

// want sends a request. The answer must have this status, and is decoded into out unless out is nil.
func (g *gateway) want(status int, method, path, body string, out any) {
	g.t.Helper()
	got, b := g.ask(method, path, body)
	if got != status {
		g.t.Fatalf("%s %s: got %d, want %d: %s", method, path, got, status, b)
	}
	if out == nil {
		return
	}
	if err := json.Unmarshal(b, out); err != nil {
		g.t.Fatalf("%s %s: %v in %s", method, path, err, b)
	}
}

// kernel starts a kernel and returns its id.
func (g *gateway) kernel(spec string) string {
	g.t.Helper()
	var m model
	g.want(201, "POST", "/api/kernels", fmt.Sprintf(`{"name": %q}`, spec), &m)
	if m.Name != spec {
		g.t.Fatalf("the new kernel has the kernelspec %q, want %q", m.Name, spec)
	}
	return m.ID
}

// state waits until the kernel is in this state, and returns its model.
func (g *gateway) state(id, want string, limit time.Duration) model {
	g.t.Helper()
	var m model
	g.eventually(limit, "kernel "+id+" is "+want, func() error {
		status, b, err := g.tryAsk("GET", "/api/kernels/"+id, "")
		if err != nil {
			return err
		}
		m = model{}
		if err := json.Unmarshal(b, &m); err != nil {
			return err
		}
		if m.ExecutionState != want {
			return fmt.Errorf("%d %s", status, b)
		}
		return nil
	})
	return m
}
