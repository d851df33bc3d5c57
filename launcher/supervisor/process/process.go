// Package process runs a kernel's process on this machine. Start starts it. A Process signals it, keeps its newest
// output and measures its use. An Exit says in one sentence how it ended. Package supervisor uses it for a kernel of
// its own, and package child for one that outlives its supervisor. This package knows nothing of Jupyter's messages.
// Begin with Start and Process; program.go explains why a program cannot be started, and exit.go how one ended.
//
// Goroutines: each Process has one that starts the program and waits for its end, and one for each of stdout and
// stderr. One may serve the calls of CUDA that wait. They end soon after the process, and so does one that kills what
// the kernel left running. A measurement of GPUs has one of its own.
package process

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/launcher/cgroup"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gpucalls"
)

// OutputGrace is how long the end of a process waits for the rest of its output. A process that does not carry the
// kernel's id may hold the pipes open without end.
const OutputGrace = 300 * time.Millisecond

// A shell returns the sum of shellSignal and the number of the signal that has ended a program.
const (
	shellSignal = 128
	maxSignal   = 64
)

// Options says what to start. Argv is required.
type Options struct {
	KernelID string
	Argv     []string          // the program and its arguments
	Env      map[string]string // the environment; Start adds proctree.KernelIDVariable
	// ShellStatus says that the program is a shell, which returns 128+N if signal N has ended the kernel's program.
	ShellStatus bool

	WorkingDir string                      // "": the one of this program
	Stdout     io.Writer                   // gets a copy of the output; if it blocks, so does the kernel; nil: no copy
	Stderr     io.Writer                   // as Stdout
	Held       []*os.File                  // inherited as descriptors from 3 on; what they lock is held while it runs
	Group      *cgroup.Group               // in which the process is started, if that is possible; nil: in this program's
	Reaper     *proctree.Reaper            // of this program, if orphans become its children; nil: no reaper
	Scan       *proctree.Scan              // measures processor time; nil: with scans of its own
	GPUSeen    func(*Process)              // called when a look at GPUs has a result; nil: no call
	GPUSampled func(*Process, gpu.Samples) // called with each line of samples; nil: GPUs are not sampled
	GPUAnswer  func(*Process, gpu.Answer)  // called with the answer to each command of AskGPU; nil: no call
	GPUCalled  func(*Process)              // called while calls of CUDA wait for PassGPUCalls; nil: they do not wait
	Logger     *slog.Logger                // nil: no log
}

// Process is one life of a kernel: an operating system's process and its newest output. The process leads a session and
// a process group of its own. A restart makes a new Process. All methods may be called at any time and concurrently.
//
// It dies with the program that started it: PR_SET_PDEATHSIG sends it SIGKILL. That signal follows the thread that
// forked, not the program (golang.org/issue/27505). So one goroutine, locked to its thread, starts the kernel and stays
// blocked in wait until the kernel has ended.
//
// When the leader ends, everything left in its control group is killed before Done is closed. Without a group of its
// own, everything left in its session is killed. So are processes in other sessions that have inherited the kernel's id
// in their environment.
type Process struct {
	// Fixed.
	opts   Options
	leader int             // process id; the session and the process group have the same number
	inside bool            // the process was started in opts.Group
	calls  *gpucalls.Calls // of CUDA, which wait; nil: they do not wait
	passes string          // why calls of CUDA do not wait
	stdout *Tail
	stderr *Tail
	ended  chan struct{} // closed when exit is set and the last output is in

	// Owned by run until ended is closed, fixed then.
	exit Exit

	// Guarded by mu.
	mu          sync.Mutex
	reaped      bool  // another process may have the number in leader
	oomKills    int64 // OOM kills in the control group that were not the kernel's; -1: they cannot be counted
	use         Use
	look        *gpuRun      // in progress; nil: no look
	began       time.Time    // fixed: when it was started
	sampler     *gpuRun      // nil: GPUs are not sampled
	lastSamples *gpu.Samples // nil: none yet
	asked       gpuCommands
}

// Use is how much the processes of a kernel's session had used at a moment.
type Use struct {
	Processor proctree.ProcessorTime
	GPU       GPUUse    // of the last look
	Samples   gpu.Tally // of WatchGPUs
	Memory    Memory    // of the last MeasureMemory
}

// Memory is the resident memory of a kernel's process and its descendants at a moment.
type Memory struct {
	Bytes int64
	At    time.Time // zero: not measured yet
}

// Start starts a kernel's process and returns once its program is loaded. The error is one sentence for the kernel's
// owner; NoProgramError is among its types.
func Start(opts Options) (*Process, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Process{opts: opts, stderr: new(Tail), stdout: new(Tail), ended: make(chan struct{}),
		began: time.Now(), asked: gpuCommands{wanted: make(chan struct{}, 1)}}
	started := make(chan error, 1)
	err := opts.Reaper.Start(func() (int, error) {
		go p.run(started)
		err := <-started
		return p.leader, err
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Command returns argv with the path of the connection file instead of {connection_file}.
func Command(argv []string, connectionFile string) []string {
	filled := make([]string, len(argv))
	for i, a := range argv {
		filled[i] = strings.ReplaceAll(a, "{connection_file}", connectionFile)
	}
	return filled
}

// run is the kernel's parent: it forks, waits and reaps, all on one thread. It ends soon after the kernel does.
func (p *Process) run(started chan<- error) {
	defer close(p.ended)
	runtime.LockOSThread()
	if p.opts.GPUCalled == nil {
		defer runtime.UnlockOSThread() // no child is left that would get a signal at the thread's end
	} // else the thread ends with this goroutine, since its filter stays
	p.oomKills = countOOMKills()
	readers, err := p.fork()
	started <- err
	defer p.serveGPUCalls()()
	if err != nil {
		return
	}
	// WNOWAIT leaves the kernel as a zombie. Until it is reaped, no other process gets its number. So the rest of its
	// session can safely be killed by that number.
	for {
		err = unix.Waitid(unix.P_PID, p.leader, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		p.opts.Logger.Error("kernel cannot be waited for", logkey.Kernel, p.opts.KernelID, logkey.Err, err)
	}
	at := time.Now().UTC()
	p.killLeft()
	readers.finish(OutputGrace)
	p.reap(at)
	p.opts.Reaper.Forget(p.leader)
	p.endGPURuns()
}

// reap takes the kernel's exit status. The system may give its number to another process then.
func (p *Process) reap(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaped = true
	p.exit = Exit{Code: -1, At: at}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.leader, &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil { // the status was taken elsewhere, and is unknown
			p.opts.Logger.Error("kernel cannot be reaped", logkey.Kernel, p.opts.KernelID, logkey.Err, err)
			return
		}
		break
	}
	switch code := status.ExitStatus(); {
	case status.Signaled():
		p.exit.Signal = status.Signal()
	case p.opts.ShellStatus && code > shellSignal && code <= shellSignal+maxSignal:
		p.exit.Signal = syscall.Signal(code - shellSignal)
	default:
		p.exit.Code = code
		return
	}
	p.exit.OOM = p.exit.Signal == syscall.SIGKILL && p.ranOutOfMemoryLocked()
	if p.exit.OOM {
		p.exit.MemoryLimit = memoryLimit()
	}
}

// fork starts the program and the readers of its output. The calling goroutine must be locked to its thread.
func (p *Process) fork() (*readers, error) {
	o := &p.opts
	path, err := findProgram(o.Argv, o.Env["PATH"])
	if err != nil {
		return nil, err
	}
	p.holdGPUCalls(path)
	r, files, err := openReaders(both(p.stdout, o.Stdout), both(p.stderr, o.Stderr))
	if err != nil {
		return nil, fmt.Errorf("the kernel's process cannot be given its files: %w", err)
	}
	inherited := files[:]
	for _, f := range o.Held {
		inherited = append(inherited, f.Fd())
	}
	// The kernel gets descriptors, not os.Files: an os.File would make the kernel's end non-blocking, and a program
	// that prints much would fail with EAGAIN.
	p.leader, err = p.forkExec(path, &syscall.ProcAttr{
		Dir:   o.WorkingDir,
		Env:   environment(o),
		Files: inherited,
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	for _, fd := range files {
		_ = syscall.Close(int(fd)) // the kernel has its own copy
	}
	if err != nil {
		r.finish(0)
		return nil, explainExec(path, o.WorkingDir, err)
	}
	return r, nil
}

// environment returns the kernel's variables in the form of execve, in a stable order.
func environment(o *Options) []string {
	env := make([]string, 0, len(o.Env)+1)
	for _, name := range slices.Sorted(maps.Keys(o.Env)) {
		if name != proctree.KernelIDVariable {
			env = append(env, name+"="+o.Env[name])
		}
	}
	return append(env, proctree.KernelIDVariable+"="+o.KernelID)
}

// PID returns the process id, which is also the number of the process group and of the session.
func (p *Process) PID() int { return p.leader }

// Done is closed when the process has ended, what it left running is killed, and Exit and the last output are known.
func (p *Process) Done() <-chan struct{} { return p.ended }

// Exit waits for the end of the process and returns how it ended.
func (p *Process) Exit() Exit {
	<-p.ended
	return p.exit
}

// LastOutput returns at most limit bytes of the newest output; see the function LastOutput.
func (p *Process) LastOutput(limit int, since time.Time) string {
	return LastOutput(p.stdout, p.stderr, limit, since)
}

// Output returns the newest output on stdout and stderr.
func (p *Process) Output() (stdout, stderr *Tail) { return p.stdout, p.stderr }

// Signal sends sig to the process group. The error is os.ErrProcessDone if the group has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return os.ErrProcessDone
	}
	err := syscall.Kill(-p.leader, sig)
	if err == syscall.ESRCH {
		return os.ErrProcessDone
	}
	return err
}

// Kill kills the process and all others of its session, also those in other process groups. Done is closed soon after.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.reaped:
	case p.inside:
		_ = syscall.Kill(-p.leader, syscall.SIGKILL) // run kills the others once the leader has ended
	default:
		proctree.KillSession(p.leader)
	}
}

// Unreachable returns false: a process of this machine is always in reach.
func (p *Process) Unreachable() bool { return false }

// InterruptMode returns "": the kernel's configuration says how it is interrupted.
func (p *Process) InterruptMode() string { return "" }

// Measure makes Used return newer values: of the processors' time at once if processors is set, and of GPUs when the
// look has ended. A zero look measures no GPUs. If another look is in progress, look is ignored.
func (p *Process) Measure(processors bool, look GPULook) {
	var processor proctree.ProcessorTime
	if processors { // all of /proc is read for it
		processor = p.opts.Scan.SessionTime(p.leader) // it may wait, and signals must not
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return
	}
	if processors {
		p.use.Processor = processor
	}
	if look.For > 0 && p.look == nil {
		p.startLookLocked(look)
	}
}

// MeasureMemory makes Used return a newer Memory at once. It reads only the kernel's processes.
func (p *Process) MeasureMemory() {
	bytes := proctree.TreeMemory(p.leader)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped && bytes > 0 {
		p.use.Memory = Memory{Bytes: bytes, At: time.Now()}
	}
}

// Used returns the last measurement.
func (p *Process) Used() Use {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.use
}
