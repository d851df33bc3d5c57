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
		// Its orphan ends at about the same time.
		err := exec.Command("sh", "-c", "(setsid sleep 0.01 &) & sleep 0.01; exit 7").Run()
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
