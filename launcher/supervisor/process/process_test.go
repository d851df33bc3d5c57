package process

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
)

// testKernelID is another one in each run: the end of a kernel kills all processes of the user that carry its id.
var testKernelID = uuid.NewString()

// testOptions starts one of this machine's programs in an empty folder.
func testOptions(t *testing.T, argv ...string) Options {
	return Options{
		KernelID:   testKernelID,
		Argv:       argv,
		Env:        map[string]string{"PATH": os.Getenv("PATH"), "A": "1"},
		WorkingDir: t.TempDir(),
	}
}

// startTest starts a process. At the test's end it kills the process and checks that no goroutine is left.
func startTest(t *testing.T, argv ...string) *Process {
	t.Helper()
	before := goleak.IgnoreCurrent()
	p, err := Start(testOptions(t, argv...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		ended(t, p)
		goleak.VerifyNone(t, before)
	})
	return p
}

func ended(t *testing.T, p *Process) Exit {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the process's end is not noticed")
	}
	return p.Exit()
}

// eventually waits for something that another process does.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func alive(pid int) bool {
	p, ok := proctree.Find(pid)
	return ok && p.Alive()
}

// printed waits until the process has printed the words, and returns the rest of their line.
func printed(t *testing.T, p *Process, words string) string {
	t.Helper()
	var rest string
	eventually(t, "it prints "+words, func() bool {
		for line := range strings.Lines(p.stdout.Text(tailLimit)) {
			if r, ok := strings.CutPrefix(line, words); ok && strings.HasSuffix(line, "\n") {
				rest = strings.TrimSpace(r)
				return true
			}
		}
		return false
	})
	return rest
}

func printedPID(t *testing.T, p *Process, words string) int {
	t.Helper()
	pid, err := strconv.Atoi(printed(t, p, words))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestProcess_Start(t *testing.T) {
	t.Run("environment, folder, session and stdin", func(t *testing.T) {
		p := startTest(t, "sh", "-c",
			`cat; echo "dir $(pwd)"; echo "env $A $EKG_KERNEL_ID"; echo "stat $(cat /proc/$$/stat)"; env | wc -l`)
		if got := ended(t, p); got.Code != 0 || got.Signal != 0 {
			t.Errorf("exit is %+v", got)
		}
		out := p.LastOutput(tailLimit, time.Time{})
		if !strings.Contains(out, "env 1 "+testKernelID+"\n") {
			t.Errorf("environment is wrong: %s", out)
		}
		if !strings.Contains(out, "dir "+filepath.Dir(t.TempDir())) {
			t.Errorf("folder is wrong: %s", out)
		}
		var f []string
		for line := range strings.Lines(out) {
			if s, ok := strings.CutPrefix(line, "stat "); ok {
				f = strings.Fields(s)
			}
		}
		want := strconv.Itoa(p.PID())
		if len(f) < 6 || f[4] != want || f[5] != want {
			t.Errorf("group and session are not %s: %v", want, f)
		}
	})
	t.Run("the id cannot be set by the configuration", func(t *testing.T) {
		opts := testOptions(t)
		opts.Env[proctree.KernelIDVariable] = "another"
		got := environment(&opts)
		if last := got[len(got)-1]; last != proctree.KernelIDVariable+"="+testKernelID ||
			strings.Contains(strings.Join(got, " "), "another") {
			t.Errorf("environment is %q", got)
		}
	})
}

func TestProcess_StartErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plainFile := write("plain", "x", 0o644)
	script := write("script", "#!/no/such/python3 -m x\n", 0o755)
	windows := write("windows", "#!/bin/sh\r\n", 0o755)
	binary := write("binary", "\x00\x01\x02", 0o755)
	for _, c := range []struct {
		name string
		opts Options
		argv []string
		want string
	}{
		{"no command", Options{}, nil, `the kernel's command is empty`},
		{"missing", Options{}, []string{"/x/y"}, `the kernel's program "/x/y" does not exist`},
		{"missing below a file", Options{}, []string{plainFile + "/y"},
			`the kernel's program "` + plainFile + `/y" does not exist`},
		{"missing, relative", Options{WorkingDir: dir}, []string{"./y"}, `the kernel's program "./y" does not exist`},
		{"not on PATH", Options{Env: map[string]string{"PATH": dir + ":relative"}}, []string{"y"},
			`the kernel's program "y" was not found on its PATH`},
		{"on PATH, not executable", Options{Env: map[string]string{"PATH": dir}}, []string{"plain"},
			`the kernel's program "` + plainFile + `" is not executable`},
		{"not executable", Options{}, []string{plainFile}, `the kernel's program "` + plainFile + `" is not executable`},
		{"a folder", Options{}, []string{dir}, `the kernel's program "` + dir + `" is a directory`},
		{"no interpreter", Options{}, []string{script},
			`the kernel's program "` + script + `" asks for the interpreter "/no/such/python3", which does not exist`},
		{"saved on Windows", Options{}, []string{windows},
			`the kernel's program "` + windows + `" asks for the interpreter "/bin/sh\r", which does not exist`},
		{"no program", Options{}, []string{binary},
			`the kernel's program "` + binary + `" is not in a format that this machine can execute`},
		{"no folder", Options{WorkingDir: "/x/y"}, []string{"sh"}, `the kernel's working directory "/x/y" does not exist`},
		{"folder is a file", Options{WorkingDir: plainFile}, []string{"sh"},
			`the kernel's working directory "` + plainFile + `" is not a directory`},
		{"zero byte", Options{}, []string{"sh", "a\x00b"}, `the kernel's command or environment contains a zero byte`},
		{"too large", Options{}, []string{"sh", "-c", ":", strings.Repeat("x", 1<<20)},
			`the kernel's command and environment are too large for this machine`},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			c.opts.Argv = c.argv
			p, err := Start(c.opts)
			if p != nil || err == nil || err.Error() != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
			goleak.VerifyNone(t, before)
		})
	}
}

func TestProcess_Exit(t *testing.T) {
	t.Run("exit code and last output, and no zombie", func(t *testing.T) {
		p := startTest(t, "sh", "-c", "echo out; echo err >&2; exit 3")
		if got := ended(t, p); got.Code != 3 || got.Signal != 0 || got.OOM || time.Since(got.At) > time.Minute {
			t.Errorf("exit is %+v", got)
		}
		if got := p.LastOutput(100, time.Time{}); got != "err\n" {
			t.Errorf("last output is %q", got)
		}
		if _, ok := proctree.Find(p.PID()); ok {
			t.Error("the process is still in the table")
		}
		if err := p.Signal(syscall.SIGTERM); err != os.ErrProcessDone {
			t.Errorf("a signal to an ended process gives %v", err)
		}
		p.Kill() // it has no effect
	})
	t.Run("signal", func(t *testing.T) {
		p := startTest(t, "sh", "-c", "echo out; kill -SEGV $$")
		if got := ended(t, p); got.Code != -1 || got.Signal != syscall.SIGSEGV {
			t.Errorf("exit is %+v", got)
		}
		if got := p.LastOutput(100, time.Time{}); got != "out\n" {
			t.Errorf("without stderr the last output is %q", got)
		}
	})
	t.Run("a flood of output neither blocks nor grows", func(t *testing.T) {
		p := startTest(t, "sh", "-c", "yes 0123456789 | head -c 20000000; echo end >&2")
		if got := ended(t, p); got.Code != 0 {
			t.Errorf("exit is %+v", got)
		}
		if got := cap(p.stdout.buf); got > 4*tailLimit {
			t.Errorf("%d bytes are kept", got)
		}
		if got := p.LastOutput(100, time.Time{}); got != "end\n" {
			t.Errorf("last output is %q", got)
		}
	})
	t.Run("what it left running is ended", func(t *testing.T) {
		p := startTest(t, "sh", "-c", "sleep 1000 & echo left $!")
		ended(t, p)
		pid := printedPID(t, p, "left ")
		if alive(pid) {
			t.Error("the grandchild lives when the kernel is done")
		}
	})
	t.Run("a pipe held by a process that is not the kernel's", func(t *testing.T) {
		p := startTest(t, "sh", "-c",
			"env -i PATH=$PATH setsid sh -c 'echo left $$; exec sleep 1000' & until false; do sleep 0.05; done")
		pid := printedPID(t, p, "left ")
		p.Kill()
		ended(t, p)
		if !alive(pid) {
			t.Fatal("what has a session and an environment of its own was killed")
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
}

func TestProcess_Interrupt(t *testing.T) {
	p := startTest(t, "sh", "-c", `trap 'echo outer; exit 4' INT
		sh -c 'trap "echo inner; exit 0" INT; echo ready; while :; do sleep 0.05; done'`)
	printed(t, p, "ready")
	if err := p.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if got := ended(t, p); got.Code != 4 {
		t.Errorf("exit is %+v", got)
	}
	if out := p.LastOutput(100, time.Time{}); !strings.Contains(out, "inner\n") || !strings.Contains(out, "outer\n") {
		t.Errorf("not all of the group was interrupted: %q", out)
	}
}

func TestProcess_Kill(t *testing.T) {
	// One grandchild stays in the group and one has a group of its own. Both ignore SIGTERM.
	p := startTest(t, "python3", "-c", `
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
same = subprocess.Popen(["sleep", "1000"])
moved = subprocess.Popen(["sleep", "1000"], preexec_fn=os.setpgrp)
print("same", same.pid, flush=True)
print("moved", moved.pid, flush=True)
time.sleep(1000)
`)
	same, moved := printedPID(t, p, "same "), printedPID(t, p, "moved ")
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if got := ended(t, p); got.Signal != syscall.SIGKILL {
		t.Errorf("exit is %+v", got)
	}
	for name, pid := range map[string]int{"same group": same, "moved": moved} {
		if alive(pid) {
			t.Errorf("%s: process %d lives", name, pid)
		}
	}
}

// TestProcess_KillsOtherSessions: what a kernel has started in other sessions ends with it, and another kernel's
// processes go on.
func TestProcess_KillsOtherSessions(t *testing.T) {
	const daemons = `
import os, signal, subprocess, time
signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
def daemon(name, **env):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            p = subprocess.Popen(["sleep", "1000"], env=dict(os.environ, **env))
            print(name, p.pid, flush=True)
            p.wait()
        os._exit(0)
daemon("daemon")
daemon("other", EKG_KERNEL_ID="%s")
subprocess.Popen(["nohup", "setsid", "sh", "-c", "echo nohup $$; exec sleep 1000"])
time.sleep(1000)
`
	for name, end := range map[string]func(*Process){
		"killed":                 (*Process).Kill,
		"after SIGTERM":          func(p *Process) { _ = p.Signal(syscall.SIGTERM) },
		"ended by itself":        func(p *Process) { _ = p.Signal(syscall.SIGUSR1) },
		"killed, while it forks": (*Process).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			code := fmt.Sprintf(daemons, uuid.NewString())
			if strings.Contains(name, "forks") {
				code = strings.Replace(code, "time.sleep", `
if os.fork() == 0:
    os.setsid()
    for _ in range(200): # it must end
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        time.sleep(0.001)
    time.sleep(1000)
time.sleep`, 1)
			}
			p := startTest(t, "python3", "-c", code)
			marked := []int{printedPID(t, p, "daemon "), printedPID(t, p, "nohup ")}
			other := printedPID(t, p, "other ")
			end(p)
			ended(t, p)
			for _, pid := range marked {
				if alive(pid) {
					t.Errorf("process %d lives", pid)
				}
			}
			if !alive(other) {
				t.Error("a process of another kernel was killed")
			}
			if err := syscall.Kill(other, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			if n, err := proctree.KillRemains(testKernelID, p.PID()); n != 0 || err != nil {
				t.Errorf("%d processes were left, %v", n, err)
			}
		})
	}
}

// TestProcess_Intermediate is the supervisor in TestProcess_DiesWithSupervisor. By itself it tests nothing.
func TestProcess_Intermediate(t *testing.T) {
	if os.Getenv("EKG_TEST_INTERMEDIATE") == "" {
		t.Skip("only run by TestProcess_DiesWithSupervisor")
	}
	// It will be killed, so it must leave nothing to clean up.
	p, err := Start(Options{KernelID: testKernelID, Argv: []string{"sleep", "1000"}, WorkingDir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	// The runtime ends and starts threads here. The kernel must not end with one of them.
	for range 50 {
		done := make(chan struct{})
		go func() {
			runtime.LockOSThread() // so that the thread ends with the goroutine
			close(done)
		}()
		<-done
	}
	fmt.Println("kernel", p.PID())
	<-p.Done()
}

func TestProcess_DiesWithSupervisor(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestProcess_Intermediate$", "-test.v")
	cmd.Env = append(os.Environ(), "EKG_TEST_INTERMEDIATE=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kernel := 0
	for s := bufio.NewScanner(out); kernel == 0 && s.Scan(); {
		if _, pid, ok := strings.Cut(s.Text(), "kernel "); ok {
			kernel, _ = strconv.Atoi(pid)
		}
	}
	if kernel == 0 || !alive(kernel) {
		t.Errorf("kernel %d does not live before", kernel)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	eventually(t, "the kernel dies with its supervisor", func() bool { return !alive(kernel) })
}
