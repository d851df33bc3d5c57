package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// pod is a supervisor and a child. Each is a process of this test's program, like the containers of a pod.
type pod struct {
	*running
	dir        string
	supervisor *podProcess
	child      *podProcess
	childEnv   []string
	childUser  *syscall.Credential
	program    string // of the child
}

// podProcess is a process that a test starts and kills.
type podProcess struct {
	cmd  *exec.Cmd
	out  *transcript.Buffer
	done chan struct{}
}

// newPod prepares a pod without starting it.
func newPod(t *testing.T, change func(*api.Config)) *pod {
	t.Helper()
	dir, err := os.MkdirTemp("", "ekg-p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, d := range []string{"secret", "spill", "home"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{dir, filepath.Join(dir, "home")} {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"tls-seed": strings.Repeat("s", 32), "token": strings.Repeat("t", 32),
		"kernel-key": strings.Repeat("k", 32), "identity": strings.Repeat("i", 32)} {
		if err := os.WriteFile(filepath.Join(dir, "secret", name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &pod{running: &running{t: t, socket: filepath.Join(dir, "s")}, dir: dir, program: os.Args[0]}
	p.cfg = api.Config{
		Protocol: api.ProtocolVersion, KernelID: uuid.NewString(), SpecName: "fake", Argv: fakeKernelArgv(),
		Env:           map[string]string{fakeKernelVariable: "1", "GORACE": "atexit_sleep_ms=0"},
		InterruptMode: "signal", Listen: "unix:" + p.socket, Transport: "tcp", LogLimit: 64 << 20,
		SpillDir: filepath.Join(dir, "spill"), StopGrace: 2 * time.Second, DeadLinger: time.Minute, RestartLimit: 3,
		ChildSocket: filepath.Join(dir, "run", "child.sock"), SecretDir: filepath.Join(dir, "secret"),
		TerminationFile: filepath.Join(dir, "termination"), TerminationGrace: 30 * time.Second,
	}
	if change != nil {
		change(&p.cfg)
	}
	return p
}

// startPod starts both containers.
func startPod(t *testing.T, change func(*api.Config)) *pod {
	t.Helper()
	p := newPod(t, change)
	p.startSupervisor()
	p.startChild()
	return p
}

func (p *pod) start(program string, user *syscall.Credential, env ...string) *podProcess {
	p.t.Helper()
	c := &podProcess{cmd: exec.Command(program), out: new(transcript.Buffer), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.out
	c.cmd.WaitDelay = time.Second
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: user}
	if err := c.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		_ = c.cmd.Wait() // seen in ProcessState
	}()
	p.t.Cleanup(func() {
		c.kill()
		if p.t.Failed() {
			p.t.Logf("%s wrote:\n%s", env[0][:20], c.out)
		}
	})
	return c
}

// kill ends the container as the system does when its memory runs out or its grace is over.
func (c *podProcess) kill() {
	c.cmd.Process.Kill() //nolint:errcheck // it has ended
	<-c.done
}

// exitCode waits for the end of the process.
func (p *pod) exitCode(c *podProcess) int {
	p.t.Helper()
	select {
	case <-c.done:
	case <-time.After(testLimit):
		p.t.Fatal("the container does not end")
	}
	return c.cmd.ProcessState.ExitCode()
}

func (p *pod) startSupervisor() {
	p.t.Helper()
	b, err := json.Marshal(p.cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.supervisor = p.start(os.Args[0], nil, podVariable+"="+string(b))
	p.until("listening", func(api.Status) bool { return true })
}

func (p *pod) startChild() {
	p.t.Helper()
	p.child = p.start(p.program, p.childUser, append([]string{childVariable + "=" + p.cfg.ChildSocket,
		homeVariable + "=" + filepath.Join(p.dir, "home")}, p.childEnv...)...)
}

func (p *pod) client() *api.Client {
	return &api.Client{KernelID: p.cfg.KernelID, Token: strings.Repeat("t", 32),
		Dial: func(ctx context.Context) (net.Conn, error) { return p.dialer()(ctx, "", "") }}
}

// until waits until cond holds for the status.
func (p *pod) until(what string, cond func(api.Status) bool) api.Status {
	p.t.Helper()
	deadline := time.Now().Add(testLimit)
	var last, found api.Status
	for found.Protocol == 0 {
		ctx, cancel := context.WithDeadline(p.t.Context(), deadline)
		err := p.client().Watch(ctx, func(st api.Status) {
			if last = st; cond(st) && found.Protocol == 0 {
				found = st
				cancel()
			}
		})
		cancel()
		if time.Now().After(deadline) {
			p.t.Fatalf("never %s: %+v, %v", what, last, err)
		}
		if found.Protocol == 0 {
			<-time.After(5 * time.Millisecond)
		}
	}
	return found
}

func (p *pod) ready() *pod {
	p.t.Helper()
	p.until("idle", func(st api.Status) bool { return st.State == api.Idle })
	return p
}

// attach is dial with the token.
func (p *pod) attach(session string) *client {
	p.t.Helper()
	return p.dial(dialOption{session: session, v1: true,
		header: map[string][]string{"Authorization": {"Bearer " + strings.Repeat("t", 32)},
			"User-Agent": {"test"}}})
}

func (p *pod) ending() api.Ending {
	p.t.Helper()
	var e api.Ending
	b, err := os.ReadFile(p.cfg.TerminationFile)
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return e
}

func (p *pod) result(c *client, code string) string {
	p.t.Helper()
	id := c.execute(code)
	all := c.result(id)
	g, ok := find(all, "execute_result", id)
	if !ok {
		return output(all, id)
	}
	return displayed(g).Data["text/plain"]
}

// display is the content of a display_data message.
type display struct {
	Data      map[string]string `json:"data"`
	Transient map[string]string `json:"transient"`
}

func displayed(g got) display {
	var d display
	json.Unmarshal(g.Content, &d) //nolint:errcheck // it is empty then
	return d
}

// ask sends a request with the token and returns the answer's status and body. The body of an error begins with the
// status.
func (p *pod) ask(method, path, body string) (int, string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.url(path), strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.Repeat("t", 32))
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return p.client().Dial(ctx) }}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Error(err)
	}
	if resp.StatusCode >= 300 {
		return resp.StatusCode, fmt.Sprintf("%d: %s", resp.StatusCode, b)
	}
	return resp.StatusCode, string(b)
}
