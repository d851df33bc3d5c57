package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	childRedial     = 20 * time.Millisecond  // between attempts to reach a supervisor that is not there yet
	childRedialMost = time.Second            // likewise, to one that has not been for long
	childGrace      = 30 * time.Second       // a pod's time for its end, until the supervisor tells: what Kubernetes takes by default
	childLast       = 3 * time.Second        // before the end of the grace: a supervisor that has said nothing by then will not
	mirrorPatience  = 2 * time.Second        // for the container's log to take what the kernel writes
	reapInterval    = 100 * time.Millisecond // the least time between two looks for orphans that have ended
)

// ChildOptions says where a child works. The zero value of a field has no default but where one is named.
type ChildOptions struct {
	Socket string       // of the supervisor
	Home   string       // a folder that the kernel's user may write to, where its own home and temporary folders are not
	Argv   []string     // the kernel's command where the supervisor names none, with {connection_file}; empty: the image's kernelspec
	Stdout *os.File     // gets a copy of what the kernel writes; nil: nothing does
	Stderr *os.File     // likewise
	Log    *slog.Logger // nil: nothing is logged
}

// child runs a kernel at the word of a supervisor in another container.
//
// Goroutines: RunChild's own dials and reads; one reaps; one watches for the pod's end; one for each life of the kernel waits
// for its end; each connection has its writer. RunChild waits for all of them.
type child struct {
	// Fixed.
	opts ChildOptions
	log  *slog.Logger
	env  map[string]string // the container's
	out  [2]io.Writer      // copies of stdout and stderr
	reap *reaper
	wg   sync.WaitGroup

	// Guarded by mu.
	mu     sync.Mutex
	conn   *childConn // nil: there is none
	grace  time.Duration
	kernel *childKernel // nil: none was started
	proc   *process     // of kernel
}

// RunChild runs kernels in this container at the word of the supervisor at Socket, one at a time, as the container's first
// process or not. It returns 0 when the supervisor has told it to end, or has ended for good.
//
// The end of ctx means that the pod is to end (SIGTERM, which the supervisor gets at the same time): the supervisor then
// ends the kernel in an orderly way and says so. Without its word the child gives up shortly before the pod's grace is over
// and returns 1.
func RunChild(ctx context.Context, opts ChildOptions) int {
	log := opts.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &child{opts: opts, log: log, env: environMap(os.Environ()), grace: childGrace, reap: newReaper()}
	for i, f := range []*os.File{opts.Stdout, opts.Stderr} {
		if f != nil {
			m := openMirror(f)
			defer m.close()
			c.out[i] = m
		}
	}
	// Where an image's own program is the container's first process, orphans come to us all the same.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		log.Warn("orphans are not reaped", "err", err)
	}
	life, end := context.WithCancel(context.Background())
	defer end()
	c.wg.Go(func() { c.reap.run(life) })
	c.wg.Go(func() { c.giveUpInTime(life, ctx, end) })
	ended := c.dial(life, ctx)
	end()
	c.stopKernel()
	c.wg.Wait()
	if ended {
		return 0
	}
	return 1
}

// giveUpInTime waits until the pod is to end, and then for the last moment of its grace, to end the child's life.
func (c *child) giveUpInTime(life, told context.Context, end context.CancelFunc) {
	select {
	case <-life.Done():
		return
	case <-told.Done():
	}
	c.mu.Lock()
	left := max(0, c.grace-childLast)
	if c.conn == nil && (c.proc == nil || isClosed(c.proc.done())) {
		left = 0 // nothing runs, and nobody is there who would say anything
	}
	c.mu.Unlock()
	c.log.Info("told to end; waiting for the supervisor's word", "at_most", left.String())
	pause(life, left)
	end()
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// dial connects to the supervisor, again and again. It reports true when that has told the end, false when life ended.
func (c *child) dial(life, told context.Context) bool {
	began := time.Now()
	for life.Err() == nil {
		conn, err := net.Dial("unix", c.opts.Socket)
		if err == nil {
			if c.converse(life, conn) {
				return true
			}
			began = time.Now()
		}
		if _, serr := os.Stat(c.opts.Socket + endedSuffix); serr == nil {
			return true
		}
		if told.Err() != nil && !c.busy() {
			return false
		}
		pause(life, min(max(childRedial, time.Since(began)/20), childRedialMost))
	}
	return false
}

// busy reports whether a kernel runs.
func (c *child) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proc != nil && !isClosed(c.proc.done())
}

// converse follows one connection until it ends. It reports true if the supervisor has told the end.
//
// Who listens is not asked: the folder of the socket is mounted so that nothing in this container can write to it.
func (c *child) converse(life context.Context, conn net.Conn) bool {
	cc := newChildConn(conn)
	defer func() { cc.close(); <-cc.done }()
	defer context.AfterFunc(life, cc.close)()
	c.mu.Lock()
	hello := childLine{Kernel: c.kernel}
	// From here on what happens is said on this connection, behind the hello.
	c.conn = cc
	err := cc.sendHello(hello)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.conn = nil
	}()
	var answer childLine
	if err == nil {
		answer, err = cc.awaitHello()
	}
	if err != nil {
		c.log.Warn("supervisor cannot be spoken to", "err", err)
		return false
	}
	if answer.Grace > 0 {
		c.mu.Lock()
		c.grace = answer.Grace
		c.mu.Unlock()
	}
	for {
		l, err := cc.receive()
		if err != nil {
			c.log.Info("connection to the supervisor ended", "err", err)
			return false
		}
		if l.Type == lineEnd {
			return true
		}
		c.take(life, l)
	}
}

// take does what a line says.
func (c *child) take(life context.Context, l childLine) {
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
	case lineSignal:
		if l.Signal <= 0 || l.Signal > 64 {
			return
		}
		if err := p.signal(syscall.Signal(l.Signal)); err != nil && !errors.Is(err, os.ErrProcessDone) {
			c.log.Warn("signal was not delivered", "signal", l.Signal, "err", err)
		}
	case lineKill:
		p.kill()
	case lineForget:
		p.forgetOutput()
	case lineMeasure:
		p.measure(l.Look)
		if p.lookHangs() {
			c.tellLook(l.Life, p) // who asks may be another supervisor than who was told
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.say(childLine{Type: lineUsed, Life: l.Life, Used: p.used().processor.used})
	}
}

// stopKernel ends what runs, and waits for its end.
func (c *child) stopKernel() {
	c.mu.Lock()
	p := c.proc
	c.mu.Unlock()
	if p != nil {
		p.kill()
		<-p.done()
	}
}

// start replaces the kernel. What became of it is said on the present connection, and on every later one.
func (c *child) start(ctx context.Context, life string, st *childStart) {
	c.stopKernel()
	p, mode, dir, err := c.launch(ctx, st)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kernel, c.proc = nil, nil
	if err != nil {
		c.say(childLine{Type: lineFailed, Life: life, Text: err.Error()})
		return
	}
	k := &childKernel{Life: life, PID: p.pid(), InterruptMode: mode, Connection: st.Connection}
	p.seen = func() { c.tellLook(life, p) }
	c.kernel, c.proc = k, p
	c.say(childLine{Type: lineStarted, Life: life, PID: k.PID, InterruptMode: mode})
	c.wg.Go(func() { c.await(k, p, dir) })
}

// say sends a line if there is a connection. c.mu is held.
func (c *child) say(l childLine) {
	if c.conn == nil {
		return
	}
	if err := c.conn.send(l); err != nil {
		c.log.Warn("supervisor was not told", "line", l.Type, "err", err)
	}
}

// tellLook tells what was seen of GPUs.
func (c *child) tellLook(life string, p *process) {
	seen := p.used().gpu
	c.mu.Lock()
	defer c.mu.Unlock()
	c.say(childLine{Type: lineLooked, Life: life, GPU: &seen})
}

// await waits for the end of a life of the kernel and tells it.
func (c *child) await(k *childKernel, p *process, dir string) {
	info := p.exit()
	c.reap.forget(p.pid())
	if err := os.RemoveAll(dir); err != nil {
		c.log.Warn("the connection file cannot be removed", "err", err)
	}
	exit := &childExit{Code: info.Code, Signal: int(info.Signal), At: info.At, OOM: info.OOM, Limit: info.Limit,
		Stdout: p.stdout.text(childWords), Stderr: p.stderr.text(childWords)}
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := *k // the other may be on its way in a hello
	ended.Exit = exit
	if c.kernel == k {
		c.kernel = &ended
	}
	c.say(childLine{Type: lineExit, Life: k.Life, Exit: exit})
}

// launch starts a kernel's process. dir is the folder of its connection file.
func (c *child) launch(ctx context.Context, st *childStart) (p *process, mode, dir string, err error) {
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
		c.reap.hold(func() { spec, err = findImageSpec(ctx, st.ImageKernelspec, env) }) // it may run python
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
			os.RemoveAll(dir) //nolint:errcheck // the error of the start is the one that matters
		}
	}()
	file := filepath.Join(dir, "connection.json")
	if err := writeFile(file, st.Connection); err != nil {
		return nil, "", "", fmt.Errorf("the kernel's connection file cannot be written: %w", err)
	}
	cfg := Config{KernelID: st.KernelID, Argv: argv, Env: env, WorkingDir: existingDir(st.WorkingDir), ConnectionFile: file}
	c.reap.hold(func() {
		if p, err = startMirrored(cfg, command(&cfg), c.log, c.out); err == nil {
			c.reap.spare(p.pid())
			p.orphans = c.reap
		}
	})
	var missing *noProgramError
	switch {
	case errors.As(err, &missing) && missing.onPath:
		err = fmt.Errorf("the image has no program %q on its PATH", missing.name)
	case errors.As(err, &missing):
		err = fmt.Errorf("the image has no program %q", missing.name)
	}
	return p, mode, dir, err
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

// mirror copies what a kernel writes to the container's own output. What that does not take within mirrorPatience is
// dropped: it is in the kernel's log, and a runtime that reads no logs must not stop a kernel.
type mirror struct {
	f     *os.File
	own   bool // f is another description than the container's own
	stuck bool // the last write was broken off; owned by the one who writes
}

// openMirror opens an output anew, so that its writes can be broken off. Where it is not a pipe, or another user's, it is
// written to as it is.
func openMirror(f *os.File) *mirror {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &mirror{f: f}
	}
	return &mirror{f: os.NewFile(uintptr(fd), f.Name()), own: true}
}

// Write never fails.
func (m *mirror) Write(b []byte) (int, error) {
	limit := mirrorPatience
	if m.stuck {
		limit = time.Millisecond // once is enough
	}
	m.f.SetWriteDeadline(time.Now().Add(limit)) //nolint:errcheck // a file has no deadline, and does not block
	_, err := m.f.Write(b)
	m.stuck = errors.Is(err, os.ErrDeadlineExceeded)
	return len(b), nil
}

func (m *mirror) close() {
	if m.own {
		m.f.Close() //nolint:errcheck // what was not written is lost
	}
}

// reaper takes the exit status of orphans, which come to this process when their parents end. It leaves the kernel, for
// whose end another goroutine waits, and whatever is started under hold.
type reaper struct {
	mu   sync.Mutex
	kept map[int]bool // pids of processes for whose end somebody else waits
}

func newReaper() *reaper { return &reaper{kept: map[int]bool{}} }

// hold runs f while nothing is reaped. A nil reaper reaps nothing.
func (r *reaper) hold(f func()) {
	if r == nil {
		f()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// spare leaves a process to who waits for it. The reaper is held.
func (r *reaper) spare(pid int) {
	if r != nil {
		r.kept[pid] = true
	}
}

// forget ends spare.
func (r *reaper) forget(pid int) {
	r.hold(func() {
		if r != nil {
			delete(r.kept, pid)
		}
	})
}

// run reaps until ctx ends.
func (r *reaper) run(ctx context.Context) {
	chld := make(chan os.Signal, 1)
	signal.Notify(chld, syscall.SIGCHLD)
	defer signal.Stop(chld)
	for {
		select {
		case <-ctx.Done():
			return
		case <-chld:
		}
		r.hold(r.once)
		if !pause(ctx, reapInterval) { // a kernel may leave thousands
			return
		}
	}
}

// once reaps what has ended by now. The reaper is held.
func (r *reaper) once() {
	for _, e := range processes() {
		if e.parent != os.Getpid() || e.state != 'Z' || r.kept[e.pid] {
			continue
		}
		var status syscall.WaitStatus
		_, _ = syscall.Wait4(e.pid, &status, syscall.WNOHANG, nil) // gone is as good as reaped
	}
}
