package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// A killed process needs a moment to vanish, and one that forks at that very time has to be found again.
const (
	killRounds = 20
	killPause  = 5 * time.Millisecond
)

// procEntry is what /proc/PID/stat tells of a process.
type procEntry struct {
	pid     int
	parent  int
	session int
	state   byte
}

// killSession kills all processes of a session. The caller makes sure that the number is still that session's: its
// leader lives, or has not been reaped. It waits briefly until they are gone but for the leader, which may be a zombie.
func killSession(leader int) {
	// The group first: it is most of them, and at once.
	_ = syscall.Kill(-leader, syscall.SIGKILL)
	for range killRounds {
		left := 0
		for _, e := range processes() {
			if e.session == leader && e.state != 'Z' && e.state != 'X' {
				left++
				_ = syscall.Kill(e.pid, syscall.SIGKILL) // ESRCH: gone in the meantime
			}
		}
		if left == 0 {
			return
		}
		time.Sleep(killPause)
	}
}

// KillRemains kills what a kernel has left behind whose supervisor is dead, so that nobody holds its process's number:
// every process that carries the kernel's id in its environment, and, if such a one is in the session that kernelPID
// led, all of that session. Processes are pinned before they are looked at: no other is hit. It returns how many it
// has killed, and an error if some are still there.
func KillRemains(kernelID string, kernelPID int) (int, error) {
	if kernelID == "" {
		return 0, errors.New("no kernel id")
	}
	killed := make(map[int]bool)
	for range killRounds {
		left := remains(kernelID, kernelPID)
		if len(left) == 0 {
			return len(killed), nil
		}
		for _, pid := range left {
			if killPinned(pid, kernelID, kernelPID) {
				killed[pid] = true
			}
		}
		time.Sleep(killPause)
	}
	if left := remains(kernelID, kernelPID); len(left) > 0 {
		return len(killed), fmt.Errorf("%d processes of kernel %s do not end", len(left), kernelID)
	}
	return len(killed), nil
}

// remains lists the living processes that KillRemains is for.
func remains(kernelID string, kernelPID int) []int {
	var marked, session []int
	proven := false // the session is the kernel's and not one that got the same number later
	for _, e := range processes() {
		switch {
		case e.state == 'Z' || e.state == 'X' || e.pid == os.Getpid():
		case carries(e.pid, kernelID):
			marked = append(marked, e.pid)
			proven = proven || e.session == kernelPID
		case e.session == kernelPID && kernelPID > 1:
			session = append(session, e.pid)
		}
	}
	if proven {
		marked = append(marked, session...)
	}
	return marked
}

// killPinned kills a process if it is still one of the kernel's. The handle is taken before the second look, so that
// the number cannot pass to another process between look and kill (pidfd, where the system has it).
func killPinned(pid int, kernelID string, kernelPID int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	defer p.Release()
	e, ok := readProcess(pid)
	if !ok || !(carries(pid, kernelID) || e.session == kernelPID) {
		return false
	}
	return p.Kill() == nil
}

// carries reports whether the process was started with the kernel's id in its environment.
func carries(pid int, kernelID string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false // gone, or another user's
	}
	want := []byte(kernelIDVariable + "=" + kernelID)
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.Equal(v, want) {
			return true
		}
	}
	return false
}

// processes lists the processes that there are.
func processes() []procEntry {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what could be read
	var all []procEntry
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if e, ok := readProcess(pid); ok {
				all = append(all, e)
			}
		}
	}
	return all
}

// readProcess reads one process's entry; see proc_pid_stat(5).
func readProcess(pid int) (procEntry, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procEntry{}, false
	}
	// The name, in parentheses, may contain anything.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return procEntry{}, false
	}
	f := bytes.Fields(b[i+1:]) // state, parent, group, session, ...
	if len(f) < 4 || len(f[0]) != 1 {
		return procEntry{}, false
	}
	parent, perr := strconv.Atoi(string(f[1]))
	session, serr := strconv.Atoi(string(f[3]))
	if perr != nil || serr != nil {
		return procEntry{}, false
	}
	return procEntry{pid: pid, parent: parent, session: session, state: f[0][0]}, true
}
