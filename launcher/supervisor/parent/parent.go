// Package parent is the small process above a supervisor and its kernel on one machine. `ekg-supervisor parent` calls
// Run. The kernel is its child, so the kernel outlives the supervisor. A supervisor that dies is started again, and
// adopts the kernel. In a pod, the kernel's container has that role. Begin with Run; upgrade.go replaces a supervisor
// by a newer one.
//
// The parent holds no message and no client. It runs the kernel with package child, and waits. If it dies itself,
// supervisor and kernel die with it (PR_SET_PDEATHSIG).
//
// Goroutines: the caller of Run starts supervisors and waits for them. It stays on one thread, because PR_SET_PDEATHSIG
// follows the thread that forked. Another goroutine is package child's, from the answer of the first supervisor on, and
// one waits for requests to upgrade. Run waits for both.
package parent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/cgroup"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/savedstate"
)

const (
	stableLife   = time.Minute            // failures further apart are not counted together
	maxFailures  = 8                      // in a row; then the parent gives up, but not while the kernel lives
	firstPause   = 250 * time.Millisecond // before the second restart in a row; doubles
	longestPause = 30 * time.Second       // before a restart
	answerLimit  = 15 * time.Second       // for a supervisor to answer that it listens
	maxAnswer    = 4 << 10                // bytes
	listens      = "ok"                   // the answer of a supervisor that listens
)

// Options says what a parent runs. Lock and Log may be nil.
type Options struct {
	Config     api.Config       // with SameMachine
	ConfigFile string           // from which a supervisor reads the Config
	Program    *Program         // of the supervisor
	Ready      io.WriteCloser   // gets the first supervisor's answer, and is closed
	Lock       *os.File         // the kernel's lock, which supervisors share; nil: no lock
	Held       []*os.File       // locks of GPUs, which supervisors and kernel inherit
	Upgrades   <-chan os.Signal // each value is a request to read the file of Request; nil: no requests
	Log        *slog.Logger     // nil: no log
}

// parent is a running Run.
type parent struct {
	// Fixed.
	opts       Options
	log        *slog.Logger
	firstPause time.Duration // the constant of this name; tests change it
	oldEnd     os.FileInfo   // Config.EndFile at the start; nil: it did not exist
	child      *child.Child  // runs the kernel
	startChild func()        // starts child's goroutine, once
	childRuns  sync.WaitGroup

	// Guarded by mu.
	mu       sync.Mutex
	running  *os.Process // the present supervisor; nil: none runs
	stopping bool        // a signal has asked the parent to end
	next     *Program    // of the next supervisor, if the present one leaves; nil: the same

	// Owned by supervise.
	program  *Program // of the present supervisor
	previous *Program // to which a new program that fails gives way; nil: the program is not new
}

// Run runs a kernel and its supervisor, one supervisor after the other, until the kernel has ended for good. It returns
// the exit code of the program. The end of ctx makes the supervisor stop its kernel.
func Run(ctx context.Context, o Options) int { return run(ctx, o, firstPause) }

func run(ctx context.Context, o Options, firstPause time.Duration) int {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	log := o.Log.With(logkey.Kernel, o.Config.KernelID)
	group, err := cgroup.At(o.Config.ControlGroup, o.Config.KernelID)
	if err != nil {
		log.Error("kernel gets no control group", logkey.Err, err)
	}
	p := &parent{opts: o, log: log, firstPause: firstPause, program: o.Program,
		child: child.New(child.Options{Socket: o.Config.ChildSocket, Log: log, Group: group, Held: o.Held,
			Scan: proctree.NewScan(o.Config.ScanFile)})}
	p.oldEnd, _ = os.Stat(o.Config.EndFile) // an earlier end may be on record
	// They are about an earlier kernel process, which died with its parent.
	old := []string{child.EndedFile(o.Config.ChildSocket), p.beside(api.FailingFile)}
	if o.Config.SpillDir != "" {
		old = append(old, filepath.Join(o.Config.SpillDir, savedstate.FileName))
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.answer(err.Error())
			return 1
		}
	}
	p.startChild = sync.OnceFunc(func() { p.childRuns.Go(func() { p.child.Run(context.Background()) }) })
	defer context.AfterFunc(ctx, p.passOnSignal)()
	over := make(chan struct{})
	var requests sync.WaitGroup
	requests.Go(func() { p.awaitRequests(over) })
	code := p.supervise(ctx)
	close(over)
	p.endChild()
	requests.Wait()
	return code
}

// answer tells the program that started the parent whether the kernel has a supervisor.
func (p *parent) answer(text string) {
	if text != "" {
		if _, err := fmt.Fprintln(p.opts.Ready, text); err != nil {
			p.log.Warn("the program that started this supervisor is gone", logkey.Err, err)
		}
	}
	_ = p.opts.Ready.Close() // the answer is written
}

// passOnSignal makes the present supervisor stop its kernel.
func (p *parent) passOnSignal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopping = true
	if p.running != nil {
		_ = p.running.Signal(syscall.SIGTERM) // os.ErrProcessDone: supervise notices
	}
}

// supervise starts supervisors until the kernel has ended for good, and returns the exit code.
func (p *parent) supervise(ctx context.Context) int {
	for failures, first := 0, true; ; first = false {
		began := time.Now()
		end := p.runSupervisor(first)
		switch {
		case p.ended(end):
			return max(end.code, 0)
		case first && end.answer != listens:
			return 1 // the answer says why
		case ctx.Err() != nil:
			p.giveUp(api.SignalReason, true)
			return 1
		case end.code == LeaveCode && end.answer == listens:
			p.upgrade()
			failures = 0
			continue
		}
		if time.Since(began) >= stableLife {
			failures = 0
		}
		failures++
		p.goBack(began)
		p.markFailed()
		p.log.Error("supervisor ended unexpectedly", logkey.PID, end.pid, logkey.Cause, end.String(),
			logkey.Attempt, failures)
		p.reportFailing(failures, end)
		if failures >= maxFailures && !p.child.KernelRuns() {
			p.giveUp(fmt.Sprintf("its supervisor ended unexpectedly %d times in a row, the last time %s; "+
				"its variables are lost", failures, end), false)
			return 1
		}
		p.pause(ctx, failures)
	}
}

// pause waits before another supervisor is started. The first restart is immediate.
func (p *parent) pause(ctx context.Context, failures int) {
	if failures <= 1 {
		return
	}
	pause := p.firstPause
	for range failures - 2 {
		pause = min(2*pause, longestPause)
	}
	_ = goroutines.Sleep(ctx, pause) // supervise looks at ctx
}

// beside returns the path of a file in the folder of the configuration.
func (p *parent) beside(name string) string {
	return filepath.Join(filepath.Dir(p.opts.ConfigFile), name)
}

// markFailed makes the next supervisor say that output is lost. The state may be of a supervisor that left in order.
func (p *parent) markFailed() {
	if p.opts.Config.SpillDir == "" {
		return
	}
	if err := savedstate.NewFile(p.opts.Config.SpillDir).MarkFailed(); err != nil {
		p.log.Warn("the saved state cannot be marked", logkey.Err, err)
	}
}

// reportFailing notes for launchers why the kernel has no supervisor at present. The first failure is not worth that,
// because the first restart is immediate.
func (p *parent) reportFailing(failures int, end ending) {
	if failures <= 1 {
		return
	}
	failing := api.Failing{At: time.Now().UTC(), Reason: fmt.Sprintf("its supervisor ended unexpectedly "+
		"%d times in a row, the last time %s; it is started again", failures, end)}
	if err := files.WriteJSON(p.beside(api.FailingFile), failing); err != nil {
		p.log.Warn("the reason why the kernel has no supervisor cannot be noted", logkey.Err, err)
	}
}

// ending is how a supervisor ended.
type ending struct {
	pid    int
	answer string // what it wrote when it was ready or could not start; "": nothing
	code   int    // -1: a signal ended it, or it was not started
	signal syscall.Signal
}

// String ends the sentence "it ended ...".
func (e ending) String() string {
	switch {
	case e.answer != listens && e.answer != "":
		return "because it could not start: " + e.answer
	case e.signal != 0:
		return fmt.Sprintf("by signal %d (%s)", int(e.signal), e.signal)
	case e.code == 2:
		return "with exit code 2, as after a fault in the program; its log shows where"
	}
	return fmt.Sprintf("with exit code %d", e.code)
}

// runSupervisor starts a supervisor and returns when it has ended. The first one's answer is passed on.
func (p *parent) runSupervisor(first bool) ending {
	end := ending{code: -1}
	proc, ready, err := p.start()
	if err != nil {
		end.answer = err.Error()
		if first {
			p.answer(end.answer)
		}
		return end
	}
	defer ready.Close() //nolint:errcheck // it was only read
	end.pid = proc.Pid
	if !first { // else the program that has started the parent waits, and decides how long
		_ = ready.SetReadDeadline(time.Now().Add(answerLimit)) // a pipe has deadlines
	}
	b, err := io.ReadAll(io.LimitReader(ready, maxAnswer))
	end.answer = strings.TrimSpace(strings.ToValidUTF8(string(b), ""))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		end.answer = fmt.Sprintf("it did not answer within %s", answerLimit)
		_ = proc.Kill() // os.ErrProcessDone: it has ended since
	}
	if end.answer == listens {
		p.startChild() // now it need not dial in vain
	}
	if first {
		p.answer(end.answer)
	}
	if end.answer == listens {
		_ = os.Remove(p.beside(api.FailingFile)) // most often there is none
	}
	state, err := proc.Wait()
	p.mu.Lock()
	p.running = nil
	p.mu.Unlock()
	if err != nil {
		p.log.Error("supervisor cannot be waited for", logkey.PID, end.pid, logkey.Err, err)
		return end
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		end.signal = status.Signal()
	}
	end.code = state.ExitCode()
	return end
}

// start starts a supervisor. It writes its answer to ready.
func (p *parent) start() (proc *os.Process, ready *os.File, err error) {
	ready, answer, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer answer.Close() //nolint:errcheck // the supervisor has a copy
	argv := []string{p.program.name, "--config", p.opts.ConfigFile, "--ready-fd", "3"}
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr, answer}
	if p.opts.Lock != nil {
		argv, files = append(argv, "--lock-fd", "4"), append(files, p.opts.Lock)
	}
	if len(p.opts.Held) > 0 {
		argv = append(argv, "--held-fds", fmt.Sprintf("%d+%d", len(files), len(p.opts.Held)))
		files = append(files, p.opts.Held...)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		err = errors.New(api.SignalReason)
	} else {
		proc, err = os.StartProcess(p.program.path(), argv,
			&os.ProcAttr{Files: files, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}})
	}
	if err != nil {
		_ = ready.Close() // nothing was read
		return nil, nil, err
	}
	p.running = proc
	return proc, ready, nil
}

// ended reports whether the kernel has ended for good. A supervisor that served it exits with 0 only then. If a
// supervisor is killed while it shows a dead kernel, the record of the kernel's end exists, and no other is needed.
func (p *parent) ended(end ending) bool {
	if end.code == 0 && end.answer == listens {
		return true
	}
	if _, err := os.Stat(child.EndedFile(p.opts.Config.ChildSocket)); err == nil {
		return true
	}
	now, err := os.Stat(p.opts.Config.EndFile)
	return err == nil && (p.oldEnd == nil || !os.SameFile(now, p.oldEnd) || !now.ModTime().Equal(p.oldEnd.ModTime()))
}

// giveUp records why the kernel is ended without a supervisor.
func (p *parent) giveUp(reason string, stopped bool) {
	p.log.Error("kernel is ended, because it has no supervisor", logkey.Reason, reason)
	end := api.Ending{KernelID: p.opts.Config.KernelID, Reason: reason, Stopped: stopped, At: time.Now().UTC()}
	if err := files.WriteJSON(p.opts.Config.EndFile, end); err != nil {
		p.log.Error("the kernel's end cannot be recorded", logkey.Err, err)
	}
}

// endChild ends the kernel, if it still runs, and waits for that. The folder of the sockets may have been removed.
func (p *parent) endChild() {
	if err := os.WriteFile(child.EndedFile(p.opts.Config.ChildSocket), nil, 0o600); err != nil {
		p.log.Error("the end of the kernel cannot be noted", logkey.Err, err)
	}
	p.child.End()
	p.startChild() // without a supervisor it was not started yet, and ends at once
	p.childRuns.Wait()
}
