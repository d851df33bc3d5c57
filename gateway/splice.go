package gateway

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
)

// The copier of a websocket's bytes.
const (
	// flushTime is what is left to deliver what was read when one side has ended or the connection was revoked.
	flushTime = time.Second
	// stallTime is how long a write may stand still before the other side is looked at.
	stallTime = time.Second
	// blindTime is how long it may stand still where the other side cannot be looked at.
	blindTime = 2 * time.Minute
	// socketBuffer bounds what the system holds for a peer that does not read. More would only be lost with it.
	socketBuffer = 256 << 10

	smallBuffer = 4 << 10 // of each direction, for good: one message of a quiet connection
	largeBuffer = 32 << 10
)

// largeBuffers lends buffers to directions that are busy. Most connections are not, and there may be thousands.
var largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

// splice joins a client's connection to its supervisor's. A direction is one goroutine that reads on one side and
// writes on the other; nothing is buffered but the piece in its hands, so the slower side holds back the faster one.
//
// Whatever ends the connection (either side, an error, the context) calls end, after which nothing is read from the
// client any more, and what the supervisor had sent before has until the deadline to reach the client. The one case
// that no read or write tells of, a side that has gone while the other does not take its bytes, is looked for by
// writer.
type splice struct {
	// Fixed.
	client     net.Conn
	supervisor net.Conn

	// To be written before anything is copied. Each is owned by its direction.
	toClient   []byte
	toUpstream []byte

	in    atomic.Int64 // bytes from the client
	out   atomic.Int64 // bytes to the client
	ended chan struct{}

	mu       sync.Mutex
	deadline time.Time // guarded by mu; zero until end was called
	cause    error     // guarded by mu; why it ended
}

func newSplice(client, supervisor net.Conn, toUpstream, toClient []byte) *splice {
	tune(client)
	tune(supervisor)
	s := &splice{client: client, supervisor: supervisor, toUpstream: toUpstream, toClient: toClient,
		ended: make(chan struct{})}
	s.in.Store(int64(len(toUpstream)))
	return s
}

// tune sets the socket options; where one cannot be set the connection works all the same.
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

// errEOF is the cause of an ending that one side wanted.
var errEOF = errors.New("one side closed it")

// run copies until the connection has ended and returns why. Both connections are closed then and both goroutines have
// returned.
func (s *splice) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.end(context.Cause(ctx)) })
	defer stop()
	var up, down sync.WaitGroup
	up.Go(func() { s.end(s.pump(s.supervisor, s.client, &s.toUpstream, &s.in)) })
	down.Go(func() { s.end(s.pump(s.client, s.supervisor, &s.toClient, &s.out)) })

	<-s.ended
	up.Wait()
	closeWrite(s.supervisor)
	down.Wait()
	closeWrite(s.client)
	_ = s.supervisor.Close() // all it had is read, or too late
	s.mu.Lock()
	deadline := s.deadline
	s.mu.Unlock()
	linger(s.client, deadline)
	_ = s.client.Close() // see linger
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// end begins the connection's end: the first call sets all deadlines, further ones do nothing.
func (s *splice) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.deadline.IsZero() {
		return
	}
	s.deadline, s.cause = time.Now().Add(flushTime), cause
	// These fail only on connections that are closed already.
	_ = s.client.SetReadDeadline(past)
	_ = s.supervisor.SetReadDeadline(s.deadline)
	_ = s.client.SetWriteDeadline(s.deadline)
	_ = s.supervisor.SetWriteDeadline(s.deadline)
	close(s.ended)
}

// linger waits for the peer to close its side, until the deadline. Closing a socket with unread bytes in it resets the
// connection, and a reset takes away what the peer has not read yet: a close frame for one.
func linger(conn net.Conn, deadline time.Time) {
	_ = conn.SetReadDeadline(deadline) // the read below tells
	var sink [512]byte
	for {
		if _, err := conn.Read(sink[:]); err != nil {
			return
		}
	}
}

// closeWrite tells the other side that nothing more will come, where the connection can say that.
func closeWrite(conn net.Conn) {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite() // fails on broken connections, which say it by themselves
	}
}

// pump copies from src to dst, first before everything else, until either fails; first is let go once it is written. A quiet connection holds a small
// buffer; one that fills it gets a large one for as long as it needs it.
func (s *splice) pump(dst, src net.Conn, first *[]byte, count *atomic.Int64) error {
	w := newWriter(s, dst, src)
	defer w.timer.Stop()
	if err := w.write(*first); err != nil {
		return err
	}
	*first = nil
	small := make([]byte, smallBuffer)
	buf := small
	var large *[largeBuffer]byte
	defer func() {
		if large != nil {
			largeBuffers.Put(large)
		}
	}()
	for {
		n, err := src.Read(buf)
		if n > 0 {
			count.Add(int64(n))
			if err := w.write(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case err != nil:
			return ending(err)
		case large == nil && n == len(buf):
			large = largeBuffers.Get().(*[largeBuffer]byte)
			buf = large[:]
		case large != nil && n < smallBuffer:
			largeBuffers.Put(large)
			large, buf = nil, small
		}
	}
}

// ending makes the end of a stream an ordinary cause.
func ending(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
		return errEOF
	}
	return err
}

var (
	errGone  = errors.New("one side went away while the other did not read")
	errBlind = errors.New("one side did not read for too long")
)

// writer is the writing half of one direction. While a write stands still it is the only one who can notice that src
// has gone, so a timer looks then. Deadlines would do for a socket, but a TLS connection is broken after its first.
type writer struct {
	*splice
	dst, src net.Conn
	timer    *time.Timer
	armed    atomic.Bool  // the timer runs
	since    atomic.Int64 // when the write in progress began, in Unix nanoseconds; 0 if there is none
}

func newWriter(s *splice, dst, src net.Conn) *writer {
	w := &writer{splice: s, dst: dst, src: src}
	w.armed.Store(true)
	w.timer = time.AfterFunc(stallTime, w.look)
	return w
}

// write writes all of b, however long dst takes for it, unless the connection ends meanwhile.
func (w *writer) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	w.since.Store(time.Now().UnixNano())
	w.arm() // once in stallTime at most, because a timer costs as much as a small write
	_, err := w.dst.Write(b)
	w.since.Store(0)
	return err
}

func (w *writer) arm() {
	if !w.armed.Swap(true) {
		w.timer.Reset(stallTime)
	}
}

// look is called by the timer. A quiet connection has none running.
func (w *writer) look() {
	since := w.since.Load()
	if since == 0 {
		w.armed.Store(false)
		if w.since.Load() == 0 {
			return
		}
		w.arm() // a write has begun between the two lines above and has found the timer armed
		return
	}
	select {
	case <-w.ended:
		return
	default:
	}
	stood := time.Since(time.Unix(0, since))
	gone, known := hungUp(w.src)
	switch {
	case stood < stallTime:
	case gone:
		w.end(errGone)
		return
	case !known && stood > blindTime:
		w.end(errBlind)
		return
	}
	w.timer.Reset(stallTime)
}

// hungUp looks whether the peer of a connection has closed its side or is gone, without reading from it: bytes may
// still lie before the end. known is false for connections that are no sockets.
func hungUp(conn net.Conn) (gone, known bool) {
	sc, ok := plain(conn).(syscall.Conn)
	if !ok {
		return false, false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true, true
	}
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		for {
			_, err := unix.Poll(fds, 0)
			if err == nil || !errors.Is(err, unix.EINTR) {
				break
			}
		}
		gone = fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
	})
	return gone || err != nil, true
}
