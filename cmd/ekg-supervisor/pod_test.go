package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const patience = 30 * time.Second

// kernelID is another one in each run: the end of a kernel kills all processes that carry its id.
var kernelID = uuid.NewString()

// build builds one of the module's programs.
func build(t *testing.T, dir, pkg string) string {
	t.Helper()
	out := filepath.Join(dir, filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", pkg, err, b)
	}
	return out
}

// testPod is the two containers of a pod, as processes of the built programs.
type testPod struct {
	t                     *testing.T
	dir, program, kernel  string
	cfg                   api.Config
	supervisor, container *exec.Cmd
	output                bytes.Buffer // of the kernel's container; read only after its end
}

func newTestPod(t *testing.T) *testPod {
	t.Helper()
	dir, err := os.MkdirTemp("", "ekg-c")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &testPod{t: t, dir: dir, program: build(t, dir, "github.com/elastic-kernel-gateway/ekg/cmd/ekg-supervisor"),
		kernel: build(t, dir, "github.com/elastic-kernel-gateway/ekg/launcher/launchertest/kernel")}
	for _, d := range []string{"ekg", "spill", "home", "secret"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"tls-seed", "token", "kernel-key", "identity"} {
		if err := os.WriteFile(filepath.Join(dir, "secret", name), []byte(strings.Repeat("x", 32)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.cfg = api.Config{Protocol: api.ProtocolVersion, KernelID: kernelID, SpecName: "fake", InterruptMode: "signal",
		Listen: "unix:" + filepath.Join(dir, "s"), Transport: "tcp",
		LogLimit: 64 << 20, SpillDir: filepath.Join(dir, "spill"),
		StopGrace: time.Second, DeadLinger: time.Second, RestartLimit: 3,
		ChildSocket: filepath.Join(dir, "ekg", "run", "child.sock"), SecretDir: filepath.Join(dir, "secret"),
		TerminationFile: filepath.Join(dir, "termination"), TerminationGrace: patience,
		Program: filepath.Join(dir, "ekg", "bin", "ekg-supervisor")}
	return p
}

// run runs the program with the pod's configuration.
func (p *testPod) run(args ...string) *exec.Cmd {
	p.t.Helper()
	b, err := json.Marshal(p.cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(p.program, args...)
	cmd.Env = append(os.Environ(), api.PodConfigVariable+"="+string(b))
	if testing.Verbose() {
		cmd.Stderr = os.Stderr
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it has ended
		cmd.Wait()         //nolint:errcheck // it was killed
	})
	return cmd
}

// start starts both containers. The kernel's has a PID namespace of its own if this user may create one. wrap stands
// before its command.
func (p *testPod) start(wrap ...string) {
	p.t.Helper()
	p.supervisor = p.run("pod")
	begun := time.Now()
	if err := p.run("installed").Wait(); err != nil || time.Since(begun) > installLimit {
		p.t.Fatalf("installed: %v after %s", err, time.Since(begun))
	}
	argv := wrap
	if os.Getuid() == 0 {
		argv = append(argv, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
	}
	argv = append(argv, p.cfg.Program, "child", "--socket", p.cfg.ChildSocket, "--home", filepath.Join(p.dir, "home"),
		"--", p.kernel, "-f", "{connection_file}")
	p.container = exec.Command(argv[0], argv[1:]...)
	p.container.Stdout, p.container.Stderr = &p.output, &p.output
	p.container.WaitDelay = time.Second
	if err := p.container.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		p.container.Process.Kill() //nolint:errcheck // it has ended
		p.container.Wait()         //nolint:errcheck // it was killed
	})
}

func (p *testPod) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", filepath.Join(p.dir, "s"))
}

func (p *testPod) client() *api.Client {
	return &api.Client{KernelID: p.cfg.KernelID, Token: strings.Repeat("x", 32), Dial: p.dial}
}

// until waits for a status that satisfies cond.
func (p *testPod) until(what string, cond func(api.Status) bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	found := false
	var last api.Status
	for ctx.Err() == nil && !found {
		_ = p.client().Watch(ctx, func(st api.Status) {
			if last = st; cond(st) {
				found = true
				cancel()
			}
		})
	}
	if !found {
		p.t.Fatalf("never %s: %+v", what, last)
	}
}

// execute runs code and returns all messages up to its idle status.
func (p *testPod) execute(code string) string {
	p.t.Helper()
	d := websocket.Dialer{NetDialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx) }}
	ws, _, err := d.Dial("ws://"+kernelID+"/api/kernels/"+kernelID+"/channels?session_id=s",
		http.Header{"Authorization": {"Bearer " + strings.Repeat("x", 32)}})
	if err != nil {
		p.t.Fatal(err)
	}
	defer ws.Close()                             //nolint:errcheck // everything was read
	ws.SetReadDeadline(time.Now().Add(patience)) //nolint:errcheck // then the read fails
	id := fmt.Sprintf("m%d", time.Now().UnixNano())
	if err := ws.WriteJSON(map[string]any{
		"channel": "shell", "parent_header": map[string]any{}, "metadata": map[string]any{},
		"header": map[string]any{"msg_id": id, "session": "s", "msg_type": "execute_request", "version": "5.3",
			"username": "", "date": ""},
		"content": map[string]any{"code": code, "silent": false}}); err != nil {
		p.t.Fatal(err)
	}
	var all strings.Builder
	for {
		_, b, err := ws.ReadMessage()
		if err != nil {
			p.t.Fatalf("%v after %s", err, all.String())
		}
		all.Write(b)
		if bytes.Contains(b, []byte(id)) && bytes.Contains(b, []byte(`"execution_state":"idle"`)) {
			return all.String()
		}
	}
}

func (p *testPod) ended() (a, b error) {
	return p.supervisor.Wait(), p.container.Wait()
}

func idle(st api.Status) bool { return st.State == "idle" }

// TestPod_GPUProgram checks that ekg-gpu is copied to the shared folder and runs in the kernel's container.
func TestPod_GPUProgram(t *testing.T) {
	p := newTestPod(t)
	looks := filepath.Join(p.dir, "looks")
	script := fmt.Sprintf("#!/bin/sh\necho \"$0 $*\" >>%q\necho '{}'\n", looks)
	if err := os.WriteFile(filepath.Join(p.dir, "ekg-gpu"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	p.cfg.GPUProgram = filepath.Join(p.dir, "ekg", "bin", "ekg-gpu")
	p.cfg.Cull = api.Cull{IdleTimeout: time.Second, GPU: 0.1, Interval: 100 * time.Millisecond}
	p.start()
	p.until("culled", func(st api.Status) bool { return st.State == "dead" })
	b, err := os.ReadFile(looks)
	if first, _, _ := strings.Cut(string(b), "\n"); err != nil || first != p.cfg.GPUProgram+" --for 100ms" {
		t.Errorf("it was run as %q, %v", b, err)
	}
	if st, err := os.Stat(p.cfg.GPUProgram); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

func TestPod(t *testing.T) {
	p := newTestPod(t)
	p.start()
	p.until("idle", idle)
	if got := p.execute("complain to the log\necho hello"); !strings.Contains(got, "hello") {
		t.Errorf("got %s", got)
	}
	if st, err := os.Stat(p.cfg.Program); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if err := p.supervisor.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if a, b := p.ended(); a != nil || b != nil {
		t.Errorf("they end with %v and %v", a, b)
	}
	if got := p.output.String(); got != "to the log\n" {
		t.Errorf("the kernel's container wrote %q", got)
	}
	var e api.Ending
	if b, err := os.ReadFile(p.cfg.TerminationFile); err != nil || json.Unmarshal(b, &e) != nil || !e.Stopped ||
		e.KernelID != kernelID {
		t.Errorf("ending is %+v, %v", e, err)
	}
}

// limitMemory starts both containers, with 96 MiB of memory for the kernel's.
func (p *testPod) limitMemory() {
	t := p.t
	t.Helper()
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skipf("this kernel has no control groups, which bound the container's memory: %v", err)
	}
	_, path, ok := strings.Cut(string(groups), ":memory:")
	if !ok || os.Getuid() != 0 {
		t.Skip("the memory controller of cgroup v1 and root are needed, to bound the container's memory")
	}
	path, _, _ = strings.Cut(path, "\n")
	group := filepath.Join("/sys/fs/cgroup/memory", path, fmt.Sprintf("ekg-test-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("/sys/fs/cgroup/memory must be writable, to bound the container's memory: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(group) }) // runs after both have ended: start registers their cleanup later
	if err := os.WriteFile(filepath.Join(group, "memory.limit_in_bytes"), []byte("100663296"), 0o644); err != nil {
		t.Fatal(err)
	}
	p.start("sh", "-c", `echo $$ >`+group+`/cgroup.procs && exec "$@"`, "sh")
	p.until("idle", idle)
}

// TestPod_Memory runs a cell that uses more memory than the container's limit. The container stays, and the cell says
// why.
func TestPod_Memory(t *testing.T) {
	p := newTestPod(t)
	p.limitMemory()
	want := "The kernel died: the kernel's process was killed because it ran out of memory (limit 96 MiB)"
	if got := p.execute("big 300m"); !strings.Contains(got, want) {
		t.Errorf("got %.2000s", got)
	}
	p.until("idle again", func(st api.Status) bool { return idle(st) && st.Epoch == 2 })
	if err := p.client().Stop(t.Context(), "enough"); err != nil {
		t.Fatal(err)
	}
	if a, b := p.ended(); a != nil || b != nil {
		t.Errorf("they end with %v and %v", a, b)
	}
}

// TestPod_MemoryOfOthers kills ekg-gpu for lack of memory in the kernel's container, and the kernel later. The reason
// of the kernel's end must not be memory.
func TestPod_MemoryOfOthers(t *testing.T) {
	p := newTestPod(t)
	looks := filepath.Join(p.dir, "looks")
	if err := syscall.Mkfifo(looks, 0o600); err != nil {
		t.Fatal(err)
	}
	began, err := os.OpenFile(looks, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer began.Close() //nolint:errcheck // nothing was written
	if err := began.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(p.dir, "first")
	const format = "#!/bin/sh\necho >%q\n[ -e %q ] && exec echo '{}'\n: >%[2]q\nexec sed q /dev/zero\n"
	script := fmt.Sprintf(format, looks, first)
	if err := os.WriteFile(filepath.Join(p.dir, "ekg-gpu"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	p.cfg.GPUProgram = filepath.Join(p.dir, "ekg", "bin", "ekg-gpu")
	p.cfg.Cull = api.Cull{IdleTimeout: time.Minute, GPU: 0.1, Interval: 100 * time.Millisecond}
	p.limitMemory()
	if _, err := io.ReadFull(began, make([]byte, 2)); err != nil { // the second starts after the first has ended
		t.Fatal(err)
	}
	want := "The kernel died: the kernel's process was killed (SIGKILL), which"
	if got := p.execute("crash"); !strings.Contains(got, want) {
		t.Errorf("got %.2000s", got)
	}
}

func TestPod_Refuses(t *testing.T) {
	p := newTestPod(t)
	p.cfg.Transport = "ipc"
	if err := p.run("pod").Wait(); err == nil {
		t.Error("a wrong configuration was accepted")
	}
	if err := p.run("installed").Wait(); err != nil {
		t.Errorf("installed: %v", err)
	}
	p.cfg.Transport, p.cfg.Program = "tcp", "/nonexistent/bin/x"
	if err := os.WriteFile(p.cfg.TerminationFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.run("pod").Wait(); err == nil {
		t.Error("a program that cannot be copied was accepted")
	}
	if b, err := os.ReadFile(p.cfg.TerminationFile); err != nil || !bytes.Contains(b, []byte("could not start")) {
		t.Errorf("it says %s, %v", b, err)
	}
}

func TestInstallGPU(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "program")
	programs := []string{filepath.Join(from, "ekg-gpu"), filepath.Join(from, "ekg-gpu-agent")}
	for _, p := range programs {
		if err := os.WriteFile(p, []byte("program"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if code := installGPU([]string{to}, programs...); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, p := range programs {
		info, err := os.Stat(filepath.Join(to, filepath.Base(p)))
		if err != nil || info.Mode().Perm() != 0o755 || info.Size() != 7 {
			t.Errorf("%v, %v", info, err)
		}
	}
	for code, args := range map[int][]string{1: {to + "/none/at/all"}, 2: nil} {
		if got := installGPU(args, programs...); got != code {
			t.Errorf("%q: exit code %d, want %d", args, got, code)
		}
	}
}

// The copy that `install` makes is this program, for any user of the pod to run. Other arguments are rejected.
func TestInstallSelf(t *testing.T) {
	to := filepath.Join(t.TempDir(), "bin", "copy")
	if code := installSelf([]string{to}); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	want, err := os.ReadFile(selfProgram)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(to)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy has %d bytes, want %d: %v", len(got), len(want), err)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
	for code, args := range map[int][]string{1: {to + "/none/at/all"}, 2: nil} {
		if got := installSelf(args); got != code {
			t.Errorf("%q: exit code %d, want %d", args, got, code)
		}
	}
}

// wait ends with 0 at the signal of the kubelet, and not before.
func TestWait(t *testing.T) {
	keep := make(chan os.Signal, 1) // the signal must not end this test's process
	signal.Notify(keep, syscall.SIGTERM)
	defer signal.Stop(keep)
	ended := make(chan int, 1)
	go func() { ended <- wait() }()
	again := time.NewTicker(10 * time.Millisecond) // the first signal may come before wait listens
	defer again.Stop()
	for limit := time.After(20 * time.Second); ; {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case code := <-ended:
			if code != 0 {
				t.Errorf("exit code %d", code)
			}
			return
		case <-again.C:
		case <-limit:
			t.Fatal("it goes on")
		}
	}
}
