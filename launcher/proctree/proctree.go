// Package proctree finds and kills the processes of a kernel on this machine: those of its session, and those that
// carry its id in their environment. Launchers call it for what a dead supervisor left behind, and supervisors for the
// kernel that they run. Begin with Find and KillRemains. A Reaper takes the exit status of orphans, and a Scan measures
// processor time. The package reads /proc and starts no goroutines. All functions may be called concurrently.
package proctree

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// KernelIDVariable names the kernel in the environment of its process. Everything that the process starts inherits it
// unless the variable is cleared, so it marks what a kernel leaves behind.
const KernelIDVariable = "EKG_KERNEL_ID"

// A killed process needs a moment to vanish. A process that forks in that moment has to be found in a later round.
const (
	killRounds    = 20
	killPause     = 5 * time.Millisecond
	killPauseMost = 50 * time.Millisecond // in KillRemains, whose pauses grow
)

// KillRemainsLimit bounds KillRemains, unless /proc itself hangs.
const KillRemainsLimit = 2 * time.Second

// Process is what /proc/PID/stat says about a process.
type Process struct {
	PID     int
	Parent  int    // process id
	Session int    // process id of the session's leader
	Began   uint64 // when it was forked, in clock ticks after the machine's start
	State   byte   // the letter of proc_pid_stat(5), such as R, S or Z

	Executed bool // it has executed a program since it was forked

	kernelThread bool // of Linux: it has no program

	used time.Duration // processor time, with that of its children that have ended
}

// Alive reports whether the process has not ended. A zombie has ended.
func (p Process) Alive() bool { return p.State != 'Z' && p.State != 'X' }

// KillSession kills all processes of a session and waits up to 100 ms until they are gone. The leader may stay as a
// zombie. The caller ensures that the leader has not been reaped, so that no other session has its number.
func KillSession(leader int) {
	// The group first: it is most of them, and at once.
	_ = syscall.Kill(-leader, syscall.SIGKILL)
	member := func(p Process) bool { return p.Session == leader && p.Alive() }
	for range killRounds {
		left := 0
		for _, p := range List() {
			if member(p) {
				left++
				killPinned(p.PID, member)
			}
		}
		if left == 0 {
			return
		}
		time.Sleep(killPause)
	}
}

// KillRemains kills what is left of a kernel: every process that carries the kernel's id in its environment, in any
// session. If one of them is in the session that kernelPID led, all of that session is killed too. It searches until it
// finds no more, for KillRemainsLimit at most. A process that executes a program just now has no environment for a
// moment. So it looks again at processes without one, for 100 ms at most.
//
// It pins each process before it checks it, so it kills no other process that got the same number. It spares its own
// process. It returns how many processes it killed, and an error if some of them are still alive.
func KillRemains(kernelID string, kernelPID int) (int, error) {
	if kernelID == "" {
		return 0, errors.New("no kernel id")
	}
	killed := make(map[int]bool)
	proven := false // see remains; no other session gets the number while one of this session's processes lives
	deadline := time.Now().Add(KillRemainsLimit)
	belongs := func(p Process) bool { return Carries(p.PID, kernelID) || p.Session == kernelPID }
	for pause := killPause; ; pause = min(2*pause, killPauseMost) {
		var left, bare []int
		left, bare, proven = remains(kernelID, kernelPID, proven)
		late := time.Now().After(deadline)
		switch {
		case len(left) == 0 && (late || !willCarry(bare, kernelID)):
			return len(killed), nil
		case late:
			return len(killed), fmt.Errorf("%d processes of kernel %s do not end", len(left), kernelID)
		}
		for _, pid := range left {
			if killPinned(pid, belongs) {
				killed[pid] = true
			}
		}
		time.Sleep(pause)
	}
}

// willCarry reports whether one of the processes has the kernel's id once it has an environment. It waits for 100 ms at
// most: a process may have been started without one.
func willCarry(bare []int, kernelID string) bool {
	for range killRounds {
		var still []int
		for _, pid := range bare {
			is, isBare := carries(pid, kernelID)
			if is {
				return true
			}
			if isBare {
				still = append(still, pid)
			}
		}
		if bare = still; len(bare) == 0 {
			return false
		}
		time.Sleep(killPause)
	}
	return false
}

// remains lists the living processes that KillRemains kills, and those without an environment, which may be executing a
// program. known becomes true once the session is known to be the kernel's, and not one that got the same number later.
func remains(kernelID string, kernelPID int, proven bool) (marked, bare []int, known bool) {
	var session []int
	for _, p := range List() {
		if !p.Alive() || p.PID == os.Getpid() || p.kernelThread {
			continue
		}
		is, isBare := carries(p.PID, kernelID)
		switch {
		case is:
			marked = append(marked, p.PID)
			proven = proven || p.Session == kernelPID
		case p.Session == kernelPID && kernelPID > 1:
			session = append(session, p.PID)
		case isBare:
			bare = append(bare, p.PID)
		}
	}
	if proven {
		marked = append(marked, session...)
	}
	return marked, bare, proven
}

// killPinned kills a process if meant is true of it, and reports whether it did. It takes a handle before the check (a
// pidfd, where the system has them). So no other process can get the number between check and kill.
func killPinned(pid int, meant func(Process) bool) bool {
	handle, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	defer handle.Release() //nolint:errcheck // the handle is not used again
	p, ok := Find(pid)
	return ok && meant(p) && handle.Kill() == nil
}

// Carries reports whether the process was started with the kernel's id in its environment.
func Carries(pid int, kernelID string) bool {
	is, _ := carries(pid, kernelID)
	return is
}

// carries is Carries. bare reports that the process has no environment at the moment.
func carries(pid int, kernelID string) (is, bare bool) {
	env, err := environment(pid)
	want := KernelIDVariable + "=" + kernelID
	is = slices.ContainsFunc(env, func(v []byte) bool { return string(v) == want })
	return is, err == nil && len(env) == 0
}

// Variable returns the value that a variable had when the process was started; "" if it cannot be read.
func Variable(pid int, name string) string {
	env, _ := environment(pid) // the error of a process that has ended means none
	for _, v := range env {
		if value, is := bytes.CutPrefix(v, []byte(name+"=")); is {
			return string(value)
		}
	}
	return ""
}

// environment returns the variables with which a process was started. The error says that it has ended, or belongs to
// another user.
func environment(pid int) ([][]byte, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil || len(b) == 0 {
		return nil, err
	}
	return bytes.Split(b, []byte{0}), nil
}

// List returns all processes that this process can see in /proc. Processes that end meanwhile may be missing.
func List() []Process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()                //nolint:errcheck // it was only read
	names, _ := dir.Readdirnames(-1) // the names read before an error are good
	var all []Process
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := Find(pid); ok {
				all = append(all, p)
			}
		}
	}
	return all
}

// Find returns the process with this id, and false if there is no such process. See proc_pid_stat(5).
func Find(pid int) (Process, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, false
	}
	// The program's name, in parentheses, may contain anything.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return Process{}, false
	}
	f := bytes.Fields(b[i+1:]) // state, parent, group, session, ...
	if len(f) < 4 || len(f[0]) != 1 {
		return Process{}, false
	}
	parent, perr := strconv.Atoi(string(f[1]))
	session, serr := strconv.Atoi(string(f[3]))
	if perr != nil || serr != nil {
		return Process{}, false
	}
	flags := parseFlags(f)
	var began uint64
	if len(f) > 19 {
		began, _ = strconv.ParseUint(string(f[19]), 10, 64) // 0, if it is no number
	}
	return Process{PID: pid, Parent: parent, Session: session, Began: began, State: f[0][0],
		Executed: flags&notExecuted == 0, kernelThread: flags&kernelThread != 0, used: parseProcessorTime(f)}, true
}

// Flags of a process: PF_FORKNOEXEC, which ps(1) shows too, and PF_KTHREAD of Linux' sched.h. An exec clears the first
// before it closes files.
const (
	notExecuted  = 0x40
	kernelThread = 0x200000
)

// parseFlags returns the flags of a process, or 0 if they are unknown. fields begin with its state.
func parseFlags(fields [][]byte) uint64 {
	if len(fields) < 7 {
		return 0
	}
	flags, err := strconv.ParseUint(string(fields[6]), 10, 64)
	if err != nil {
		return 0
	}
	return flags
}
