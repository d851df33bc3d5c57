package child

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

// ReturnLimit is how long a child may be away before its kernel counts as lost. A living child dials again in that
// time.
const ReturnLimit = 2 * time.Second

// ReasonLimit takes the place of ReturnLimit in a pod, where the cluster reports why a container has ended. The kubelet
// looks at its containers once a second, and takes longer on a busy node.
const ReasonLimit = 10 * time.Second

const (
	maxLinks      = 4                    // connections to the child's socket at one time
	acceptPause   = 5 * time.Millisecond // after a failed accept
	maxReason     = 1000                 // bytes of the child's reason for a failed start
	maxDeviceText = 100                  // bytes of a GPU's UUID or model
	startLimit    = 60 * time.Second     // for the answer to start
	killLimit     = 10 * time.Second     // for the answer to kill
	farewellLimit = 2 * time.Second      // for the child to take the end
)

// ErrNoContainer says that no child is connected.
var ErrNoContainer = errors.New("no child is connected")

// ErrSilent says that the child has not answered a start. The kernel may run.
var ErrSilent = errors.New("does not answer")

// ContainerOptions says how a supervisor reaches a child.
type ContainerOptions struct {
	Socket   string           // unix socket that the child dials
	Grace    time.Duration    // the pod's termination grace
	Place    process.Place    // where the child runs, for the words of errors
	Measured func()           // called when the child has reported what its kernel has used
	Sampled  func()           // called when the child has reported samples of GPUs; nil: no call
	Answered func(gpu.Answer) // called with the answer to a Process.AskGPU; it must not wait; nil: no call
	Called   func()           // called while calls of CUDA wait, each second; it must not wait; nil: no call
	Log      *slog.Logger
}

// Container is the kernel's container from its supervisor's view. The supervisor calls Listen, then Serve in a
// goroutine of its own, and Close at the end. The other methods may be called concurrently.
//
// Anyone who may write to the socket can pretend to be the child. Such a peer can deceive the kernel's owner about the
// owner's own kernel. It cannot make the supervisor dial anything but ports of this pod, nor read its secret. The
// supervisor listens only to the user that connects first. That is the child's user, because the child starts before
// any code of the kernel's owner. This excludes a kernel that runs as another user than its child, and other containers
// that mount the folder. It does not exclude code of the same user, which could end its child by other means too.
type Container struct {
	// Fixed.
	opts    ContainerOptions
	log     *slog.Logger
	changed chan struct{} // capacity 1: a child has connected or gone

	// Set by Listen.
	listener *net.UnixListener
	handlers sync.WaitGroup

	// Guarded by mu.
	mu        sync.Mutex
	links     map[*link]struct{} // all that are open
	uid       int                // of the first peer; -1: none yet
	link      *link              // to the present child; nil: no child is connected
	inherited *Kernel            // what the child runs for an earlier supervisor; nil: nothing
	proc      *Process           // the last that was started or adopted
	reason    string             // the cluster's last reason for the container's end; "": none, or it has been used
	reasonAt  time.Time
	closed    bool
}

// NewContainer returns a Container that does not listen yet.
func NewContainer(opts ContainerOptions) *Container {
	if opts.Sampled == nil {
		opts.Sampled = func() {}
	}
	return &Container{opts: opts, log: opts.Log.With(logkey.Component, "child"), changed: make(chan struct{}, 1),
		links: map[*link]struct{}{}, uid: -1}
}

// EndedFile is the file beside a child's socket that says that the kernel has ended for good. A child that finds it,
// and no supervisor, ends. Its content is the JSON of an api.Ending.
func EndedFile(socket string) string { return socket + ".ended" }

// Listen opens the socket, unless it is open. It replaces the socket of an earlier supervisor.
func (c *Container) Listen() error {
	if c.listener != nil {
		return nil
	}
	if err := makeReadable(filepath.Dir(c.opts.Socket)); err != nil {
		return err
	}
	if err := os.Remove(c.opts.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.opts.Socket, Net: "unix"})
	if err != nil {
		return err
	}
	// The child runs as the user of its image. A child that dials before this fails and tries again.
	if err := os.Chmod(c.opts.Socket, 0o666); err != nil {
		_ = l.Close() // the error of chmod matters
		return err
	}
	c.listener = l
	return nil
}

// makeReadable creates a folder that every user can list.
func makeReadable(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return os.Chmod(dir, 0o755) // the umask may have removed bits
}

// Serve accepts connections until Close.
func (c *Container) Serve() {
	for {
		conn, err := c.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			c.log.Warn("child's connection cannot be accepted", logkey.Err, err)
			time.Sleep(acceptPause) // out of descriptors, which other connections give back
			continue
		}
		c.accept(conn)
	}
}

// accept starts a goroutine for a connection of the child's user, and closes others.
func (c *Container) accept(conn *net.UnixConn) {
	uid := peerUser(conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.links) >= maxLinks || uid < 0 || c.uid >= 0 && c.uid != uid {
		c.log.Warn("connection to the child's socket rejected", logkey.UID, uid)
		_ = conn.Close() // nothing was sent
		return
	}
	l := newLink(conn)
	c.links[l] = struct{}{}
	c.handlers.Go(func() { c.handle(l, uid) })
}

// peerUser returns the user at the other end, or -1.
func peerUser(conn *net.UnixConn) int {
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1
	}
	uid := -1
	if cerr := raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = int(cred.Uid)
		}
	}); cerr != nil {
		return -1
	}
	return uid
}

// handle follows one connection until it ends.
func (c *Container) handle(l *link, uid int) {
	err := c.follow(l, uid)
	l.close()
	<-l.done
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.links, l)
	if c.link != l {
		c.log.Debug("connection to the child's socket ended", logkey.Err, err)
		return
	}
	c.log.Info("connection to the child ended", logkey.Err, err)
	c.link, c.inherited = nil, nil
	if c.proc != nil {
		c.proc.loseLocked()
	}
	goroutines.Wake(c.changed)
}

func (c *Container) follow(l *link, uid int) error {
	if err := l.sendHello(line{Grace: c.opts.Grace}); err != nil {
		return err
	}
	hello, err := l.awaitHello()
	if err != nil {
		return err
	}
	if !c.install(l, uid, hello.Kernel) {
		return errors.New("its user is not the first one's")
	}
	for {
		received, err := l.receive()
		if err != nil {
			return err
		}
		c.take(l, received)
	}
}

// install makes the connection the present one, and closes the previous one. It returns false if the connection must
// not be used. k is the kernel that the child runs, or ran last; nil: no kernel.
func (c *Container) install(l *link, uid int, k *Kernel) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.uid >= 0 && c.uid != uid {
		return false
	}
	if c.link != nil {
		c.link.close()
	}
	c.uid, c.link, c.inherited = uid, l, nil
	switch p := c.proc; {
	case p != nil && k != nil && k.Life == p.life:
		p.foundLocked(k)
	default:
		if p != nil {
			p.loseLocked() // the container is another one, without the process
		}
		c.inherited = k
	}
	goroutines.Wake(c.changed)
	return true
}

// take handles a line of the present child.
func (c *Container) take(from *link, l line) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.inherited; c.link == from && k != nil && l.Life == k.Life && l.Type == lineExit {
		ended := *k // a copy: the supervisor may read the other
		ended.Exit = l.Exit
		c.inherited = &ended
		return
	}
	p := c.proc
	if c.link != from || p == nil || l.Life != p.life {
		return
	}
	switch l.Type {
	case lineStarted:
		p.foundLocked(&Kernel{PID: l.PID, InterruptMode: l.InterruptMode, Holds: l.Holds, Passes: l.Text})
	case lineFailed:
		p.failLocked(errors.New(api.PlainText(l.Text, maxReason)))
	case lineUsed:
		p.use.Processor = proctree.ProcessorTime{Used: l.Used,
			At: time.Now().Add(-min(max(l.Age, 0), maxAge))}
		c.opts.Measured()
	case lineMemory:
		if l.Memory > 0 {
			p.use.Memory = process.Memory{Bytes: l.Memory, At: time.Now()}
		}
	case lineLooked:
		if l.GPU != nil {
			p.use.GPU = process.GPUUse{
				GPUs:    l.GPU.GPUs,
				Failure: api.PlainText(l.GPU.Failure, process.MaxGPUFailure),
				At:      time.Now(),
			}
			c.opts.Measured()
		}
	case lineSampled:
		if s := l.Samples; s != nil && s.Check() == nil {
			s.Error = api.PlainText(s.Error, process.MaxGPUFailure)
			for i := range s.Devices {
				d := &s.Devices[i]
				d.UUID, d.Model = api.PlainText(d.UUID, maxDeviceText), api.PlainText(d.Model, maxDeviceText)
				d.Error, d.Processes = api.PlainText(d.Error, process.MaxGPUFailure), nil
			}
			p.use.Samples.Add(*s, p.began, time.Now())
			c.opts.Sampled()
		}
	case lineAnswered:
		if a := l.Answer; a != nil && a.Check() == nil && c.opts.Answered != nil {
			if a.Failure != nil {
				a.Failure.Call = api.PlainText(a.Failure.Call, maxDeviceText)
				a.Failure.Text = api.PlainText(a.Failure.Text, process.MaxGPUFailure)
			}
			c.opts.Answered(*a)
		}
	case lineCalled:
		if c.opts.Called != nil {
			c.opts.Called()
		}
	case lineExit:
		if l.Exit != nil {
			p.exitLocked(l.Exit)
		}
	}
}

// Connected reports whether a child is connected.
func (c *Container) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link != nil
}

// Changed receives a value after a child has connected or gone. It has one reader.
func (c *Container) Changed() <-chan struct{} { return c.changed }

// SetEndReason notes the cluster's reason for the container's end. It applies to an end that was noticed less than
// ReasonLimit before, or will be noticed within ReturnLimit.
func (c *Container) SetEndReason(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reason, c.reasonAt = text, time.Now()
	if p := c.proc; p != nil && p.loss != nil {
		p.endLocked(process.Exit{Code: -1, At: time.Now().UTC(), Lost: true, LostReason: text})
	}
}

// AwaitNoReason says that the present process is ended on purpose. Its end does not wait for the cluster's reason then:
// a child that is away counts as gone after ReturnLimit.
func (c *Container) AwaitNoReason() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.proc; p != nil && !p.over {
		p.unexplained = true
		if p.loss != nil {
			p.loss.Reset(ReturnLimit)
		}
	}
}

// Start makes the child start a kernel. It returns when the child has answered, when the child is gone, or when ctx
// ends; in the latter cases the process has ended or will end soon. The error is ErrNoContainer, ErrSilent, or one
// sentence for the kernel's owner.
func (c *Container) Start(ctx context.Context, st StartOptions) (*Process, error) {
	c.mu.Lock()
	if c.link == nil {
		c.mu.Unlock()
		return nil, ErrNoContainer
	}
	p := newProcess(c, rand.Text())
	c.proc, c.inherited = p, nil
	err := c.link.send(line{Type: lineStart, Life: p.life, Start: &st})
	c.mu.Unlock()
	if err != nil && !errors.Is(err, net.ErrClosed) { // if it is closed, the handler ends the process
		return nil, err
	}
	t := time.NewTimer(startLimit)
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
		p.Kill()
		return nil, fmt.Errorf("%s %w", c.opts.Place.Starter(), ErrSilent)
	}
	return p, nil
}

// Inherited returns the kernel that the present child runs, or ran, for an earlier supervisor; nil if it runs none.
func (c *Container) Inherited() *Kernel {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inherited
}

// Adopt makes an inherited kernel the present process.
func (c *Container) Adopt(k *Kernel) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := newProcess(c, k.Life)
	present := c.inherited != nil && c.inherited.Life == k.Life
	if present {
		k, c.inherited = c.inherited, nil // it may have ended meanwhile
	}
	p.foundLocked(k)
	c.proc = p
	if !present {
		p.loseLocked() // the child has gone meanwhile
	}
	return p
}

// Close tells the child to end, now or when it dials next. It waits for every goroutine but Serve. It leaves ending,
// the JSON of an api.Ending, for later children and supervisors.
func (c *Container) Close(ending []byte) {
	if err := os.WriteFile(EndedFile(c.opts.Socket), ending, 0o644); err != nil { // the child is another user
		c.log.Error("the child cannot be told that the kernel has ended for good", logkey.Err, err)
	}
	c.mu.Lock()
	c.closed = true
	present := c.link
	for l := range c.links {
		if l != present {
			l.close()
		}
	}
	if present != nil {
		_ = present.send(line{Type: lineEnd}) // if that fails, the connection is closed
	}
	c.mu.Unlock()
	if present != nil && !goroutines.Within(present.gone, farewellLimit) { // the child ends, and closes it
		present.close()
	}
	_ = c.listener.Close() // nothing is left to be done
	c.handlers.Wait()
}
