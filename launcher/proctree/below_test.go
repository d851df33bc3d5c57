package proctree

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// adopt makes orphans children of this program until the test ends.
func adopt(t *testing.T) {
	t.Helper()
	if err := AdoptOrphans(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
			t.Error(err)
		}
	})
}

// A process that has left its session, and whose parents have ended, is below this program.
func TestBelow(t *testing.T) {
	id, other := uuid.NewString(), uuid.NewString()
	adopt(t)
	cmd := exec.Command("sh", "-c", "(setsid sh -c 'echo $$; exec sleep 1000' &) & "+
		"(EKG_KERNEL_ID="+other+" setsid sh -c 'echo $$; exec sleep 1000' &) & wait; exec sleep 1000")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), KernelIDVariable + "=" + id}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var orphans []int
	for lines := bufio.NewScanner(out); len(orphans) < 2 && lines.Scan(); {
		pid, err := strconv.Atoi(strings.TrimSpace(lines.Text()))
		if err != nil {
			t.Fatal(err)
		}
		orphans = append(orphans, pid)
	}
	waitUntil(t, "they are orphans", func() bool {
		for _, pid := range orphans {
			if p, ok := Find(pid); !ok || p.Parent != os.Getpid() || !sleeps(pid) {
				return false
			}
		}
		return true
	})
	found := map[int]bool{}
	for _, p := range Below() {
		found[p.PID] = true
	}
	if !found[cmd.Process.Pid] || !found[orphans[0]] || !found[orphans[1]] || found[os.Getpid()] || found[os.Getppid()] {
		t.Errorf("%d and %v are below this program, and it has %v", cmd.Process.Pid, orphans, found)
	}
	if n, err := KillRemainsBelow(id, cmd.Process.Pid); n != 2 || err != nil {
		t.Errorf("killed %d, %v", n, err)
	}
	_ = cmd.Wait() // it was killed
	if n, err := KillRemainsBelow(other, 0); n != 1 || err != nil {
		t.Errorf("of another kernel killed %d, %v", n, err)
	}
	for _, pid := range orphans {
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
			t.Error(err)
		}
	}
}

// sleeps reports whether a process executes sleep.
func sleeps(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return err == nil && string(b) == "sleep\n"
}
