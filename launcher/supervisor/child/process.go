package child

import (
	"encoding/json"
	"os"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

// Process is a kernel's process in another container. It ends when the child reports its end, or when the child is gone
// for longer than ReturnLimit, or ReasonLimit in a pod. All methods may be called at any time and concurrently.
type Process struct {
	// Fixed.
	c        *Container
	life     string
	answered chan struct{} // closed when the child has answered start
	ended    chan struct{} // closed when exit and the output are set
	began    time.Time     // when this program first knew it

	// Guarded by Container.mu.
	pid            int
	interruptMode  string
	holds          bool
	passes         string
	failure        error       // of the start
	over           bool        // ended is closed
	loss           *time.Timer // set while no child has the process
	unexplained    bool        // see AwaitNoReason
	killed         *time.Timer // set by Kill
	exit           process.Exit
	stdout, stderr process.Tail
	use            process.Use
}

func newProcess(c *Container, life string) *Process {
	return &Process{c: c, life: life, answered: make(chan struct{}), ended: make(chan struct{}),
		began: time.Now()}
}

// foundLocked notes the child's report about the process.
func (p *Process) foundLocked(k *Kernel) {
	if p.over {
		return
	}
	if p.loss != nil {
		p.loss.Stop()
		p.loss = nil
	}
	p.pid, p.interruptMode = k.PID, k.InterruptMode
	p.holds, p.passes = k.Holds, api.PlainText(k.Passes, maxReason)
	p.answerLocked()
	if k.Exit != nil {
		p.exitLocked(k.Exit)
	}
}

// failLocked notes that the process was not started.
func (p *Process) failLocked(err error) {
	select {
	case <-p.answered:
	default:
		p.failure = err
		p.answerLocked()
		p.endLocked(process.Exit{Code: -1, At: time.Now().UTC()})
	}
}

func (p *Process) answerLocked() {
	select {
	case <-p.answered:
	default:
		close(p.answered)
	}
}

// loseLocked notes that no child has the process any more. The child may come back. Otherwise the process has ended
// with its container, and the cluster may tell why.
func (p *Process) loseLocked() {
	if p.over || p.loss != nil {
		return
	}
	if p.c.reason != "" && time.Since(p.c.reasonAt) < ReturnLimit {
		p.endLocked(process.Exit{Code: -1, At: time.Now().UTC(), Lost: true, LostReason: p.c.reason})
		return
	}
	limit := ReturnLimit
	if p.c.opts.Place == process.InContainer && !p.unexplained {
		limit = ReasonLimit
	}
	p.loss = time.AfterFunc(limit, func() {
		p.c.mu.Lock()
		defer p.c.mu.Unlock()
		if p.loss != nil {
			p.endLocked(process.Exit{Code: -1, At: time.Now().UTC(), Lost: true})
		}
	})
}

// exitLocked notes the child's report about the end of the process.
func (p *Process) exitLocked(e *exit) {
	if p.over {
		return
	}
	p.stdout.WriteAt([]byte(e.Stdout), e.StdoutSaid)
	p.stderr.WriteAt([]byte(e.Stderr), e.StderrSaid)
	p.endLocked(e.Exit)
}

// endLocked notes the end of the process. Only the first end counts.
func (p *Process) endLocked(exit process.Exit) {
	if p.over {
		return
	}
	p.over, p.exit = true, exit
	for _, t := range []*time.Timer{p.loss, p.killed} {
		if t != nil {
			t.Stop()
		}
	}
	if exit.Lost {
		p.c.reason = ""
	}
	close(p.ended)
}

// PID returns the process id, which means something only in the kernel's container.
func (p *Process) PID() int {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return p.pid
}

// Done is closed when the process has ended, and Exit and the last output are known.
func (p *Process) Done() <-chan struct{} { return p.ended }

// Exit waits for the end of the process and returns how it ended.
func (p *Process) Exit() process.Exit {
	<-p.ended
	return p.exit
}

// LastOutput returns at most limit bytes of the newest output; see process.LastOutput. It is empty until Done is
// closed.
func (p *Process) LastOutput(limit int, since time.Time) string {
	return process.LastOutput(&p.stdout, &p.stderr, limit, since)
}

// Signal sends sig to the process group. The error is os.ErrProcessDone if the process has ended, and ErrNoContainer if
// the child is not connected.
func (p *Process) Signal(sig syscall.Signal) error {
	return p.tell(line{Type: lineSignal, Signal: int(sig)})
}

// Kill kills the process and all others of its session. A child that does not answer counts as gone, so Done is closed
// within killLimit.
func (p *Process) Kill() {
	if p.tell(line{Type: lineKill}) != nil {
		return // it has ended, or ends when the child does not come back
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.killed != nil || p.over {
		return
	}
	p.killed = time.AfterFunc(killLimit, func() {
		p.c.mu.Lock()
		defer p.c.mu.Unlock()
		if p.over {
			return
		}
		p.c.log.Error("the child does not end its kernel")
		p.endLocked(process.Exit{Code: -1, At: time.Now().UTC(), Lost: true})
	})
}

// Unreachable reports whether no child has the process. Done is closed soon then, unless the child returns.
func (p *Process) Unreachable() bool {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return p.over || p.loss != nil
}

// InterruptMode returns the interrupt mode of the image's kernelspec, "signal" or "message"; "" if the kernel was
// started without that kernelspec.
func (p *Process) InterruptMode() string {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return p.interruptMode
}

// Connected makes the child keep what the kernel's launcher has told, for the supervisor that adopts the kernel.
// Without a child, the next supervisor starts the kernel again.
func (p *Process) Connected(file json.RawMessage) {
	_ = p.tell(line{Type: lineConnection, Connection: file})
}

// Measure asks the child for newer values of Used.
func (p *Process) Measure(processors bool, look process.GPULook) {
	_ = p.tell(line{Type: lineMeasure, NoProcessors: !processors, Look: look}) // the next may succeed
}

// WatchGPUs asks the child to sample GPUs until the process ends. Used has the sums.
func (p *Process) WatchGPUs(w process.GPUWatch) {
	_ = p.tell(line{Type: lineWatch, Watch: w}) // without a child there are no samples
}

// AskGPU asks the child to move the kernel's GPU memory. ContainerOptions.Answered gets the answer. There is none if no
// child takes the command.
func (p *Process) AskGPU(c process.GPUCommand) {
	_ = p.tell(line{Type: lineAsk, Ask: &c}) // its caller asks again
}

// HoldsGPUCalls reports whether the first calls of CUDA wait for PassGPUCalls. Otherwise why says why they do not, if
// they were meant to.
func (p *Process) HoldsGPUCalls() (holds bool, why string) {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return p.holds, p.passes
}

// PassGPUCalls asks the child to let the calls of CUDA go on that wait now.
func (p *Process) PassGPUCalls() {
	_ = p.tell(line{Type: linePass}) // the child tells of them again
}

// MeasureMemory asks the child for a newer Used.Memory.
func (p *Process) MeasureMemory() {
	_ = p.tell(line{Type: lineMemory}) // the next may succeed
}

// Used returns the child's last measurement.
func (p *Process) Used() process.Use {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return p.use
}

// tell sends the child a line about the process.
func (p *Process) tell(l line) error {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	switch {
	case p.over || p.c.proc != p:
		return os.ErrProcessDone
	case p.c.link == nil:
		return ErrNoContainer
	}
	l.Life = p.life
	return p.c.link.send(l)
}
