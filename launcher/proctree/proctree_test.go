package proctree

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
)

// orphan starts a program as a session leader whose environment is exactly env.
func orphan(t *testing.T, env []string, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the test may have killed it
		close(exited)
	}()
	t.Cleanup(func() {
		select {
		case <-exited: // another process may have the number
		default:
			KillSession(cmd.Process.Pid)
			<-exited
		}
	})
	return cmd
}

func isAlive(pid int) bool {
	p, ok := Find(pid)
	return ok && p.Alive()
}

// waitUntil waits for something that another process does.
func waitUntil(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func TestKillRemains(t *testing.T) {
	id, other := uuid.NewString(), uuid.NewString() // not those of another run of this test
	kernel := orphan(t, []string{"EKG_KERNEL_ID=" + id}, "sh", "-c", "env -i sleep 1000 & sleep 1000 & wait")
	away := orphan(t, []string{"EKG_KERNEL_ID=" + id}, "sleep", "1000")
	stranger := orphan(t, []string{"EKG_KERNEL_ID=" + other}, "sleep", "1000")
	pid := kernel.Process.Pid
	members := func(session int) (n int) {
		for _, e := range List() {
			if e.Session == session && e.Alive() {
				n++
			}
		}
		return n
	}
	waitUntil(t, "the kernel has its children", func() bool { return members(pid) == 3 })

	t.Run("another session with the same number is not killed", func(t *testing.T) {
		if n, err := KillRemains(uuid.NewString(), stranger.Process.Pid); n != 0 || err != nil {
			t.Fatalf("killed %d, %v", n, err)
		}
		if !isAlive(stranger.Process.Pid) {
			t.Fatal("a stranger was killed")
		}
	})
	t.Run("all that is the kernel's", func(t *testing.T) {
		n, err := KillRemains(id, pid)
		if n != 4 || err != nil {
			t.Errorf("killed %d, %v", n, err)
		}
		if got := members(pid) + members(away.Process.Pid); got != 0 {
			t.Errorf("%d live", got)
		}
		if !isAlive(stranger.Process.Pid) {
			t.Error("another kernel was killed")
		}
	})
}

// TestKillPinned: a process is killed only if it is one that is meant when its handle is open. Since it was listed,
// another process may have got its number.
func TestKillPinned(t *testing.T) {
	pid := orphan(t, nil, "sleep", "1000").Process.Pid
	if killPinned(pid, func(p Process) bool { return p.Session == pid+1 }) || !isAlive(pid) {
		t.Error("a process that is not meant was killed")
	}
	if !killPinned(pid, func(p Process) bool { return p.Session == pid }) {
		t.Error("a process that is meant was not killed")
	}
	waitUntil(t, "it has ended", func() bool { return !isAlive(pid) })
}

// TestKillSession kills what is in a session, and no process of another one.
func TestKillSession(t *testing.T) {
	leader := orphan(t, nil, "sh", "-c", "sleep 1000 & setsid sleep 1000 & wait").Process.Pid
	var inside, outside int
	waitUntil(t, "the session has its processes", func() bool {
		inside, outside = 0, 0
		for _, p := range List() {
			switch {
			case p.Session == leader && p.PID != leader && p.Alive():
				inside = p.PID
			case p.Parent == leader && p.Session == p.PID:
				outside = p.PID
			}
		}
		return inside != 0 && outside != 0
	})
	defer KillSession(outside)
	KillSession(leader)
	if isAlive(inside) || !isAlive(outside) {
		t.Errorf("a member lives: %t; a process of another session lives: %t", isAlive(inside), isAlive(outside))
	}
}

// TestKillRemains_Executing: a process that executes a program just now has no environment for a moment.
func TestKillRemains_Executing(t *testing.T) {
	script := filepath.Join(t.TempDir(), "again")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec "+script+"\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	for range 20 {
		id := uuid.NewString()
		pid := orphan(t, []string{KernelIDVariable + "=" + id}, script).Process.Pid
		if n, err := KillRemains(id, -1); n != 1 || err != nil {
			t.Fatalf("%d processes were killed, %v", n, err)
		}
		waitUntil(t, "the process ends", func() bool { return !isAlive(pid) })
	}
}
