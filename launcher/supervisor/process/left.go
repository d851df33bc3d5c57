package process

import (
	"errors"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
)

// forkExec starts the program in the kernel's control group, or without one if that is not possible. attr has Sys.
func (p *Process) forkExec(path string, attr *syscall.ProcAttr) (int, error) {
	var why error
	if p.opts.Group != nil {
		var pid int
		if pid, why = p.forkInGroup(path, attr); why == nil {
			p.inside = true
			return pid, nil
		}
	}
	pid, err := syscall.ForkExec(path, p.opts.Argv, attr)
	if err == nil && why != nil {
		p.opts.Logger.Info("kernel runs without a control group of its own", logkey.Kernel, p.opts.KernelID,
			logkey.Err, why)
		p.forsakeGroup()
	}
	return pid, err
}

// errNotExecuted says that the child was killed before it could execute its program.
var errNotExecuted = errors.New("a process was killed as soon as it was in the group")

// forkInGroup starts the program in the kernel's control group.
func (p *Process) forkInGroup(path string, attr *syscall.ProcAttr) (int, error) {
	dir, err := p.opts.Group.Open()
	if err != nil {
		return 0, err
	}
	defer dir.Close() //nolint:errcheck // it was only read
	in, sys := *attr, *attr.Sys
	sys.UseCgroupFD, sys.CgroupFD = true, int(dir.Fd())
	in.Sys = &sys
	pid, err := syscall.ForkExec(path, p.opts.Argv, &in)
	if err != nil {
		return 0, err
	}
	// See cgroup.Group.Open. ForkExec takes the end of a child that has executed nothing for a success.
	if child, found := proctree.Find(pid); !found || child.Executed {
		return pid, nil
	}
	_ = syscall.Kill(pid, syscall.SIGKILL) // it has ended, or will at once
	var status syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != syscall.EINTR {
			return 0, errNotExecuted
		}
	}
}

// forsakeGroup removes the control group. A group that exists says to launchers that the kernel is in it.
func (p *Process) forsakeGroup() {
	if err := p.opts.Group.Remove(); err != nil {
		p.opts.Logger.Warn("control group of a kernel cannot be removed", logkey.Kernel, p.opts.KernelID, logkey.Err, err)
	}
}

// killLeft kills what the kernel has left running. The leader has ended, and is a zombie. Processes in another control
// group were put there on purpose, for example by systemd-run, and are spared. If the leader itself is in another
// group, so is everything that it has started. That is then found in the same way as without a group.
func (p *Process) killLeft() {
	if p.inside {
		_ = syscall.Kill(-p.leader, syscall.SIGKILL) // ESRCH: the process group has ended
		held := p.opts.Group.Holds(p.leader)
		n, err := p.opts.Group.Kill()
		if err == nil && held {
			p.logKilled(n)
			return
		}
		p.opts.Logger.Warn("processes of a kernel are searched, since its control group does not have all of them",
			logkey.Kernel, p.opts.KernelID, logkey.Err, err)
		if err == nil {
			p.forsakeGroup()
		}
	}
	proctree.KillSession(p.leader)
	p.killRemains()
}

// killRemains kills the kernel's processes in other sessions. A process whose environment cannot be read, because its
// memory is locked, may make the search hang. So it goes on in the background after a while.
func (p *Process) killRemains() {
	if p.opts.KernelID == "" {
		return
	}
	searched := make(chan struct{})
	go func() {
		defer close(searched)
		n, err := proctree.KillRemains(p.opts.KernelID, p.leader)
		if err != nil {
			p.opts.Logger.Error("processes of a dead kernel remain", logkey.Kernel, p.opts.KernelID, logkey.Err, err)
			return
		}
		p.logKilled(n)
	}()
	if !goroutines.Within(searched, 2*proctree.KillRemainsLimit) {
		p.opts.Logger.Error("search for processes of a dead kernel hangs", logkey.Kernel, p.opts.KernelID)
	}
}

// logKilled logs how many processes the kernel has left running.
func (p *Process) logKilled(n int) {
	if n > 0 {
		p.opts.Logger.Info("processes that the kernel had left running were killed", logkey.Kernel, p.opts.KernelID,
			logkey.Killed, n)
	}
}
