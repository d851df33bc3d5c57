package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// maxChildConns bounds connections to the child's socket that are open at one time.
const maxChildConns = 4

// endedSuffix is what the name of the file has more than the socket, by whose presence a child that finds no supervisor
// knows that there will be none any more. It holds the Ending.
const endedSuffix = ".ended"

// container is the kernel's container as its supervisor sees it, through the child that runs there.
//
// Whoever may write to the socket can pretend to be the child, and so make its owner believe what it likes of its own
// kernel; it cannot make the supervisor dial anything but ports of this pod, nor read its secret. The user that came
// first, which is the child's since it starts before any code of the user, stays the only one that is listened to: a kernel
// that runs as another user than its child, or another container into which the folder was mounted, stays outside. Code of
// the same user does not, and could end its child by other means too.
type container struct {
	// Fixed.
	path     string
	grace    time.Duration // of the pod
	log      *slog.Logger
	returns  time.Duration // childReturns, but for tests
	changed  chan struct{} // capacity 1: a child has come or gone
	measured func()        // called when the child has told what its kernel has used

	// Set by listen.
	listener *net.UnixListener
	handlers sync.WaitGroup

	// Guarded by mu.
	mu     sync.Mutex
	open   map[*childConn]struct{}
	user   int            // that came first; -1: nobody has
	conn   *childConn     // to the present child; nil: there is none
	other  *childKernel   // what it runs, where that is none of ours
	proc   *remoteProcess // the last that was started or adopted
	told   string         // what the cluster last said of the container's death
	toldAt time.Time
	closed bool
}

func newContainer(cfg *Config, log *slog.Logger) *container {
	return &container{path: cfg.ChildSocket, grace: cfg.TerminationGrace, log: log.With("component", "child"),
		returns: childReturns, changed: make(chan struct{}, 1), measured: func() {}, open: map[*childConn]struct{}{}, user: -1}
}

// listen opens the socket, in place of one that an earlier supervisor has left.
func (c *container) listen() error {
	if err := makeReadable(filepath.Dir(c.path)); err != nil {
		return err
	}
	if err := os.Remove(c.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.path, Net: "unix"})
	if err != nil {
		return err
	}
	// The child runs as whatever user its image wants. One that dials a moment too early tries again.
	if err := os.Chmod(c.path, 0o666); err != nil {
		l.Close() //nolint:errcheck // the error of chmod is the one that matters
		return err
	}
	c.listener = l
	return nil
}

// makeReadable makes a folder that every user can look into.
func makeReadable(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return os.Chmod(dir, 0o755) // whatever the umask
}

// serve takes connections until close.
func (c *container) serve() {
	for {
		conn, err := c.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			c.log.Warn("child's connection cannot be accepted", "err", err)
			time.Sleep(killPause) // no descriptors: they will be there again
			continue
		}
		user := peerUser(conn)
		c.mu.Lock()
		welcome := !c.closed && len(c.open) < maxChildConns && user >= 0 && (c.user < 0 || c.user == user)
		if !welcome {
			c.mu.Unlock()
			c.log.Warn("connection to the child's socket refused", "uid", user)
			conn.Close() //nolint:errcheck // nothing was said
			continue
		}
		cc := newChildConn(conn)
		c.open[cc] = struct{}{}
		c.handlers.Go(func() { c.handle(cc, user) })
		c.mu.Unlock()
	}
}

// peerUser returns the user at the other end, or -1.
func peerUser(conn *net.UnixConn) int {
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1
	}
	user := -1
	if cerr := raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			user = int(cred.Uid)
		}
	}); cerr != nil {
		return -1
	}
	return user
}

// handle follows one connection until it ends.
func (c *container) handle(cc *childConn, user int) {
	err := c.follow(cc, user)
	cc.close()
	<-cc.done
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, cc)
	if c.conn != cc {
		c.log.Debug("connection to the child's socket ended", "err", err)
		return
	}
	c.log.Info("connection to the kernel's container ended", "err", err)
	c.conn, c.other = nil, nil
	if c.proc != nil {
		c.proc.lose()
	}
	poke(c.changed)
}

func (c *container) follow(cc *childConn, user int) error {
	if err := cc.sendHello(childLine{Grace: c.grace}); err != nil {
		return err
	}
	hello, err := cc.awaitHello()
	if err != nil {
		return err
	}
	if !c.install(cc, user, hello.Kernel) {
		return errors.New("it is of another user than the first")
	}
	for {
		l, err := cc.receive()
		if err != nil {
			return err
		}
		c.take(cc, l)
	}
}

// install makes the connection the present one, and closes the one before.
func (c *container) install(cc *childConn, user int, k *childKernel) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.user >= 0 && c.user != user {
		return false
	}
	if c.conn != nil {
		c.conn.close()
	}
	c.user, c.conn, c.other = user, cc, nil
	switch p := c.proc; {
	case p != nil && k != nil && k.Life == p.life:
		p.found(k)
	default:
		if p != nil {
			p.lose() // the container is another one, in which the process is not
		}
		c.other = k
	}
	poke(c.changed)
	return true
}

// take handles a line of the present child.
func (c *container) take(cc *childConn, l childLine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.proc
	if c.conn != cc || p == nil || l.Life != p.life {
		return
	}
	switch l.Type {
	case lineStarted:
		p.found(&childKernel{PID: l.PID, InterruptMode: l.InterruptMode})
	case lineFailed:
		p.fail(errors.New(plainText(l.Text, waitingText)))
	case lineUsed:
		p.use.processor = processorTime{used: l.Used, at: time.Now()}
		c.measured()
	case lineLooked:
		if l.GPU != nil {
			p.use.gpu = gpuUse{GPUs: l.GPU.GPUs, Failure: plainText(l.GPU.Failure, maxGPUFailure), at: time.Now()}
			c.measured()
		}
	case lineExit:
		if l.Exit != nil {
			p.end(l.Exit.info(), l.Exit.Stdout, l.Exit.Stderr)
		}
	}
}

// connected reports whether there is a child.
func (c *container) connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn != nil
}

// diedBecause takes what the cluster says of the container's death. It is of a death that was noticed not long before, or
// will be soon after.
func (c *container) diedBecause(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told, c.toldAt = text, time.Now()
	if p := c.proc; p != nil && p.loss != nil {
		p.end(exitInfo{Code: -1, At: time.Now().UTC(), Lost: true, Told: text}, "", "")
	}
}

var errNoChild = errors.New("the kernel's container is not there")

// start has the child start a kernel. It returns when the child has answered, when it is gone (then the process has ended or
// will have soon), or when ctx ends. The error is one sentence for the kernel's owner.
func (c *container) start(ctx context.Context, st childStart) (*remoteProcess, error) {
	c.mu.Lock()
	if c.conn == nil {
		c.mu.Unlock()
		return nil, errNoChild
	}
	p := newRemoteProcess(c, wire.NewID())
	c.proc, c.other = p, nil
	err := c.conn.send(childLine{Type: lineStart, Life: p.life, Start: &st})
	c.mu.Unlock()
	if err != nil && !errors.Is(err, net.ErrClosed) { // closed: the handler will tell the process's end
		return nil, err
	}
	t := time.NewTimer(childStarts)
	defer t.Stop()
	select {
	case <-p.answered:
		c.mu.Lock()
		defer c.mu.Unlock()
		if p.failure != nil {
			c.proc = nil
			return nil, p.failure
		}
	case <-p.ended:
	case <-ctx.Done():
	case <-t.C:
		p.kill()
		return nil, errors.New("the kernel's container does not answer")
	}
	return p, nil
}

// inherited returns the kernel that the present child runs, or ran, for an earlier supervisor, if there is one.
func (c *container) inherited() *childKernel {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.other
}

// adopt makes it the present process.
func (c *container) adopt(k *childKernel) *remoteProcess {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := newRemoteProcess(c, k.Life)
	p.found(k)
	c.proc = p
	if c.other == k {
		c.other = nil
	} else {
		p.lose() // the child has gone in the meantime
	}
	return p
}

// close tells the child to end, now or when it dials next, and waits for every goroutine but serve. ending is left for
// children and supervisors to come.
func (c *container) close(ending []byte) {
	if err := os.WriteFile(c.path+endedSuffix, ending, 0o644); err != nil { //nolint:gosec // its child is another user
		c.log.Error("the child cannot be told that the kernel has ended for good", "err", err)
	}
	c.mu.Lock()
	c.closed = true
	conn := c.conn
	for cc := range c.open {
		if cc != conn {
			cc.close()
		}
	}
	if conn != nil {
		conn.send(childLine{Type: lineEnd}) //nolint:errcheck // then it is closed
	}
	c.mu.Unlock()
	if conn != nil && !waitFor(conn.gone, childFarewell) { // by the child, which ends
		conn.close()
	}
	c.listener.Close() //nolint:errcheck // nothing is left to be done about it
	c.handlers.Wait()
}

// remoteProcess is a kernel's process in another container. It ends with the word of the child, or, when that is gone and
// has not come back within childReturns, without one.
type remoteProcess struct {
	// Fixed.
	c        *container
	life     string
	answered chan struct{} // closed when it has been started, or has not
	ended    chan struct{} // closed when info and words are set

	// Guarded by container.mu.
	number         int // pid
	mode           string
	failure        error
	over           bool        // ended is closed
	loss           *time.Timer // set while there is no child
	deaf           *time.Timer // set by kill
	info           exitInfo
	stdout, stderr tail
	use            processUse
}

func newRemoteProcess(c *container, life string) *remoteProcess {
	return &remoteProcess{c: c, life: life, answered: make(chan struct{}), ended: make(chan struct{})}
}

// found notes what the child tells of the process. c.mu is held.
func (p *remoteProcess) found(k *childKernel) {
	if p.over {
		return
	}
	if p.loss != nil {
		p.loss.Stop()
		p.loss = nil
	}
	p.number, p.mode = k.PID, k.InterruptMode
	p.answer()
	if k.Exit != nil {
		p.end(k.Exit.info(), k.Exit.Stdout, k.Exit.Stderr)
	}
}

// fail notes that the process was not started. c.mu is held.
func (p *remoteProcess) fail(err error) {
	select {
	case <-p.answered:
	default:
		p.failure = err
		p.answer()
		p.end(exitInfo{Code: -1, At: time.Now().UTC()}, "", "")
	}
}

func (p *remoteProcess) answer() {
	select {
	case <-p.answered:
	default:
		close(p.answered)
	}
}

// lose notes that there is no child any more that has the process. It may come back; else the process has ended with its
// container, and the cluster may tell why. c.mu is held.
func (p *remoteProcess) lose() {
	if p.over || p.loss != nil {
		return
	}
	if p.c.told != "" && time.Since(p.c.toldAt) < p.c.returns {
		p.end(exitInfo{Code: -1, At: time.Now().UTC(), Lost: true, Told: p.c.told}, "", "")
		return
	}
	p.loss = time.AfterFunc(p.c.returns, func() {
		p.c.mu.Lock()
		defer p.c.mu.Unlock()
		if p.loss != nil {
			p.end(exitInfo{Code: -1, At: time.Now().UTC(), Lost: true}, "", "")
		}
	})
}

// end notes the end of the process. c.mu is held.
func (p *remoteProcess) end(info exitInfo, stdout, stderr string) {
	if p.over {
		return
	}
	p.over, p.info = true, info
	for _, t := range []*time.Timer{p.loss, p.deaf} {
		if t != nil {
			t.Stop()
		}
	}
	if info.Lost {
		p.c.told = ""
	}
	p.stdout.Write([]byte(stdout)) //nolint:errcheck // it never fails
	p.stderr.Write([]byte(stderr)) //nolint:errcheck // likewise
	close(p.ended)
}

func (p *remoteProcess) pid() int {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return p.number
}

func (p *remoteProcess) done() <-chan struct{} { return p.ended }

func (p *remoteProcess) exit() exitInfo {
	<-p.ended
	return p.info
}

func (p *remoteProcess) lastWords(limit int) string { return lastWords(&p.stdout, &p.stderr, limit) }

func (p *remoteProcess) forgetOutput() { p.tell(childLine{Type: lineForget}) } //nolint:errcheck // it is forgotten with the child

func (p *remoteProcess) signal(sig syscall.Signal) error {
	return p.tell(childLine{Type: lineSignal, Signal: int(sig)})
}

// kill is certain: a child that does not do it counts as gone.
func (p *remoteProcess) kill() {
	if p.tell(childLine{Type: lineKill}) != nil {
		return // it has ended, or will have when the child does not come back
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.deaf != nil || p.over {
		return
	}
	p.deaf = time.AfterFunc(childKills, func() {
		p.c.mu.Lock()
		defer p.c.mu.Unlock()
		if p.over {
			return
		}
		p.c.log.Error("the kernel's container does not end its kernel")
		p.end(exitInfo{Code: -1, At: time.Now().UTC(), Lost: true}, "", "")
	})
}

func (p *remoteProcess) ending() bool {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return p.over || p.loss != nil
}

func (p *remoteProcess) interruptMode() string {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return p.mode
}

func (p *remoteProcess) measure(look gpuLook) { p.tell(childLine{Type: lineMeasure, Look: look}) } //nolint:errcheck // the next may be answered

func (p *remoteProcess) used() processUse {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return p.use
}

// tell sends the child a line about the process.
func (p *remoteProcess) tell(l childLine) error {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	switch {
	case p.over || p.c.proc != p:
		return os.ErrProcessDone
	case p.c.conn == nil:
		return errNoChild
	}
	l.Life = p.life
	return p.c.conn.send(l)
}

// portsOf reads the ports out of a connection file's content: whoever runs the kernel may say where it listens, but nothing
// else of how it is spoken to.
func portsOf(content json.RawMessage) ([]int, bool) {
	var f connectionFile
	if json.Unmarshal(content, &f) != nil {
		return nil, false
	}
	ports := []int{f.ShellPort, f.ControlPort, f.StdinPort, f.IOPubPort, f.HBPort}
	for _, p := range ports {
		if p < 1 || p > 65535 {
			return nil, false
		}
	}
	return ports, true
}
