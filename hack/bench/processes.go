package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// This file starts and ends processes, and reads what they use from /proc.

// process is a process that the harness has started, with a process group of its own.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	once sync.Once
}

// start starts a process whose output goes to a file, but for a pipe that the caller has made.
func (b *bench) start(cmd *exec.Cmd, log string) (*process, error) {
	f, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // the process has it
	if cmd.Stdout == nil {
		cmd.Stdout = f
	}
	if cmd.Stderr == nil {
		cmd.Stderr = f
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		_, _ = cmd.Process.Wait() // how it ended does not matter; the pipes stay open for their reader
		close(p.done)
	}()
	b.mu.Lock()
	b.started = append(b.started, p)
	b.mu.Unlock()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill kills the process group and waits for the process.
func (p *process) kill() {
	p.once.Do(func() {
		select {
		case <-p.done:
		default:
			_ = syscall.Kill(-p.pid(), syscall.SIGKILL) // it may end just now
		}
	})
	<-p.done
}

// found is an entry of the process table.
type found struct {
	pid     int
	cmdline string
}

// processesOf returns the processes with this text on their command line, except the harness itself.
func processesOf(text string) []found {
	var all []found
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is good
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(line, []byte(text)) {
			continue // it has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && pid != os.Getpid() {
			all = append(all, found{pid, string(bytes.ReplaceAll(line, []byte{0}, []byte(" ")))})
		}
	}
	return all
}

// processorTime returns the time of processors that processes have used since their start.
func processorTime(pids []int) time.Duration {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on Linux
	var sum time.Duration
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		for _, i := range []int{11, 12} { // utime and stime; the field behind the name is 0
			n, _ := strconv.Atoi(fields[i]) // the kernel writes numbers
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

// kibibytes returns a line of a file in /proc/PID, summed over processes, in bytes.
func kibibytes(pids []int, file, name string) int64 {
	var sum int64
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err != nil {
			continue // it has ended
		}
		if _, rest, ok := strings.Cut("\n"+string(b), "\n"+name+":"); ok {
			var kib int64
			if _, err := fmt.Sscan(rest, &kib); err == nil {
				sum += kib << 10
			}
		}
	}
	return sum
}

// pss returns the memory of processes. What several share is divided among them.
func pss(pids []int) int64 { return kibibytes(pids, "smaps_rollup", "Pss") }

// peak returns the sum of the highest resident sizes since resetPeak.
func peak(pids []int) int64 { return kibibytes(pids, "status", "VmHWM") }

func resetPeak(pids []int) {
	for _, pid := range pids {
		// A process that cannot be reset shows too high a peak, not too low.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
	}
}

// descriptors returns the number of open files of processes.
func descriptors(pids []int) int {
	n := 0
	for _, pid := range pids {
		entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)) // it may have ended
		n += len(entries)
	}
	return n
}

// kill kills a process that the harness has started, by another process.
func kill(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) } // it may have ended by itself
