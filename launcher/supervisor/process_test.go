package supervisor

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const testKernelID = "0a7e3f52-5a2c-4a63-8a58-0d7c61e1a001"

// processConfig is a kernel of this machine's own programs in an empty folder.
func processConfig(t *testing.T) Config {
	return Config{
		KernelID:   testKernelID,
		Env:        map[string]string{"PATH": os.Getenv("PATH"), "A": "1"},
		WorkingDir: t.TempDir(),
	}
}

// startTest starts a kernel that the test's end finds ended, with every goroutine of it.
func startTest(t *testing.T, argv ...string) *process {
	t.Helper()
	before := goleak.IgnoreCurrent()
	p, err := startProcess(processConfig(t), argv, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		ended(t, p)
		goleak.VerifyNone(t, before)
	})
	return p
}

func ended(t *testing.T, p *process) exitInfo {
	t.Helper()
	select {
	case <-p.done():
	case <-time.After(10 * time.Second):
		t.Fatal("the process's end is not noticed")
	}
	return p.exit()
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
	e, ok := readProcess(pid)
	return ok && e.state != 'Z' && e.state != 'X'
}

// printed waits until the process has printed the words, and returns the rest of their line.
func printed(t *testing.T, p *process, words string) string {
	t.Helper()
	var rest string
	eventually(t, "it prints "+words, func() bool {
		for line := range strings.Lines(p.stdout.text(tailLimit)) {
			if r, ok := strings.CutPrefix(line, words); ok && strings.HasSuffix(line, "\n") {
				rest = strings.TrimSpace(r)
				return true
			}
		}
		return false
	})
	return rest
}

func printedPID(t *testing.T, p *process, words string) int {
	t.Helper()
	pid, err := strconv.Atoi(printed(t, p, words))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestProcess_Start(t *testing.T) {
	t.Run("environment, folder, session and stdin", func(t *testing.T) {
		p := startTest(t, "sh", "-c", `cat; echo "dir $(pwd)"; echo "env $A $EKG_KERNEL_ID"; echo "stat $(cat /proc/$$/stat)"; env | wc -l`)
		if got := ended(t, p); got.Code != 0 || got.Signal != 0 {
			t.Errorf("exit is %+v", got)
		}
		out := p.lastWords(tailLimit)
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
		want := strconv.Itoa(p.pid())
		if len(f) < 6 || f[4] != want || f[5] != want {
			t.Errorf("group and session are not %s: %v", want, f)
		}
	})
	t.Run("the id cannot be set by the configuration", func(t *testing.T) {
		cfg := processConfig(t)
		cfg.Env[kernelIDVariable] = "another"
		got := environment(cfg)
		if last := got[len(got)-1]; last != kernelIDVariable+"="+testKernelID || strings.Contains(strings.Join(got, " "), "another") {
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
		cfg  Config
		argv []string
		want string
	}{
		{"no command", Config{}, nil, `the kernel's command is empty`},
		{"missing", Config{}, []string{"/x/y"}, `the kernel's program "/x/y" does not exist`},
		{"missing below a file", Config{}, []string{plainFile + "/y"}, `the kernel's program "` + plainFile + `/y" does not exist`},
		{"missing, relative", Config{WorkingDir: dir}, []string{"./y"}, `the kernel's program "./y" does not exist`},
		{"not on PATH", Config{Env: map[string]string{"PATH": dir + ":relative"}}, []string{"y"}, `the kernel's program "y" was not found on its PATH`},
		{"on PATH, not executable", Config{Env: map[string]string{"PATH": dir}}, []string{"plain"}, `the kernel's program "` + plainFile + `" is not executable`},
		{"not executable", Config{}, []string{plainFile}, `the kernel's program "` + plainFile + `" is not executable`},
		{"a folder", Config{}, []string{dir}, `the kernel's program "` + dir + `" is a directory`},
		{"no interpreter", Config{}, []string{script}, `the kernel's program "` + script + `" asks for the interpreter "/no/such/python3", which does not exist`},
		{"saved on Windows", Config{}, []string{windows}, `the kernel's program "` + windows + `" asks for the interpreter "/bin/sh\r", which does not exist`},
		{"no program", Config{}, []string{binary}, `the kernel's program "` + binary + `" is not in a format that this machine can execute`},
		{"no folder", Config{WorkingDir: "/x/y"}, []string{"sh"}, `the kernel's working directory "/x/y" does not exist`},
		{"folder is a file", Config{WorkingDir: plainFile}, []string{"sh"}, `the kernel's working directory "` + plainFile + `" is not a directory`},
		{"zero byte", Config{}, []string{"sh", "a\x00b"}, `the kernel's command or environment contains a zero byte`},
		{"too large", Config{}, []string{"sh", "-c", ":", strings.Repeat("x", 1<<20)}, `the kernel's command and environment are too large for this machine`},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			p, err := startProcess(c.cfg, c.argv, slog.New(slog.DiscardHandler))
			if p != nil || err == nil || err.Error() != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
			goleak.VerifyNone(t, before)
		})
	}
}

func TestProcess_Exit(t *testing.T) {
	t.Run("exit code, last words, and no zombie", func(t *testing.T) {
		p := startTest(t, "sh", "-c", "echo out; echo err >&2; exit 3")
		if got := ended(t, p); got.Code != 3 || got.Signal != 0 || got.OOM || time.Since(got.At) > time.Minute {
			t.Errorf("exit is %+v", got)
		}
		if got := p.lastWords(100); got != "err\n" {
			t.Errorf("last words are %q", got)
		}
		if _, ok := readProcess(p.pid()); ok {
			t.Error("the process is still in the table")
		}
		if err := p.signal(syscall.SIGTERM); err != os.ErrProcessDone {
			t.Errorf("a signal to an ended process gives %v", err)
		}
		p.kill() // harmless
	})
	t.Run("signal", func(t *testing.T) {
		p := startTest(t, "sh", "-c", "echo out; kill -SEGV $$")
		if got := ended(t, p); got.Code != -1 || got.Signal != syscall.SIGSEGV {
			t.Errorf("exit is %+v", got)
		}
		if got := p.lastWords(100); got != "out\n" {
			t.Errorf("without stderr the last words are %q", got)
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
		if got := p.lastWords(100); got != "end\n" {
			t.Errorf("last words are %q", got)
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
	t.Run("a pipe held by a process that has left the session", func(t *testing.T) {
		p := startTest(t, "sh", "-c", "setsid sh -c 'echo left $$; exec sleep 1000' & exec sleep 0.3")
		ended(t, p)
		pid := printedPID(t, p, "left ")
		if !alive(pid) {
			t.Fatal("what has a session of its own was killed")
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
	if err := p.signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if got := ended(t, p); got.Code != 4 {
		t.Errorf("exit is %+v", got)
	}
	if out := p.lastWords(100); !strings.Contains(out, "inner\n") || !strings.Contains(out, "outer\n") {
		t.Errorf("not all of the group was interrupted: %q", out)
	}
}

func TestProcess_Kill(t *testing.T) {
	// One grandchild in the group, one that has moved to a group of its own, both deaf to polite signals.
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
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.kill()
	if got := ended(t, p); got.Signal != syscall.SIGKILL {
		t.Errorf("exit is %+v", got)
	}
	for name, pid := range map[string]int{"same group": same, "moved": moved} {
		if alive(pid) {
			t.Errorf("%s: process %d lives", name, pid)
		}
	}
}

// TestProcess_Intermediate is no test of its own: it is the supervisor in TestProcess_DiesWithSupervisor.
func TestProcess_Intermediate(t *testing.T) {
	if os.Getenv("EKG_TEST_INTERMEDIATE") == "" {
		t.Skip("only run by TestProcess_DiesWithSupervisor")
	}
	cfg := Config{KernelID: testKernelID, WorkingDir: "/"} // nothing to clean up: it will be killed
	p, err := startProcess(cfg, []string{"sleep", "1000"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	// Let the runtime end and start threads: the kernel must not go with one of them.
	for range 50 {
		done := make(chan struct{})
		go func() {
			lockAndLeave()
			close(done)
		}()
		<-done
	}
	fmt.Println("kernel", p.pid())
	<-p.done()
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
