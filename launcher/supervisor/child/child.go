// Package child runs a kernel's process for a supervisor, so that the kernel outlives the supervisor. It has both
// sides. Run is the program that runs the kernel: in a pod, the first process of the kernel's container; on one
// machine, a part of the supervisor's parent (package parent). Container is the supervisor's view of that program. They
// speak the protocol of protocol.go over a unix socket in a folder that both can reach. Begin with protocol.go, then
// Run and Container.Serve.
//
// Goroutines: Run dials and reads itself. Others reap orphans, watch for the pod's end, and wait for the end of each
// life of the kernel; Run waits for all of them. The caller of Container.Serve runs the goroutine that accepts
// connections. Each connection has one goroutine that reads and one that writes, and Container.Close waits for them.
// Lock order: none of the two locks, child.mu and Container.mu, is held while the other side is waited for.
package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/cgroup"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

// GiveUpBefore is how long before the end of the pod's grace a child gives up a silent supervisor.
const GiveUpBefore = 3 * time.Second

const (
	redialFirst  = time.Millisecond // between the first attempts to reach a supervisor; the pause grows with the time
	redialMost   = time.Second      // between attempts to reach a supervisor that has been away for long
	defaultGrace = 30 * time.Second // the pod's grace until the supervisor tells it: Kubernetes' default
)

// Options says where a child works. Only Socket is required.
type Options struct {
	Socket string   // of the supervisor
	Home   string   // replaces folders that the kernel's user may not write to; "": nothing replaces them
	Argv   []string // the kernel's command if the supervisor names none, with {connection_file}; empty: a kernelspec's
	Stdout *os.File // gets a copy of the kernel's output; nil: no copy
	Stderr *os.File // as Stdout
	Scan   *proctree.Scan
	Group  *cgroup.Group // control group of the kernel's process; nil: it gets none of its own
	Held   []*os.File    // that the kernel's process inherits, as in process.Options
	Log    *slog.Logger  // nil: no log
}

// Child runs a kernel for a supervisor in another process. Its exported methods may be called concurrently.
type Child struct {
	// Fixed.
	opts   Options
	log    *slog.Logger
	env    map[string]string // the container's
	copies [2]io.Writer      // of stdout and stderr; nil: no copy
	reaper *proctree.Reaper
	life   context.Context    // of Run
	end    context.CancelFunc // of life
	wg     sync.WaitGroup

	// Guarded by mu.
	mu     sync.Mutex
	link   *link // to the supervisor; nil: not connected
	grace  time.Duration
	kernel *Kernel          // the last one started; nil: none yet
	proc   *process.Process // of kernel
}

// New returns a Child. Its Run runs kernels.
func New(opts Options) *Child {
	log := opts.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Child{opts: opts, log: log, env: environMap(os.Environ()), grace: defaultGrace, reaper: proctree.NewReaper()}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// Run runs kernels in this container, as Child.Run does.
func Run(ctx context.Context, opts Options) int { return New(opts).Run(ctx) }

// End makes Run kill the kernel and return 1. It does not wait.
func (c *Child) End() { c.end() }

// Run runs kernels in this container for the supervisor behind Options.Socket, one at a time. It may be the container's
// first process. It returns 0 when the supervisor has told it to end, or has ended for good.
//
// The end of ctx means that the pod ends (SIGTERM, which the supervisor gets at the same time). The supervisor then
// ends the kernel in an orderly way and tells the child to end. If it does not, Run ends the kernel GiveUpBefore the
// end of the pod's grace and returns 1.
func (c *Child) Run(ctx context.Context) int {
	defer c.end()
	for i, f := range []*os.File{c.opts.Stdout, c.opts.Stderr} {
		if f != nil {
			m := openMirror(f)
			defer m.close()
			c.copies[i] = m
		}
	}
	// If an image's own program is the container's first process, orphans become children of this program all the same.
	if err := proctree.AdoptOrphans(); err != nil {
		c.log.Warn("orphans are not reaped", logkey.Err, err)
	}
	c.wg.Go(func() { c.reaper.Run(c.life) })
	c.wg.Go(func() { c.giveUpInTime(ctx) })
	ended := c.dial(c.life, ctx)
	c.end()
	c.stopKernel()
	c.wg.Wait()
	if ended {
		return 0
	}
	return 1
}

// giveUpInTime waits for the end of the pod, and then until GiveUpBefore the end of its grace. Then it ends the life of
// the child. It ends that life at once if no kernel runs and no supervisor is connected.
func (c *Child) giveUpInTime(pod context.Context) {
	select {
	case <-c.life.Done():
		return
	case <-pod.Done():
	}
	c.mu.Lock()
	left := max(0, c.grace-GiveUpBefore)
	if c.link == nil && (c.proc == nil || isClosed(c.proc.Done())) {
		left = 0 // no kernel runs, and no supervisor is connected
	}
	c.mu.Unlock()
	c.log.Info("the pod ends; waiting for the supervisor", logkey.AtMost, left.String())
	_ = goroutines.Sleep(c.life, left) // it makes no difference if life ends first
	c.end()
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// dial connects to the supervisor, again and again. It returns true when the supervisor has ended for good or has told
// the child to end. It returns false when life has ended.
func (c *Child) dial(life, pod context.Context) bool {
	began := time.Now()
	for life.Err() == nil {
		conn, err := net.Dial("unix", c.opts.Socket)
		if err == nil {
			connected := time.Now()
			if c.follow(life, conn) {
				return true
			}
			if time.Since(connected) >= redialMost { // otherwise a supervisor that rejects the child would have no rest
				began = time.Now()
			}
		}
		if _, serr := os.Stat(EndedFile(c.opts.Socket)); serr == nil {
			return true
		}
		if pod.Err() != nil && !c.KernelRuns() {
			return false
		}
		_ = goroutines.Sleep(life, min(max(redialFirst, time.Since(began)/20), redialMost)) // the loop checks life
	}
	return false
}

// KernelRuns reports whether a kernel's process runs.
func (c *Child) KernelRuns() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proc != nil && !isClosed(c.proc.Done())
}

// follow serves one connection until it ends. It returns true if the supervisor has told the child to end.
//
// It does not check who listens: nothing in this container can write to the folder of the socket.
func (c *Child) follow(life context.Context, conn net.Conn) bool {
	l := newLink(conn)
	defer func() { l.close(); <-l.done }()
	defer context.AfterFunc(life, l.close)()
	c.mu.Lock()
	hello := line{Kernel: c.kernel}
	// From here on, what happens is reported on this connection, behind the hello.
	c.link = l
	err := l.sendHello(hello)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.link = nil
	}()
	var answer line
	if err == nil {
		answer, err = l.awaitHello()
	}
	if err != nil {
		c.log.Warn("the exchange of hello with the supervisor failed", logkey.Err, err)
		return false
	}
	if answer.Grace > 0 {
		c.mu.Lock()
		c.grace = answer.Grace
		c.mu.Unlock()
	}
	for {
		received, err := l.receive()
		if err != nil {
			c.log.Info("connection to the supervisor ended", logkey.Err, err)
			return false
		}
		if received.Type == lineEnd {
			return true
		}
		c.handle(life, received)
	}
}

// handle carries out a line.
func (c *Child) handle(life context.Context, l line) {
	if l.Type == lineStart {
		if l.Start != nil {
			c.start(life, l.Life, l.Start)
		}
		return
	}
	c.mu.Lock()
	p := c.proc
	if c.kernel == nil || c.kernel.Life != l.Life {
		p = nil
	}
	c.mu.Unlock()
	if p == nil {
		return
	}
	switch l.Type {
	case lineConnection:
		c.keepConnection(l.Life, l.Connection)
	case lineSignal:
		if l.Signal <= 0 || l.Signal > 64 {
			return
		}
		if err := p.Signal(syscall.Signal(l.Signal)); err != nil && !errors.Is(err, os.ErrProcessDone) {
			c.log.Warn("signal was not delivered", logkey.Signal, l.Signal, logkey.Err, err)
		}
	case lineKill:
		p.Kill()
	case lineWatch:
		p.WatchGPUs(l.Watch)
	case lineAsk:
		if l.Ask != nil {
			p.AskGPU(*l.Ask)
		}
	case linePass:
		p.PassGPUCalls()
	case lineMemory:
		p.MeasureMemory()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reportLocked(line{Type: lineMemory, Life: l.Life, Memory: p.Used().Memory.Bytes})
	case lineMeasure:
		p.Measure(!l.NoProcessors, l.Look)
		if p.LookHangs() {
			c.reportGPUs(l.Life, p) // another supervisor may have got the last report
		}
		if l.NoProcessors {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		used := p.Used().Processor
		c.reportLocked(line{Type: lineUsed, Life: l.Life, Used: used.Used, Age: time.Since(used.At)})
	}
}

// keepConnection keeps what the kernel's launcher has told the supervisor.
func (c *Child) keepConnection(life string, file json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kernel != nil && c.kernel.Life == life {
		kept := *c.kernel // a copy: a hello may just be sending the other
		kept.ConnectionFile = file
		c.kernel = &kept
	}
}

// stopKernel kills the kernel, if one runs, and waits for its end.
func (c *Child) stopKernel() {
	c.mu.Lock()
	p := c.proc
	c.mu.Unlock()
	if p != nil {
		p.Kill()
		<-p.Done()
	}
}

// start replaces the kernel. The result is reported on the present connection, and in the hello of every later one.
func (c *Child) start(ctx context.Context, life string, st *StartOptions) {
	c.stopKernel()
	p, mode, dir, err := c.launch(ctx, life, st)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kernel, c.proc = nil, nil
	if err != nil {
		c.reportLocked(line{Type: lineFailed, Life: life, Text: err.Error()})
		return
	}
	k := &Kernel{Life: life, PID: p.PID(), InterruptMode: mode, ConnectionFile: st.ConnectionFile}
	k.Holds, k.Passes = p.HoldsGPUCalls()
	c.kernel, c.proc = k, p
	c.reportLocked(line{Type: lineStarted, Life: life, PID: k.PID, InterruptMode: mode, Holds: k.Holds, Text: k.Passes})
	c.wg.Go(func() { c.await(k, p, dir) })
}

// reportLocked sends a line to the supervisor, if it is connected.
func (c *Child) reportLocked(l line) {
	if c.link == nil {
		return
	}
	if err := c.link.send(l); err != nil {
		c.log.Warn("report to the supervisor was not sent", logkey.Line, l.Type, logkey.Err, err)
	}
}

// reportGPUs sends the result of the last look at GPUs.
func (c *Child) reportGPUs(life string, p *process.Process) {
	use := p.Used().GPU
	c.report(line{Type: lineLooked, Life: life, GPU: &use})
}

func (c *Child) report(l line) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reportLocked(l)
}

// await waits for the end of a life of the kernel and reports it. dir is the folder of its connection file.
func (c *Child) await(k *Kernel, p *process.Process, dir string) {
	e := p.Exit()
	if err := os.RemoveAll(dir); err != nil {
		c.log.Warn("the connection file cannot be removed", logkey.Err, err)
	}
	stdout, stderr := p.Output()
	reported := &exit{Exit: e, Stdout: stdout.Text(maxOutput), Stderr: stderr.Text(maxOutput), StdoutSaid: stdout.Said(),
		StderrSaid: stderr.Said()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kernel != nil && c.kernel.Life == k.Life {
		ended := *c.kernel // a copy: a hello may just be sending it
		ended.Exit = reported
		c.kernel = &ended
	}
	c.reportLocked(line{Type: lineExit, Life: k.Life, Exit: reported})
}

// launch starts a kernel's process. mode is the interrupt mode of the image's kernelspec, if that was used. dir is the
// folder of the connection file.
func (c *Child) launch(ctx context.Context, life string, st *StartOptions) (
	p *process.Process, mode, dir string, err error) {
	if st.ConnectionPath != "" {
		p, err = process.Start(c.processOptions(life, st, st.Argv, st.Env, st.ConnectionPath))
		return p, "", "", err
	}
	env := maps.Clone(c.env)
	maps.Copy(env, st.Env)
	if err := makeWritable(env, c.opts.Home); err != nil {
		return nil, "", "", err
	}
	argv := st.Argv
	if len(argv) == 0 {
		argv = c.opts.Argv
	}
	if len(argv) == 0 {
		var spec imageSpec
		c.reaper.Hold(func() { spec, err = findImageSpec(ctx, st.ImageKernelspec, env) }) // it may run python
		if err != nil {
			return nil, "", "", err
		}
		argv, mode = spec.argv, spec.interruptMode
		maps.Copy(env, spec.env)
		maps.Copy(env, st.Env)
	}
	dir, err = os.MkdirTemp(env["TMPDIR"], "ekg-kernel-")
	if err != nil {
		return nil, "", "", fmt.Errorf("the kernel's container has no folder for its connection file: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir) // the error of the start matters
		}
	}()
	file := filepath.Join(dir, "connection.json")
	if err := files.Write(file, st.ConnectionFile); err != nil {
		return nil, "", "", fmt.Errorf("the kernel's connection file cannot be written: %w", err)
	}
	if st.Launcher {
		if err := keepStatus(env, dir); err != nil {
			return nil, "", "", err
		}
	}
	opts := c.processOptions(life, st, argv, env, file)
	opts.WorkingDir = existingDir(opts.WorkingDir)
	if id := env["KERNEL_WORKING_DIR_ID"]; id != "" && files.FolderID(opts.WorkingDir) != id {
		opts.WorkingDir = "" // the client's folder of this path is another one
	}
	p, err = process.Start(opts)
	var missing *process.NoProgramError
	switch {
	case errors.As(err, &missing) && missing.OnPath:
		err = fmt.Errorf("the image has no program %q on its PATH", missing.Name)
	case errors.As(err, &missing):
		err = fmt.Errorf("the image has no program %q", missing.Name)
	}
	return p, mode, dir, err
}

// processOptions returns the options of a kernel's process. file is the path of its connection file.
func (c *Child) processOptions(life string, st *StartOptions, argv []string, env map[string]string,
	file string) process.Options {
	var called func(*process.Process)
	if st.HoldGPUCalls {
		called = func(*process.Process) { c.report(line{Type: lineCalled, Life: life}) }
	}
	return process.Options{KernelID: st.KernelID, Argv: process.Command(argv, file), Env: env, WorkingDir: st.WorkingDir,
		Stdout: c.copies[0], Stderr: c.copies[1], Group: c.opts.Group, Reaper: c.reaper, Logger: c.log, Scan: c.opts.Scan,
		Held: c.opts.Held, ShellStatus: st.Launcher, GPUCalled: called,
		GPUSeen:    func(p *process.Process) { c.reportGPUs(life, p) },
		GPUSampled: func(_ *process.Process, s gpu.Samples) { c.report(line{Type: lineSampled, Life: life, Samples: &s}) },
		GPUAnswer:  func(_ *process.Process, a gpu.Answer) { c.report(line{Type: lineAnswered, Life: life, Answer: &a}) }}
}

// environMap reads variables in the form of execve.
func environMap(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, v := range environ {
		if name, value, ok := strings.Cut(v, "="); ok && name != "" {
			env[name] = value
		}
	}
	return env
}
