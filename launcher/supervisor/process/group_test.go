package process

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/launcher/cgroup"
)

// groupOptions returns the options of a kernel with a new control group, and the folder of the group.
func groupOptions(t *testing.T, argv ...string) (Options, string) {
	t.Helper()
	dir, err := cgroup.Find()
	if err != nil {
		t.Skipf("this process may not create control groups: %v", err)
	}
	opts := testOptions(t, argv...)
	opts.KernelID = uuid.NewString()
	path := cgroup.Path(dir, opts.KernelID)
	if opts.Group, err = cgroup.At(path, opts.KernelID); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := opts.Group.Kill(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		if err := opts.Group.Remove(); err != nil {
			t.Error(err)
		}
	})
	return opts, path
}

func startOptions(t *testing.T, opts Options) *Process {
	t.Helper()
	p, err := Start(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill(); ended(t, p) })
	return p
}

// hidden starts a process as a kernel may: its parents have ended, it has a session of its own and no environment.
const hidden = "env -i /usr/bin/setsid -f /bin/sh -c 'echo hidden $$; exec /bin/sleep 1000'\n"

// TestProcess_Group: nothing that a kernel has started outlives it, and its next process has the same group.
func TestProcess_Group(t *testing.T) {
	opts, path := groupOptions(t, "sh", "-c", hidden+"trap 'exit 3' USR1; echo ready\nuntil false; do sleep 0.02; done")
	var log bytes.Buffer
	opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
	for _, end := range []struct {
		name string
		end  func(*Process)
		want Exit
	}{
		{"killed", (*Process).Kill, Exit{Code: -1, Signal: syscall.SIGKILL}},
		{"after SIGTERM", func(p *Process) { _ = p.Signal(syscall.SIGTERM) }, Exit{Code: -1, Signal: syscall.SIGTERM}},
		{"ended by itself", func(p *Process) { _ = p.Signal(syscall.SIGUSR1) }, Exit{Code: 3}},
	} {
		t.Run(end.name, func(t *testing.T) {
			log.Reset()
			p := startOptions(t, opts)
			pid := printedPID(t, p, "hidden ")
			printed(t, p, "ready")
			if !opts.Group.Holds(p.PID()) || !opts.Group.Holds(pid) || opts.Group.Holds(os.Getpid()) {
				t.Error("the group does not hold the kernel's processes alone")
			}
			end.end(p)
			got := ended(t, p)
			if got.Code != end.want.Code || got.Signal != end.want.Signal || got.OOM {
				t.Errorf("exit is %+v", got)
			}
			if alive(pid) {
				t.Errorf("process %d lives", pid)
			}
			if b, err := os.ReadFile(filepath.Join(path, "cgroup.events")); err != nil ||
				!strings.Contains(string(b), "populated 0\n") {
				t.Errorf("the group has %q, %v", b, err)
			}
			if s := log.String(); !strings.Contains(s, "left running were killed") || strings.Contains(s, "WARN") {
				t.Errorf("the log is %s", s)
			}
		})
	}
}

// TestProcess_GroupRefused: a kernel starts without a group where it cannot have one, and its processes are found by
// their environment.
func TestProcess_GroupRefused(t *testing.T) {
	daemon := []string{"sh", "-c", "setsid -f sh -c 'echo daemon $$; exec sleep 1000'\nexec sleep 1000"}
	check := func(t *testing.T, opts Options, why string) {
		t.Helper()
		var log bytes.Buffer
		opts.Logger, opts.KernelID = slog.New(slog.NewTextHandler(&log, nil)), uuid.NewString()
		p := startOptions(t, opts)
		pid := printedPID(t, p, "daemon ")
		if opts.Group.Holds(p.PID()) {
			t.Error("it is in the group")
		}
		p.Kill()
		if got := ended(t, p); got.Signal != syscall.SIGKILL || alive(pid) {
			t.Errorf("exit is %+v; its daemon lives: %t", got, alive(pid))
		}
		if s := log.String(); !strings.Contains(s, "without a control group of its own") || !strings.Contains(s, why) {
			t.Errorf("the log is %s", s)
		}
	}
	t.Run("no folder", func(t *testing.T) {
		opts := testOptions(t, daemon...)
		id := uuid.NewString()
		opts.Group, _ = cgroup.At(cgroup.Path("/proc/self", id), id)
		check(t, opts, "mkdir")
	})
	t.Run("no control group", func(t *testing.T) {
		opts := testOptions(t, daemon...)
		id := uuid.NewString()
		path := cgroup.Path(t.TempDir(), id)
		opts.Group, _ = cgroup.At(path, id)
		check(t, opts, "bad file descriptor")
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the folder stays: %v", err)
		}
	})
	t.Run("another process is in it", func(t *testing.T) {
		opts, _ := groupOptions(t, daemon...)
		other := startOptions(t, opts)
		printed(t, other, "daemon ")
		check(t, opts, "busy")
		if !alive(other.PID()) {
			t.Error("the other process was killed")
		}
	})
	t.Run("a program that does not exist", func(t *testing.T) {
		opts, _ := groupOptions(t, "/x/y")
		if _, err := Start(opts); err == nil || err.Error() != `the kernel's program "/x/y" does not exist` {
			t.Errorf("got %v", err)
		}
	})
}

// TestProcess_GroupKilledOnce: Linux 6.18 kills what is cloned into a group by a process whose own group was killed
// once. The kernel starts all the same. The test runs itself as that process.
func TestProcess_GroupKilledOnce(t *testing.T) {
	const variable = "EKG_TEST_KILLED_GROUP"
	if own := os.Getenv(variable); own != "" {
		if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			t.Fatal(err)
		}
		opts, _ := groupOptions(t, "sh", "-c", "echo up; exec sleep 1000")
		p := startOptions(t, opts)
		printed(t, p, "up")
		p.Kill()
		if got := ended(t, p); got.Signal != syscall.SIGKILL {
			t.Errorf("exit is %+v", got)
		}
		t.Log("in its group:", p.inside)
		return
	}
	opts, path := groupOptions(t)
	dir, err := opts.Group.Open()
	if err == nil {
		err = errors.Join(dir.Close(), os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0o644))
	}
	if err != nil {
		t.Skipf("a group cannot be killed at once: %v", err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestProcess_GroupKilledOnce$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+path)
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("in its group:")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestProcess_GroupLeft: a kernel that was moved to another group is found by session and environment. A process that
// the kernel has moved goes on.
func TestProcess_GroupLeft(t *testing.T) {
	opts, path := groupOptions(t)
	procs := filepath.Join(filepath.Dir(path), "cgroup.procs")
	t.Run("the kernel", func(t *testing.T) {
		opts.Argv = []string{"sh", "-c", "echo 0 >" + procs + "\nsetsid -f sh -c 'echo daemon $$; exec sleep 1000'\n" +
			"exec sleep 1000"}
		p := startOptions(t, opts)
		pid := printedPID(t, p, "daemon ")
		p.Kill()
		if got := ended(t, p); got.Signal != syscall.SIGKILL || alive(pid) {
			t.Errorf("exit is %+v; its daemon lives: %t", got, alive(pid))
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the group stays: %v", err)
		}
	})
	t.Run("a process", func(t *testing.T) {
		opts.Argv = []string{"sh", "-c", "setsid -f sh -c 'echo 0 >" + procs + "; echo moved $$; exec sleep 1000'\n" +
			"exec sleep 1000"}
		p := startOptions(t, opts)
		pid := printedPID(t, p, "moved ")
		p.Kill()
		ended(t, p)
		if !alive(pid) {
			t.Error("what was moved on purpose was killed")
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
}
