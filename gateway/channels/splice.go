package channels

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/internal/sendqueue"
)

// FlushTime is how long the delivery of bytes that were read may take after one side has ended or the connection was
// closed.
const FlushTime = time.Second

const (
	// stallTime is how long a write may block before the other side is checked.
	stallTime = time.Second
	// blindTime is how long a write may block if the other side cannot be checked.
	blindTime = 2 * time.Minute
	// socketBuffer bounds what the system holds for a peer that does not read. More would only be lost with the peer.
	socketBuffer = 256 << 10
)

// Splice joins a client's connection to its supervisor's. Each direction is one goroutine that reads on one side and
// writes on the other. It buffers only the piece that it has just read, so the slower side holds back the faster one.
//
// The end of either side, an error or the context calls end. From then on nothing is read from the client. Bytes that
// the supervisor had sent have until the deadline to reach the client. No read or write notices that one side
// disappears while the other side does not read; writer checks for that.
type Splice struct {
	// Fixed.
	client     net.Conn
	supervisor net.Conn

	// Written before anything is copied. Each is owned by its direction.
	toClient     []byte
	toSupervisor []byte

	in    atomic.Int64 // bytes from the client
	out   atomic.Int64 // bytes to the client
	over  atomic.Bool  // the supervisor has ended the connection, before anything else did
	ended chan struct{}

	mu       sync.Mutex
	deadline time.Time // guarded by mu; zero before end is called
	cause    error     // guarded by mu; why it ended
}

// newSplice joins two connections, which it owns from then on. The bytes of toSupervisor came from the client already.
func newSplice(client, supervisor net.Conn, toSupervisor, toClient []byte) *Splice {
	tune(client)
	tune(supervisor)
	s := &Splice{client: client, supervisor: supervisor, toSupervisor: toSupervisor, toClient: toClient,
		ended: make(chan struct{})}
	s.in.Store(int64(len(toSupervisor)))
	return s
}

// tune sets socket options. A connection works without them, so errors are ignored.
func tune(conn net.Conn) {
	switch c := plain(conn).(type) {
	case *net.TCPConn:
		_ = c.SetNoDelay(true)
		_ = c.SetWriteBuffer(socketBuffer)
	case *net.UnixConn:
		_ = c.SetWriteBuffer(socketBuffer)
	}
}

// plain returns the socket below a TLS connection.
func plain(conn net.Conn) net.Conn {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return conn
}

// errEOF is the cause of a connection that one side has closed.
var errEOF = errors.New("one side closed it")

// Bytes returns how many bytes came from the client and went to it so far.
func (s *Splice) Bytes() (in, out int64) { return s.in.Load(), s.out.Load() }

// Run copies until the connection has ended, and returns why. Both connections are closed then, and both goroutines
// have returned.
func (s *Splice) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.end(context.Cause(ctx)) })
	defer stop()
	var up, down sync.WaitGroup
	up.Go(func() {
		s.end(goroutines.Contain(func() error { return s.pump(s.supervisor, s.client, &s.toSupervisor, &s.in) }))
	})
	down.Go(func() {
		err := goroutines.Contain(func() error { return s.pump(s.client, s.supervisor, &s.toClient, &s.out) })
		select {
		case <-s.ended:
		default:
			s.over.Store(errors.Is(err, errEOF))
		}
		s.end(err)
	})

	tick := time.NewTicker(sendqueue.LookEvery)
	s.watch(tick.C)
	tick.Stop()
	up.Wait()
	closeWrite(s.supervisor)
	down.Wait()
	closeWrite(s.client)
	_ = s.supervisor.Close() // everything was read, or it is too late
	s.mu.Lock()
	deadline := s.deadline
	s.mu.Unlock()
	if s.over.Load() {
		deadline = deadline.Add(FlushTime) // the supervisor does not wait for the client's answer to its close frame
	}
	linger(s.client, deadline)
	_ = s.client.Close() // see linger
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// watch looks at the client's socket at each tick until the connection ends. It ends it once the client is gone.
func (s *Splice) watch(ticks <-chan time.Time) {
	w := newWatch(s.client)
	for {
		select {
		case now := <-ticks:
			if w.gone(now) {
				s.end(errSilent)
			}
		case <-s.ended:
			return
		}
	}
}

// end begins the connection's end. The first call sets all deadlines; later calls do nothing.
func (s *Splice) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.deadline.IsZero() {
		return
	}
	s.deadline, s.cause = time.Now().Add(FlushTime), cause
	// These fail only on connections that are closed already.
	_ = s.client.SetReadDeadline(past)
	_ = s.supervisor.SetReadDeadline(s.deadline)
	_ = s.client.SetWriteDeadline(s.deadline)
	_ = s.supervisor.SetWriteDeadline(s.deadline)
	close(s.ended)
}

// linger waits until the peer closes its side or the deadline passes. If a socket is closed with unread bytes in it,
// the connection is reset. A reset discards what the peer has not read yet, such as a close frame.
func linger(conn interface {
	io.Reader
	SetReadDeadline(time.Time) error
}, deadline time.Time,
) {
	_ = conn.SetReadDeadline(deadline) // if it fails, so does the read below
	var sink [512]byte
	for {
		if _, err := conn.Read(sink[:]); err != nil {
			return
		}
	}
}

// closeWrite ends the writing half of a connection that has halves.
func closeWrite(conn net.Conn) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite() // fails only on broken connections
	}
}

// pump writes first to dst and then copies from src, until either fails. It sets *first to nil, which frees it.
func (s *Splice) pump(dst, src net.Conn, first *[]byte, count *atomic.Int64) error {
	w := newWriter(s, dst, src)
	defer w.timer.Stop()
	if err := w.write(*first); err != nil {
		return err
	}
	*first = nil
	b := newBuffers()
	defer b.release()
	for {
		n, err := src.Read(b.now)
		if n > 0 {
			count.Add(int64(n))
			if err := w.write(b.now[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return ending(err)
		}
		b.adapt(n)
	}
}

// ending returns errEOF for the end of a stream, and every other error as it is.
func ending(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
		return errEOF
	}
	return err
}

var (
	errGone  = errors.New("one side disappeared while the other did not read")
	errBlind = errors.New("one side did not read for too long")
)

// writer is the writing half of one direction. While a write blocks, no goroutine reads src, so a timer checks whether
// src is gone. Write deadlines would not do: a TLS connection is broken after the first one that expires.
type writer struct {
	*Splice
	dst, src net.Conn
	timer    *time.Timer
	armed    atomic.Bool  // the timer is running
	since    atomic.Int64 // start of the write in progress, in nanoseconds after epoch; 0 while no write is in progress
}

// epoch has a reading of the monotonic clock, so that a step of the wall clock ends no connection.
var epoch = time.Now()

func newWriter(s *Splice, dst, src net.Conn) *writer {
	w := &writer{Splice: s, dst: dst, src: src}
	w.armed.Store(true)
	w.timer = time.AfterFunc(stallTime, w.check)
	return w
}

// write writes all of b, however long dst takes, unless the connection ends meanwhile.
func (w *writer) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	w.since.Store(int64(time.Since(epoch)))
	w.arm() // at most once in stallTime, because a timer costs as much as a small write
	_, err := w.dst.Write(b)
	w.since.Store(0)
	return err
}

func (w *writer) arm() {
	if !w.armed.Swap(true) {
		w.timer.Reset(stallTime)
	}
}

// check is called by the timer. A quiet connection has no running timer.
func (w *writer) check() {
	since := w.since.Load()
	if since == 0 {
		w.armed.Store(false)
		if w.since.Load() == 0 {
			return
		}
		w.arm() // a write began between the two lines above and found the timer armed
		return
	}
	select {
	case <-w.ended:
		return
	default:
	}
	blocked := time.Since(epoch) - time.Duration(since)
	gone, known := hungUp(w.src)
	switch {
	case blocked < stallTime:
	case gone:
		w.end(errGone)
		return
	case !known && blocked > blindTime:
		w.end(errBlind)
		return
	}
	w.timer.Reset(stallTime)
}

// hungUp reports whether the peer of a connection has closed its side or is gone. It does not read, since bytes may
// still lie before the end. known is false for connections that are not sockets.
func hungUp(conn net.Conn) (gone, known bool) {
	sc, ok := plain(conn).(syscall.Conn)
	if !ok {
		return false, false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true, true
	}
	err = raw.Control(func(fd uintptr) { gone = descriptorHungUp(int(fd)) })
	return gone || err != nil, true
}

func descriptorHungUp(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	for {
		_, err := unix.Poll(fds, 0)
		if err == nil || !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
}
