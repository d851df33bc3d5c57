package main

import (
	"os"
	"os/exec"
	"sync"
	"syscall"
)

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

// kill kills a process that the harness has started, by another process.
func kill(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) } // it may have ended by itself
