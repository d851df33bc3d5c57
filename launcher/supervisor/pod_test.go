package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// pod is a supervisor and a child, each a process of this test's program, as the containers of a pod are.
type pod struct {
	*running
	dir        string
	supervisor *podProcess
	child      *podProcess
	childEnv   []string
	childUser  *syscall.Credential
	program    string // of the child
}

// podProcess is a process that a test starts, kills and starts again.
type podProcess struct {
	cmd  *exec.Cmd
	out  *podOutput
	done chan struct{}
}

// podOutput is what a process has written, safe to be read while it writes.
type podOutput struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *podOutput) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *podOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// newPod prepares a pod; nothing runs yet.
func newPod(t *testing.T, change func(*Config)) *pod {
	t.Helper()
	dir, err := os.MkdirTemp("", "ekg-p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
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
	p.cfg = Config{
		Protocol: ProtocolVersion, KernelID: testKernelID, SpecName: "fake", Argv: fakeKernelArgv(),
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
func startPod(t *testing.T, change func(*Config)) *pod {
	t.Helper()
	p := newPod(t, change)
	p.startSupervisor()
	p.startChild()
	return p
}

func (p *pod) start(program string, user *syscall.Credential, env ...string) *podProcess {
	p.t.Helper()
	c := &podProcess{cmd: exec.Command(program), out: new(podOutput), done: make(chan struct{})}
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

// kill is what happens when a container's memory runs out, or the kubelet loses patience.
func (c *podProcess) kill() {
	c.cmd.Process.Kill() //nolint:errcheck // it has ended
	<-c.done
}

// exitCode waits for the end.
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
	p.until("listening", func(Status) bool { return true })
}

func (p *pod) startChild() {
	p.t.Helper()
	p.child = p.start(p.program, p.childUser, append([]string{childVariable + "=" + p.cfg.ChildSocket,
		homeVariable + "=" + filepath.Join(p.dir, "home")}, p.childEnv...)...)
}

func (p *pod) client() *Client {
	return &Client{KernelID: testKernelID, Token: strings.Repeat("t", 32),
		Dial: func(ctx context.Context) (net.Conn, error) { return p.dialer()(ctx, "", "") }}
}

// until waits for the status stream to show what cond wants.
func (p *pod) until(what string, cond func(Status) bool) Status {
	p.t.Helper()
	deadline := time.Now().Add(testLimit)
	var last, found Status
	for found.Protocol == 0 {
		ctx, cancel := context.WithDeadline(p.t.Context(), deadline)
		err := p.client().Watch(ctx, func(st Status) {
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
	p.until("idle", func(st Status) bool { return st.State == stateIdle })
	return p
}

// attach dials as dial does, with the token.
func (p *pod) attach(session string) *client {
	p.t.Helper()
	return p.dial(dialOption{session: session, v1: true, header: map[string][]string{"Authorization": {"Bearer " + strings.Repeat("t", 32)},
		"User-Agent": {"test"}}})
}

func (p *pod) ending() Ending {
	p.t.Helper()
	var e Ending
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

// display is the content of a message that shows something.
type display struct {
	Data      map[string]string `json:"data"`
	Transient map[string]string `json:"transient"`
}

func displayed(g got) display {
	var d display
	json.Unmarshal(g.Content, &d) //nolint:errcheck // it is empty then
	return d
}

func TestPod_Crash(t *testing.T) {
	p := startPod(t, nil).ready()
	c := p.attach("ann")
	pid := p.result(c, "pid")
	p.result(c, "complain last words")
	id := c.execute("exit 3")
	all := c.result(id)
	if got := output(all, id); !strings.Contains(got, "exit code 3: last words") {
		t.Errorf("the cell says %q", got)
	}
	p.until("idle again", func(st Status) bool { return st.State == stateIdle && st.Epoch == 2 })
	if again := p.result(c, "pid"); again == pid || again == "" {
		t.Errorf("pid is %s, was %s", again, pid)
	}
	if !strings.Contains(p.child.out.String(), "last words\n") {
		t.Errorf("the container's log has not what the kernel wrote: %s", p.child.out)
	}
	select {
	case <-p.child.done:
		t.Error("the child has ended")
	default:
	}
}

func TestPod_Interrupt(t *testing.T) {
	p := startPod(t, nil).ready()
	c := p.attach("ann")
	id := c.execute("sleep 1h")
	c.running(id)
	if status, body := p.ask("POST", "/interrupt", ""); status != 204 {
		t.Fatalf("%d %s", status, body)
	}
	if g, ok := find(c.result(id), "error", id); !ok || wire.StringField(g.Content, "ename") != "KeyboardInterrupt" {
		t.Errorf("got %s", g.Content)
	}
	if status, body := p.ask("POST", "/restart", ""); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	p.until("second life", func(st Status) bool { return st.State == stateIdle && st.Epoch == 2 })
}

// ask is request with the token.
func (p *pod) ask(method, path, body string) (int, string) {
	p.t.Helper()
	conn, err := p.client().do(p.t.Context(), method, path, []byte(body), 0)
	if err != nil {
		return 0, err.Error()
	}
	defer conn.close()
	b := new(bytes.Buffer)
	_, err = b.ReadFrom(conn.body)
	if err != nil {
		p.t.Error(err)
	}
	if method == "POST" && path == "/restart" || method == "GET" {
		return 200, b.String()
	}
	return 204, b.String()
}

// TestPod_containerKilled: everything in the kernel's container dies at once. Log, websocket and reason survive, and the
// kernel is started in the container that comes next.
func TestPod_containerKilled(t *testing.T) {
	for name, tc := range map[string]struct {
		told string
		want string
	}{
		"the cluster says why": {"the kernel's container was killed because it ran out of memory (limit 512 MiB)",
			"The kernel died: the kernel's container was killed because it ran out of memory (limit 512 MiB)"},
		"nobody says why": {"", "The kernel died: the kernel's container ended, and nobody has said why"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startPod(t, nil).ready()
			c := p.attach("ann")
			id := c.execute("echo before\nsleep 1h")
			c.collect("output", func(g got) bool { return strings.HasPrefix(g.text(), "before") })
			p.child.kill()
			if tc.told != "" {
				if err := p.client().SetWaiting(t.Context(), Waiting{Class: DiedClass, Text: tc.told, Version: 7}); err != nil {
					t.Fatal(err)
				}
			}
			all := c.result(id)
			if got := output(all, id); !strings.Contains(got, tc.want) || strings.Count(got, "[ekg]") != 1 {
				t.Errorf("the cell says %q", got)
			}
			st := p.until("waiting", func(st Status) bool { return st.State == stateRestarting })
			if st.KernelPID != 0 {
				t.Errorf("status is %+v", st)
			}
			if err := p.client().SetWaiting(t.Context(), Waiting{Class: WaitingClass, Text: "back-off", Version: 8}); err != nil {
				t.Fatal(err)
			}
			if got := p.until("reason", func(st Status) bool { return st.Reason == "back-off" }); got.State != stateRestarting {
				t.Errorf("status is %+v", got)
			}
			if err := p.client().SetWaiting(t.Context(), Waiting{Class: WaitingClass, Text: "old", Version: 6}); err != nil {
				t.Fatal(err)
			}
			p.startChild()
			st = p.until("idle", func(st Status) bool { return st.State == stateIdle || st.Reason == "old" })
			if st.Reason != "" {
				t.Errorf("status is %+v", st)
			}
			if got := p.result(c, "result alive"); got != "alive" {
				t.Errorf("got %q", got)
			}
		})
	}
}

// TestPod_supervisorKilled: the supervisor's container alone is started again in the middle of a cell.
func TestPod_supervisorKilled(t *testing.T) {
	p := startPod(t, nil).ready()
	c := p.attach("ann")
	p.result(c, "set x 42")
	pid := p.result(c, "pid")
	id := c.execute("echo before\nsleep 2s\necho after\nresult done")
	c.collect("output", func(g got) bool { return strings.HasPrefix(g.text(), "before") })
	eventually(t, "the request is on disk", func() bool {
		b, err := os.ReadFile(filepath.Join(p.cfg.SpillDir, estateFile))
		return err == nil && bytes.Contains(b, []byte(id))
	})
	p.supervisor.kill()
	p.startSupervisor()
	if st := p.until("up", func(st Status) bool { return st.State == stateIdle || st.State == stateBusy }); st.State != stateBusy {
		t.Errorf("the kernel's cell runs, and status is %+v", st)
	}
	c = p.attach("ann")
	all := c.result(id)
	text := output(all, id)
	if !strings.Contains(text, "[ekg] The program that keeps this kernel's output was started again.") || strings.Count(text, "[ekg]") != 1 {
		t.Errorf("the cell says %q", text)
	}
	if !strings.Contains(text, "after\n") {
		t.Errorf("what came later is missing: %q", text)
	}
	if g, ok := find(all, "execute_reply", id); !ok || wire.StringField(g.Content, "status") != "ok" {
		t.Errorf("reply is %s", g.Content)
	}
	if got := p.result(c, "get x"); got != "42" {
		t.Errorf("x is %q", got)
	}
	if got := p.result(c, "pid"); got != pid {
		t.Errorf("pid is %s, was %s", got, pid)
	}
	st := p.until("idle", func(st Status) bool { return st.State == stateIdle })
	if st.Epoch < 2 {
		t.Errorf("no new epoch: %+v", st)
	}
}

// TestPod_endedMeanwhile: cells end, and the kernel too, while no supervisor is there.
func TestPod_endedMeanwhile(t *testing.T) {
	t.Run("a cell", func(t *testing.T) {
		p := startPod(t, nil).ready()
		c := p.attach("ann")
		id := c.execute("sleep 300ms")
		c.running(id)
		<-time.After(2 * estatePause)
		p.supervisor.kill()
		<-time.After(500 * time.Millisecond) // the cell's
		p.startSupervisor()
		p.ready()
		c = p.attach("ann")
		all := c.result(id)
		if g, ok := find(all, "execute_reply", id); !ok || wire.StringField(g.Content, "ename") != "ConnectionLost" {
			t.Errorf("reply is %s in %s", g.Content, summary(all))
		}
		if got := p.result(c, "result alive"); got != "alive" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("both containers", func(t *testing.T) {
		p := startPod(t, nil).ready()
		c := p.attach("ann")
		id := c.execute("sleep 1h")
		c.running(id)
		<-time.After(2 * estatePause)
		p.supervisor.kill()
		p.child.kill()
		p.startSupervisor()
		p.startChild()
		c = p.attach("ann")
		all := c.result(id)
		if got := output(all, id); strings.Count(got, "[ekg]") != 1 || !strings.Contains(got, "The kernel has died meanwhile") {
			t.Errorf("the cell says %q", got)
		}
		p.ready()
		if got := p.result(c, "result alive"); got != "alive" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("the kernel", func(t *testing.T) {
		p := startPod(t, nil).ready()
		c := p.attach("ann")
		p.result(c, "complain last words")
		id := c.execute("sleep 300ms\nexit 4")
		c.running(id)
		<-time.After(2 * estatePause)
		p.supervisor.kill()
		<-time.After(500 * time.Millisecond)
		p.startSupervisor()
		c = p.attach("ann")
		if got := output(c.result(id), id); !strings.Contains(got, "exit code 4: last words") {
			t.Errorf("the cell says %q", got)
		}
		p.ready()
		if got := p.result(c, "result alive"); got != "alive" {
			t.Errorf("got %q", got)
		}
	})
}

// TestPod_terminated: SIGTERM reaches both containers at once.
func TestPod_terminated(t *testing.T) {
	p := startPod(t, nil).ready()
	c := p.attach("ann")
	id := c.execute("sleep 1h")
	c.running(id)
	for _, k := range []*podProcess{p.child, p.supervisor} {
		if err := k.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	all := c.result(id)
	if got := output(all, id); !strings.Contains(got, "its supervisor was told to end by a signal") {
		t.Errorf("the cell says %q", got)
	}
	if a, b := p.exitCode(p.supervisor), p.exitCode(p.child); a != 0 || b != 0 {
		t.Errorf("exit codes %d and %d", a, b)
	}
	if e := p.ending(); !e.Stopped || e.KernelID != testKernelID {
		t.Errorf("ending is %+v", e)
	}
}

// TestPod_ended: what has ended for good stays ended, whichever container is started again.
func TestPod_ended(t *testing.T) {
	p := startPod(t, nil).ready()
	p.child.kill()
	p.until("restarting", func(st Status) bool { return st.State == stateRestarting })
	if err := p.client().Stop(t.Context(), "because"); err != nil {
		t.Fatal(err)
	}
	if code := p.exitCode(p.supervisor); code != 0 {
		t.Errorf("exit code %d", code)
	}
	p.startChild()
	if code := p.exitCode(p.child); code != 0 {
		t.Errorf("the child's exit code is %d", code)
	}
	want := p.ending()
	if want.Reason != "because" {
		t.Errorf("ending is %+v", want)
	}
	if err := os.Remove(p.cfg.TerminationFile); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if code := p.exitCode(p.start(os.Args[0], nil, podVariable+"="+string(b))); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := p.ending(); got != want {
		t.Errorf("ending is %+v, want %+v", got, want)
	}
}

// TestPod_childAlone: without a supervisor the child ends before the pod's grace is over.
func TestPod_childAlone(t *testing.T) {
	p := startPod(t, func(c *Config) { c.TerminationGrace = childLast + time.Second }).ready()
	kernel := p.until("idle", func(st Status) bool { return st.State == stateIdle }).KernelPID
	p.supervisor.kill()
	begun := time.Now()
	if err := p.child.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.exitCode(p.child); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(begun); took < 900*time.Millisecond || took > childLast {
		t.Errorf("it took %s", took)
	}
	if alive(kernel) {
		t.Error("the kernel lives")
	}
}

func TestPod_noProgram(t *testing.T) {
	for name, tc := range map[string]struct {
		argv []string
		want string
	}{
		"on PATH": {[]string{"no-such-kernel"}, `the image has no program "no-such-kernel" on its PATH`},
		"a path":  {[]string{"/no/such"}, `the image has no program "/no/such"`},
		"crashes": {[]string{"sh", "-c", "echo it broke >&2; exit 5"}, "the kernel's process ended with exit code 5: it broke"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startPod(t, func(c *Config) { c.Argv, c.DeadLinger = tc.argv, 100*time.Millisecond })
			c := p.attach("ann") // in time, or not
			if got := p.exitCode(p.supervisor); got != 0 {
				t.Errorf("exit code %d", got)
			}
			if got := p.exitCode(p.child); got != 0 {
				t.Errorf("the child's exit code is %d", got)
			}
			if got := p.ending(); got.Reason != tc.want || got.Stopped {
				t.Errorf("ending is %+v", got)
			}
			c.ws.Close()
		})
	}
}

func TestPod_imageKernelspec(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) {
		spec := map[string]any{"argv": fakeKernelArgv(), "display_name": name, "language": "x", "interrupt_mode": "message",
			"env": map[string]string{"FROM_SPEC": name}}
		b, err := json.Marshal(spec)
		if err == nil {
			err = os.MkdirAll(filepath.Join(dir, "kernels", name), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "kernels", name, "kernel.json"), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("ir")
	env := []string{"JUPYTER_PATH=" + dir, "HOME=/nonexistent", "PATH=/nonexistent", "VIRTUAL_ENV="}
	t.Run("by name", func(t *testing.T) {
		p := newPod(t, func(c *Config) { c.Argv, c.ImageKernelspec = nil, "ir" })
		p.childEnv = env
		p.startSupervisor()
		p.startChild()
		p.ready()
		c := p.attach("ann")
		id := c.execute("sleep 1h")
		c.running(id)
		if status, body := p.ask("POST", "/interrupt", ""); status != 204 { // by message: the spec's mode
			t.Fatalf("%d %s", status, body)
		}
		c.result(id)
	})
	t.Run("missing", func(t *testing.T) {
		p := newPod(t, func(c *Config) { c.Argv, c.ImageKernelspec = nil, "julia" })
		p.childEnv = env
		p.startSupervisor()
		p.startChild()
		st := p.until("dead", func(st Status) bool { return st.State == stateDead })
		if !strings.HasPrefix(st.Reason, `the image has no kernelspec "julia"; it has: ir`) {
			t.Errorf("reason is %q", st.Reason)
		}
	})
}

// TestPod_otherUser: the image's user has no home that it may write to, and is not the one of the supervisor.
func TestPod_otherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	p := newPod(t, func(c *Config) { c.WorkingDir = "/nonexistent" })
	// The folder in which go test builds is root's alone.
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	p.program = filepath.Join(p.dir, "child")
	if err := os.WriteFile(p.program, b, 0o755); err != nil {
		t.Fatal(err)
	}
	show := filepath.Join(p.dir, "home", "shown")
	p.cfg.Argv = []string{"sh", "-c", `for d in "$HOME" "$TMPDIR" "$IPYTHONDIR"; do touch "$d/x" && echo "$d"; done >` + show +
		`.new; mv ` + show + `.new ` + show + `; stat -c '%a %u' "$(dirname "$1")" "$1" >&2; exec "$0" -f "$1"`, p.program, "{connection_file}"}
	p.childUser = &syscall.Credential{Uid: 12345, Gid: 12345}
	p.childEnv = []string{"HOME=/root", "TMPDIR=/root", "IPYTHONDIR="}
	p.startSupervisor()
	p.startChild()
	p.ready()
	got, err := os.ReadFile(show)
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(p.dir, "home")
	if want := home + "/home\n" + home + "/tmp\n/\n"; !strings.HasPrefix(string(got), home+"/home\n"+home+"/tmp\n") {
		t.Errorf("folders are %q, want %q", got, want)
	}
	if !strings.Contains(p.child.out.String(), "700 12345\n600 12345\n") {
		t.Errorf("the connection file is not private: %s", p.child.out)
	}
	t.Run("another user is refused", func(t *testing.T) {
		conn, err := net.Dial("unix", p.cfg.ChildSocket) // as root
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if b, err := readAllOf(conn); err != nil || len(b) > 0 {
			t.Errorf("got %q, %v", b, err)
		}
		if got := p.result(p.attach("ann"), "result alive"); got != "alive" {
			t.Errorf("got %q", got)
		}
	})
}

func readAllOf(conn net.Conn) ([]byte, error) {
	conn.SetReadDeadline(time.Now().Add(testLimit)) //nolint:errcheck // then the read fails
	b := new(bytes.Buffer)
	_, err := b.ReadFrom(conn)
	return b.Bytes(), err
}

// TestPod_hostile: peers of the child's own user that break the protocol. The kernel is not disturbed by those that never
// become the child, and survives those that do.
func TestPod_hostile(t *testing.T) {
	p := startPod(t, nil).ready()
	c := p.attach("ann")
	p.result(c, "set x 1")
	hello := fmt.Sprintf(`{"type":"hello","version":%d}`+"\n", childProtocol)
	for name, said := range map[string][]byte{
		"garbage":            []byte("\x00\xff\n"),
		"no JSON object":     []byte("[1]\n"),
		"no hello":           []byte(`{"type":"exit","life":"x"}` + "\n"),
		"another version":    []byte(`{"type":"hello","version":99}` + "\n"),
		"huge line":          bytes.Repeat([]byte("x"), maxChildLine+4<<10),
		"hello, then huge":   append([]byte(hello), bytes.Repeat([]byte("x"), maxChildLine+4<<10)...),
		"hello, then noise":  []byte(hello + `{"type":"exit","life":""}` + "\n" + `{"type":"new thing","life":"x"}` + "\nx\n"),
		"kernel with no end": []byte(`{"type":"hello","version":1,"kernel":{"life":"x","connection":{"shell_port":-1}}}` + "\nx\n"),
		"hello and silence":  []byte(hello),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("unix", p.cfg.ChildSocket)
			if err != nil {
				t.Fatal(err)
			}
			conn.Write(said) //nolint:errcheck // the other side may have hung up
			if name != "hello and silence" {
				readAllOf(conn) //nolint:errcheck // it may be reset
			}
			conn.Close()
			// The child that was displaced is back in a moment.
			if got := p.result(c, "get x"); got != "1" {
				t.Errorf("x is %q", got)
			}
			if status, body := p.ask("POST", "/interrupt", ""); status != 204 {
				eventually(t, "the child is back: "+body, func() bool {
					status, _ := p.ask("POST", "/interrupt", "")
					return status == 204
				})
			}
		})
	}
	c.result(c.execute("sleep " + (childReturns + 2*drainLimit).String())) // in which a kernel that was lost is given up
	if st := p.until("idle", func(st Status) bool { return st.State == stateIdle }); st.Epoch != 1 {
		t.Errorf("the kernel has died: %+v", st)
	}
}

func TestPod_noZombies(t *testing.T) {
	p := startPod(t, func(c *Config) {
		c.Argv = append([]string{"sh", "-c", `for i in 1 2 3 4 5; do (setsid sh -c 'sleep 0.2; exit 3' &); done; exec "$0" "$@"`}, fakeKernelArgv()...)
	}).ready()
	child := p.child.cmd.Process.Pid
	count := func(state string) (n int) {
		for _, e := range processes() {
			if e.parent == child && strings.ContainsRune(state, rune(e.state)) {
				n++
			}
		}
		return n
	}
	eventually(t, "orphans have come and have been reaped", func() bool { return count("Z") == 0 && count("SRDZ") == 1 })
}

// TestPod_waiting: what the cluster says of a container that is not there is the model's reason, and a line in the cell
// that waits, until the kernel is up.
func TestPod_waiting(t *testing.T) {
	p := newPod(t, nil)
	p.startSupervisor()
	c := p.attach("ann")
	say := func(version uint64, text string) {
		t.Helper()
		if err := p.client().SetWaiting(t.Context(), Waiting{Class: WaitingClass, Text: text, Version: version}); err != nil {
			t.Fatal(err)
		}
	}
	say(3, "pulling image \"x\"")
	say(2, "unschedulable")
	if st := p.until("reason", func(st Status) bool { return st.Reason != "" }); st.Reason != `pulling image "x"` || st.State != stateStarting {
		t.Errorf("status is %+v", st)
	}
	id := c.execute("result up")
	second := c.execute("result second")
	shown := func(g got) string { return displayed(g).Data["text/plain"] }
	shows := func(g got) bool { return strings.HasSuffix(g.msgType, "display_data") }
	first := c.collect("a line", shows)
	g := first[len(first)-1]
	if g.msgType != "display_data" || g.parent != id || !strings.Contains(shown(g), "pulling image") {
		t.Errorf("got %s %s", g.msgType, g.Content)
	}
	name := displayed(g).Transient["display_id"]
	say(4, "back-off")
	next := c.collect("the next", shows)
	if g = next[len(next)-1]; g.msgType != "update_display_data" || g.parent != id || !strings.HasSuffix(shown(g), "back-off") ||
		displayed(g).Transient["display_id"] != name {
		t.Errorf("got %s %s", g.msgType, g.Content)
	}
	p.startChild()
	all := c.result(id, second)
	i := slices.IndexFunc(all, shows)
	if i < 0 || all[i].msgType != "update_display_data" || len(displayed(all[i]).Data) > 0 {
		t.Errorf("the line stays: %s", summary(all))
	}
	if _, ok := find(all, "execute_result", id); !ok {
		t.Errorf("the cell did not run: %s", summary(all))
	}
	if st := p.until("idle", func(st Status) bool { return st.State == stateIdle }); st.Reason != "" {
		t.Errorf("status is %+v", st)
	}
	t.Run("refused", func(t *testing.T) {
		for _, body := range []string{"", "{}", `{"class":"x","text":"","version":9}`, `{"class":"died","text":"","version":-1}`,
			`{"class":"died","text":"","version":"x"}`} {
			if _, err := p.ask("PUT", "/waiting", body); !strings.Contains(err, "400") {
				t.Errorf("%s: %s", body, err)
			}
		}
		if _, err := p.ask("PUT", "/waiting", `{"class":"waiting","text":"","version":"10"}`); err != "" {
			t.Error(err)
		}
	})
}

// TestPod_never: what the cluster says will never come is not waited for.
func TestPod_never(t *testing.T) {
	p := newPod(t, nil)
	p.startSupervisor()
	c := p.attach("ann")
	id := c.execute("print 1")
	if err := p.client().SetWaiting(t.Context(), Waiting{Class: NeverClass, Text: "no such image", Version: 1}); err != nil {
		t.Fatal(err)
	}
	if got := output(c.result(id), id); !strings.Contains(got, "no such image") {
		t.Errorf("the cell says %q", got)
	}
	if st := p.until("dead", func(st Status) bool { return st.State == stateDead }); st.Reason != "no such image" {
		t.Errorf("status is %+v", st)
	}
}
