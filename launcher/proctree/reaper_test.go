package proctree

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestReaper_Program is the program in TestReaper. By itself it tests nothing.
func TestReaper_Program(t *testing.T) {
	if os.Getenv("EKG_TEST_REAPER") == "" {
		t.Skip("only run by TestReaper")
	}
	if err := AdoptOrphans(); err != nil {
		t.Fatal(err)
	}
	testChildEnded(t)
	r := NewReaper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	zombies := func() (n int) {
		for _, p := range List() {
			if p.Parent == os.Getpid() && p.State == 'Z' {
				n++
			}
		}
		return n
	}
	for range 20 {
		// Its orphan ends at about the same time. It has no other one: those of this program's session are not reaped.
		err := exec.Command("sh", "-c", "setsid sleep 0.01 & sleep 0.01; exit 7").Run()
		if ex, ok := err.(*exec.ExitError); !ok || ex.ExitCode() != 7 {
			t.Fatalf("a program of the same session ended with %v", err)
		}
		var pid int
		err = r.Start(func() (p int, err error) {
			pid, err = syscall.ForkExec("/bin/sh", []string{"sh", "-c", "exit 8"},
				&syscall.ProcAttr{Env: os.Environ(), Sys: &syscall.SysProcAttr{Setsid: true}})
			return pid, err
		})
		if err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "the child has ended", func() bool { return !isAlive(pid) })
		var status syscall.WaitStatus
		if got, err := syscall.Wait4(pid, &status, 0, nil); got != pid || err != nil || status.ExitStatus() != 8 {
			t.Fatalf("the status of a spared child is %v, %v", status, err)
		}
		r.Forget(pid)
	}
	waitUntil(t, "no zombie is left", func() bool { return zombies() == 0 })
	cancel()
	<-done
	fmt.Println("program is done")
}

// testChildEnded has no other child than its own.
func testChildEnded(t *testing.T) {
	t.Helper()
	want := func(want bool, when string) {
		t.Helper()
		if childEnded() != want {
			t.Errorf("%s: a child has ended: %v", when, !want)
		}
	}
	want(false, "without children")
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	want(false, "a child runs")
	_ = cmd.Process.Kill()
	waitUntil(t, "the child has ended", func() bool { return !isAlive(cmd.Process.Pid) })
	want(true, "a child has ended")
	want(true, "nothing was reaped by the look")
	_ = cmd.Wait() // it was killed
	want(false, "it was waited for")
}

// TestReaper runs a program that adopts orphans: it reaps them, and takes the exit status of no other child.
func TestReaper(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestReaper_Program$", "-test.v")
	cmd.Env = append(os.Environ(), "EKG_TEST_REAPER=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "program is done") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
