//go:build linux && cgo

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
)

// helperVariable makes the test's program ekg-gpu watch.
const helperVariable = "EKG_GPU_TEST_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperVariable) != "" {
		os.Exit(watch(nil))
	}
	os.Exit(m.Run())
}

// worker is a kernel in short: a process with memory of the GPU, which runs a line of Python at a time.
const worker = `
import subprocess, sys, threading
library = sys.argv[1]
exec(open("../../testdata/cuda/memory.py").read())
computing = None
def compute(milliseconds):
    global computing
    computing = threading.Thread(target=call, args=("ekgCompute", milliseconds))
    computing.start()
others = []
def other(does):
    program = open("/proc/self/cmdline").read().split("\0")[2]
    p = subprocess.Popen([sys.executable, "-c", program, sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    others.append(p)
    p.stdin.write((does or "0").encode() + b"\n")
    p.stdin.flush()
    p.stdout.readline()
for line in sys.stdin:
    print(eval(line), flush=True)
`

// machine is a machine with one GPU: the stand-in for NVIDIA's library in a folder of its own.
type machine struct {
	t   *testing.T
	dir string
}

func newMachine(t *testing.T) *machine {
	m := &machine{t, t.TempDir()}
	if out, err := exec.Command("cc", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread", "-o", m.library(),
		"../../testdata/cuda/cuda.c").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return m
}

func (m *machine) library() string { return filepath.Join(m.dir, "libcuda.so.1") }

// set writes a file of the stand-in.
func (m *machine) set(file, text string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, file), []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// conversation is a program that answers each line with a line.
type conversation struct {
	t       *testing.T
	cmd     *exec.Cmd
	process *os.Process
	in      io.WriteCloser
	pipe    io.Closer // of out
	out     *bufio.Scanner
}

func converse(t *testing.T, cmd *exec.Cmd) *conversation {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &conversation{t, cmd, cmd.Process, in, out, bufio.NewScanner(out)}
}

func (c *conversation) say(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *conversation) answer() string {
	c.t.Helper()
	defer time.AfterFunc(30*time.Second, func() { _ = c.process.Kill() }).Stop()
	if !c.out.Scan() {
		c.t.Fatal("the program has ended", c.out.Err())
	}
	return c.out.Text()
}

func (c *conversation) want(line, answer string) {
	c.t.Helper()
	c.say(line)
	if got := c.answer(); got != answer {
		c.t.Fatalf("%s: got %q, want %q", line, got, answer)
	}
}

// worker starts a process that uses CUDA, with bytes of the GPU.
func (m *machine) worker(bytes int) *conversation {
	m.t.Helper()
	w := converse(m.t, exec.Command("python3", "-c", worker, m.library()))
	w.want(fmt.Sprintf("begin(%d)", bytes), "None")
	return w
}

// session starts a process with a session of its own. It has no memory of the GPU yet.
func (m *machine) session() *conversation {
	m.t.Helper()
	cmd := exec.Command("python3", "-c", worker, m.library())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return converse(m.t, cmd)
}

// helper starts ekg-gpu watch.
func (m *machine) helper() *helper {
	m.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperVariable+"=1", "LD_LIBRARY_PATH="+m.dir)
	return &helper{converse(m.t, cmd)}
}

type helper struct{ *conversation }

// asks sends a command.
func (h *helper) asks(do gpu.Action, of *conversation) {
	h.t.Helper()
	line, err := json.Marshal(gpu.Command{ID: string(do), Do: do, PID: of.process.Pid})
	if err != nil {
		h.t.Fatal(err)
	}
	h.say(string(line))
}

// answers returns the next answer, which comes among samples.
func (h *helper) answers() (a gpu.Answer) {
	h.t.Helper()
	for a.ID == "" && a.Failure == nil {
		if err := json.Unmarshal([]byte(h.answer()), &a); err != nil {
			h.t.Fatal(err)
		}
	}
	return a
}

// does carries out a command and checks the state after it. The failure's text contains failed. With "" the command
// must not fail.
func (h *helper) does(do gpu.Action, of *conversation, want gpu.CUDAState, failed string) {
	h.t.Helper()
	h.asks(do, of)
	h.wants(do, want, failed)
}

func (h *helper) wants(do gpu.Action, want gpu.CUDAState, failed string) {
	h.t.Helper()
	a := h.answers()
	text := ""
	if a.Failure != nil {
		text = a.Failure.Error()
	}
	if a.ID != string(do) || a.State != want || (failed == "") != (text == "") || !strings.Contains(text, failed) {
		h.t.Errorf("%s: got %+v, %q; want %q, %q", do, a, text, want, failed)
	}
}

// A process gives its GPU memory back and has it again. Its calls of CUDA wait in between, and nothing else does.
func TestCommands_SaveAndRestore(t *testing.T) {
	m := newMachine(t)
	w, h := m.worker(64<<20), m.helper()
	h.does(gpu.Look, w, gpu.CUDARunning, "")
	h.does(gpu.Save, w, gpu.CUDASaved, "")
	h.does(gpu.Save, w, gpu.CUDASaved, "") // nothing is left to do
	h.does(gpu.Look, w, gpu.CUDASaved, "")
	w.want("compute(0)", "None")
	w.want("computing.is_alive()", "True")
	h.does(gpu.Restore, w, gpu.CUDARunning, "")
	w.want("computing.join()", "None")
	w.want("held()", "variables")
	h.does(gpu.Restore, w, gpu.CUDARunning, "")
}

// Two processes with most of one GPU use it in turns. A restore without enough memory leaves the process as it was.
func TestCommands_InTurns(t *testing.T) {
	m := newMachine(t)
	m.set("total", fmt.Sprint(100<<20))
	first, h := m.worker(60<<20), m.helper()
	h.does(gpu.Save, first, gpu.CUDASaved, "")
	second := m.worker(60 << 20)
	h.does(gpu.Restore, first, gpu.CUDASaved, "cuCheckpointProcessRestore with 2 (out of memory)")
	h.does(gpu.Save, second, gpu.CUDASaved, "")
	h.does(gpu.Restore, first, gpu.CUDARunning, "")
	first.want("held()", "variables")
	h.does(gpu.Save, first, gpu.CUDASaved, "")
	h.does(gpu.Restore, second, gpu.CUDARunning, "")
	second.want("held()", "variables")
}

// A process that computes is left as it is, and a process whose save fails computes on.
func TestCommands_NotSaved(t *testing.T) {
	m := newMachine(t)
	w, h := m.worker(1<<20), m.helper()
	w.want("compute(1 << 20)", "None")
	h.does(gpu.Save, w, gpu.CUDARunning, "cuCheckpointProcessLock with 600 (device not ready)")
	other := m.worker(1 << 20)
	m.set("fault", cuCheckpoint+" 999")
	h.does(gpu.Save, other, gpu.CUDARunning, cuCheckpoint+" with 999")
	other.want("held()", "variables")
	h.does(gpu.Save, other, gpu.CUDASaved, "")
	m.set("fault", cuUnlock+" 999")
	h.does(gpu.Restore, other, gpu.CUDALocked, cuUnlock+" with 999")
	h.does(gpu.Restore, other, gpu.CUDARunning, "")
	other.want("held()", "variables")
}

// A helper dies in the middle, at each of its calls. Another one finds out what has become of the process, and goes on.
func TestCommands_HelperDies(t *testing.T) {
	m := newMachine(t)
	m.set("pace", "1000")
	w := m.worker(64 << 20)
	for _, call := range []string{cuGetState, cuLock, cuCheckpoint, cuRestore, cuUnlock} {
		do := gpu.Save
		if call == cuRestore || call == cuUnlock {
			do = gpu.Restore
			m.helper().does(gpu.Save, w, gpu.CUDASaved, "")
		}
		m.set("fault", call+" -1")
		dies := m.helper()
		dies.asks(do, w)
		for dies.out.Scan() { // until it has ended
		}
		next := m.helper()
		if do == gpu.Save {
			next.does(gpu.Save, w, gpu.CUDASaved, "")
		}
		next.does(gpu.Restore, w, gpu.CUDARunning, "")
		w.want("held()", "variables")
	}
}

// A helper whose reader is gone ends what it has begun. A second command for a process is refused meanwhile.
func TestCommands_ReaderGone(t *testing.T) {
	m := newMachine(t)
	m.set("pace", "30000")
	w, h := m.worker(64<<20), m.helper() // 1.9 s
	h.asks(gpu.Save, w)
	h.does(gpu.Look, w, gpu.CUDAUnknown, "still runs")
	if err := h.in.Close(); err != nil {
		t.Fatal(err)
	}
	h.wants(gpu.Save, gpu.CUDASaved, "")
	m.helper().does(gpu.Restore, w, gpu.CUDARunning, "")
	w.want("held()", "variables")

	// Nor does the first answer without a reader end what goes on.
	h, short := m.helper(), m.worker(1<<20)
	h.asks(gpu.Save, short)
	h.asks(gpu.Save, w)
	if err := errors.Join(h.in.Close(), h.pipe.Close()); err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Wait(); h.cmd.ProcessState.ExitCode() < 0 {
		t.Errorf("the program ended amid a command: %v", err)
	}
}

// Where the driver cannot do it, the answer says why.
func TestCommands_NoDriver(t *testing.T) {
	m := newMachine(t)
	w := m.worker(1 << 20)
	for library, want := range map[string]string{
		"/nowhere/libcuda.so.1": "cannot be loaded: ",
		"libm.so.6":             "it has no cuInit",
	} {
		a := (&cuda{library: library}).do(gpu.Command{ID: "1", Do: gpu.Save, PID: w.process.Pid})
		if a.State != gpu.CUDAUnknown || a.Failure == nil || !strings.Contains(a.Failure.Error(), want) {
			t.Errorf("%s: got %+v", library, a)
		}
	}
	m.set("fault", cuInit+" 100")
	h := m.helper()
	h.does(gpu.Save, w, gpu.CUDAUnknown, "cuInit with 100")
	h.does(gpu.Save, w, gpu.CUDASaved, "") // the driver has come
	h.say("not JSON")
	h.wants("", gpu.CUDAUnknown, "not a command of ekg-gpu")
	h.say(strings.Repeat("x", 3*maxCommand))
	h.wants("", gpu.CUDAUnknown, "not a command of ekg-gpu")
	h.does(gpu.Look, w, gpu.CUDASaved, "")
}

// A session stands for its only process that uses CUDA. Without such a process the answer is "none". Two of them are
// left alone.
func TestCommands_Session(t *testing.T) {
	m := newMachine(t)
	h, session := m.helper(), m.session()
	does := func(do gpu.Action, want gpu.CUDAState, pid int, failed string) {
		t.Helper()
		line, err := json.Marshal(gpu.Command{ID: string(do), Do: do, Session: session.process.Pid})
		if err != nil {
			t.Fatal(err)
		}
		h.say(string(line))
		a := h.answers()
		text, several := "", false
		if a.Failure != nil {
			text, several = a.Failure.Error(), a.Failure.Processes == 2
		}
		if a.State != want || a.PID != pid || several != strings.HasPrefix(failed, "2 processes") ||
			!strings.Contains(text, failed) || (text == "") != (failed == "") {
			t.Errorf("%s: got %+v, %q; want %q of %d, %q", do, a, text, want, pid, failed)
		}
	}
	does(gpu.Save, gpu.CUDANone, 0, "")
	session.want("begin(1 << 20)", "None")
	does(gpu.Save, gpu.CUDASaved, session.process.Pid, "")
	does(gpu.Restore, gpu.CUDARunning, session.process.Pid, "")
	session.want("held()", "variables")
	session.want("other('')", "None") // it has no CUDA
	does(gpu.Look, gpu.CUDARunning, session.process.Pid, "")
	session.want("other('begin(1 << 20)')", "None")
	does(gpu.Save, gpu.CUDAUnknown, 0, "2 processes of the kernel use CUDA")
	session.want("held()", "variables")
}

// A process that has the GPU open and cannot be saved would lose what it has there.
func TestGPUFiles_Users(t *testing.T) {
	proc := t.TempDir()
	self, err := unix.Getsid(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(proc, fmt.Sprint(os.Getpid()))
	if err := os.MkdirAll(filepath.Join(dir, "fd"), 0o700); err != nil {
		t.Fatal(err)
	}
	g := gpuFiles{proc: proc}
	for maps, want := range map[string]string{
		"":                              "[] map[] 0",
		"7f00 r-xp /lib/libcuda.so.1\n": "[PID] map[] 0",
		"7f00 rw-s /dev/nvidia-uvm\n":   "[] map[PID:true] 0",
	} {
		if err := os.WriteFile(filepath.Join(dir, "maps"), []byte(maps), 0o600); err != nil {
			t.Fatal(err)
		}
		mapping, open, unknown := g.users(self)
		got := strings.ReplaceAll(fmt.Sprint(mapping, open, unknown), fmt.Sprint(os.Getpid()), "PID")
		if got != want {
			t.Errorf("%q: got %s, want %s", maps, got, want)
		}
	}
	const leader = 1 << 30
	if _, open, _ := g.users(leader); len(open) > 0 {
		t.Errorf("another session: got %v", open)
	}
	if err := os.Mkdir(filepath.Join(proc, fmt.Sprint(leader)), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{leader, os.Getpid()} {
		if err := errors.Join(os.WriteFile(filepath.Join(proc, fmt.Sprint(pid), "environ"),
			[]byte("A=b\x00"+proctree.KernelIDVariable+"=x\x00"), 0o600),
			os.WriteFile(filepath.Join(dir, "maps"), []byte("7f00 rw-s /dev/nvidia-uvm\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if _, open, _ := g.users(leader); !open[os.Getpid()] {
		t.Errorf("a process of the kernel with a session of its own: got %v", open)
	}
}
