package supervisor

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// kernelIDVariable names the kernel in the environment of its process and so, unless one takes care to clear it, of
// everything that it starts: what a kernel leaves behind is recognised by it.
const kernelIDVariable = "EKG_KERNEL_ID"

// outputGrace is how long the end of a kernel waits for the rest of its output. A process that has left the kernel's
// session may hold the pipes open for ever.
const outputGrace = 300 * time.Millisecond

// exitInfo says how a process ended.
type exitInfo struct {
	Code   int            // exit code; -1 if a signal ended it
	Signal syscall.Signal // 0 if it exited by itself
	At     time.Time      // UTC
	OOM    bool           // it was SIGKILLed and its control group counts one more victim of memory than at its start
	Limit  int64          // with OOM: bytes that the control group may use; 0 where that is not limited or not known
	Lost   bool           // the container in which it ran is gone, and with it how it ended
	Told   string         // with Lost: what the cluster says of that, "" if it has said nothing
}

// kernelProcess is one life of a kernel's process as its supervisor sees it: a process of this machine, or one in a
// container of its own that a child runs. All methods may be called at any time and concurrently.
type kernelProcess interface {
	// pid returns the process id, which is the number of the process group and of the session too. In another container it
	// means something only there.
	pid() int
	// done is closed when the process has ended, its session is gone and its exit and last words are known.
	done() <-chan struct{}
	// exit says how the process ended. It waits for that.
	exit() exitInfo
	// lastWords returns at most limit bytes of the newest output in whole lines as far as they fit, as valid UTF-8: of
	// stderr, or of stdout if there is nothing on stderr. Of another container's process they are known once done is closed.
	lastWords(limit int) string
	// forgetOutput drops what the process has said so far: what it says while it starts explains why it does not, and
	// nothing that happens to it later.
	forgetOutput()
	// signal sends sig to the process group. The error is os.ErrProcessDone if there is none any more.
	signal(sig syscall.Signal) error
	// kill ends the process and all others of its session, those included that have moved to another group. It does not
	// wait for done, which comes soon in any case.
	kill()
	// ending reports that the process may have ended without a word: done will tell soon.
	ending() bool
	// interruptMode is how the process is interrupted, "signal" or "message", or "" where Config says it.
	interruptMode() string
	// measure has used tell newer values: of the processors' time, now or soon, and of the GPUs that look asks for, when these have
	// been looked at. A look in progress goes on, and no other begins.
	measure(look gpuLook)
	// used is what was measured last of what the processes of the session use.
	used() processUse
}

// process is one life of a kernel: the operating system's process, which is the leader of a session and of a process
// group of its own, and the last output of it. A restart makes a new process.
//
// It dies with the supervisor, however that ends: PR_SET_PDEATHSIG sends it SIGKILL. That signal follows the thread
// which forked, not the program (golang.org/issue/27505), so one goroutine locked to its thread starts the kernel and
// stays, blocked in wait, until the kernel has ended.
//
// When the leader ends, for whatever reason, everything left in its session is killed too, before done is closed. Only
// what has made a session of its own stays. All methods may be called at any time and concurrently.
type process struct {
	// Fixed.
	leader   int           // process id; as session and group id it is the same number
	kernelID string        //
	log      *slog.Logger  //
	stderr   *tail         //
	stdout   *tail         //
	mirror   [2]io.Writer  // what gets a copy of stdout and stderr; nil: nothing
	ended    chan struct{} // closed when info is set and the last output is in
	orphans  *reaper       // of whoever runs this process, if orphans come to it; nil: none do
	seen     func()        // called when GPUs have been looked at

	// Owned by run until ended is closed, fixed then.
	info exitInfo

	// Guarded by mu.
	mu       sync.Mutex
	reaped   bool  // the number in leader may belong to somebody else now
	oomKills int64 // victims of memory in the control group that are not the kernel's; -1: they cannot be counted
	use      processUse
	look     *gpuLooking // in progress; nil: none is
}

// startProcess starts argv as the kernel of cfg and returns once the program has been loaded. The error is one sentence
// for the kernel's owner.
func startProcess(cfg Config, argv []string, log *slog.Logger) (*process, error) {
	return startMirrored(cfg, argv, log, [2]io.Writer{})
}

// startMirrored is startProcess for a kernel whose stdout and stderr are copied. The copies may lag; where one takes no
// more, so does the kernel.
func startMirrored(cfg Config, argv []string, log *slog.Logger, mirror [2]io.Writer) (*process, error) {
	p := &process{
		mirror:   mirror,
		kernelID: cfg.KernelID,
		log:      log,
		stderr:   new(tail),
		stdout:   new(tail),
		ended:    make(chan struct{}),
	}
	started := make(chan error, 1)
	go p.run(cfg, argv, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run is the kernel's parent: it forks, waits and reaps, all on one thread. It ends soon after the kernel does.
func (p *process) run(cfg Config, argv []string, started chan<- error) {
	defer close(p.ended)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // by then there is no child to which the thread's end could mean anything

	p.oomKills = countOOMKills()
	readers, err := p.fork(cfg, argv)
	started <- err
	if err != nil {
		return
	}

	// WNOWAIT leaves the kernel a zombie: while it is one, its number is not given to another process, and what is left
	// of its session can be killed by that number without the least doubt.
	for {
		err = unix.Waitid(unix.P_PID, p.leader, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		p.log.Error("kernel cannot be waited for", "kernel", p.kernelID, "err", err)
	}
	at := time.Now().UTC()
	killSession(p.leader)
	readers.finish(outputGrace)
	p.reap(at)
	p.endLook()
}

// reap takes the kernel's exit status and gives its number back to the system.
func (p *process) reap(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaped = true
	p.info = exitInfo{Code: -1, At: at}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.leader, &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil { // somebody else reaped it: how it ended stays unknown
			p.log.Error("kernel cannot be reaped", "kernel", p.kernelID, "err", err)
			return
		}
		break
	}
	if status.Signaled() {
		p.info.Signal = status.Signal()
		p.info.OOM = p.info.Signal == syscall.SIGKILL && p.ranOutOfMemory()
		if p.info.OOM {
			p.info.Limit = memoryLimit()
		}
	} else {
		p.info.Code = status.ExitStatus()
	}
}

// fork starts the program and the readers of its output. The calling goroutine must be locked to its thread.
func (p *process) fork(cfg Config, argv []string) (*readers, error) {
	path, err := findProgram(argv, cfg.Env["PATH"], cfg.WorkingDir)
	if err != nil {
		return nil, err
	}
	r, files, err := openReaders(both(p.stdout, p.mirror[0]), both(p.stderr, p.mirror[1]))
	if err != nil {
		return nil, fmt.Errorf("the kernel's process cannot be given its files: %w", err)
	}
	// Descriptors, not os.Files, are handed on: an os.File would have made the kernel's end non-blocking, and a
	// program that prints much would fail with EAGAIN.
	p.leader, err = syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Dir:   cfg.WorkingDir,
		Env:   environment(cfg),
		Files: files[:],
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	for _, fd := range files {
		syscall.Close(int(fd))
	}
	if err != nil {
		r.finish(0)
		return nil, explainExec(path, cfg.WorkingDir, err)
	}
	return r, nil
}

// environment gives cfg's variables in the form of execve, in a stable order.
func environment(cfg Config) []string {
	env := make([]string, 0, len(cfg.Env)+1)
	for _, name := range slices.Sorted(maps.Keys(cfg.Env)) {
		if name != kernelIDVariable {
			env = append(env, name+"="+cfg.Env[name])
		}
	}
	return append(env, kernelIDVariable+"="+cfg.KernelID)
}

func (p *process) pid() int { return p.leader }

func (p *process) done() <-chan struct{} { return p.ended }

func (p *process) exit() exitInfo {
	<-p.ended
	return p.info
}

func (p *process) lastWords(limit int) string { return lastWords(p.stdout, p.stderr, limit) }

func lastWords(stdout, stderr *tail, limit int) string {
	if s := stderr.text(limit); hasLetters(s) {
		return s
	}
	return stdout.text(limit)
}

func (p *process) forgetOutput() {
	p.stderr.forget()
	p.stdout.forget()
}

func (p *process) signal(sig syscall.Signal) error {
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

func (p *process) ending() bool { return false }

func (p *process) interruptMode() string { return "" }

func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		killSession(p.leader)
	}
}

func (p *process) measure(look gpuLook) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return
	}
	p.use.processor = sessionTime(p.leader)
	if look.For > 0 && p.look == nil {
		p.startLook(look)
	}
}

func (p *process) used() processUse {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.use
}
