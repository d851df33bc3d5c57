// Package flow is the writing half of a client's websocket: its frames, control frames too, but for compressed messages
// and the library's answers to invalid frames. A Conn gathers messages into large writes and knows whether its peer
// still makes progress. A Pacer says when to wait for more messages. The package knows nothing of
// messages or sessions, and starts no goroutine.
package flow

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/sendqueue"
)

// ErrClosing is returned by writes after a close frame.
var ErrClosing = errors.New("a close frame was sent")

const (
	gatherBytes = 64 << 10             // gathered before they are written without Flush
	gatherPart  = 16 << 10             // larger parts of a frame are not copied
	writeBytes  = 256 << 10            // bytes of one write: the unit in which progress is seen
	blocked     = 2 * time.Millisecond // a write that took longer has waited for the peer
	alwaysFits  = 8 << 10              // unacknowledged bytes that all buffers take: no write of them waits
)

// Conn is a websocket's network connection. Its peer makes progress when it sends bytes, or when a write that had to
// wait for it goes on. A write into a buffer with room proves nothing. A peer that makes no progress counts as gone
// after sendqueue.Limit of the unacknowledged bytes.
//
// A client that reads nothing between two cells answers no pings. So once it has used the connection, it is enough that
// its host makes progress: Look sees that the send queue of the client's own socket is empty, or that bytes went out of
// it. Where a gateway has that socket, only the gateway looks, and ends the connection.
//
// Read and Write may be called concurrently, and so may Write and Flush.
type Conn struct {
	net.Conn
	progress atomic.Int64 // time of the last progress, in nanoseconds after epoch
	queued   atomic.Int64 // bytes in the send queue at the last Look; -1: it does not count
	owed     func() int64 // bytes sent and not acknowledged
	used     func() bool  // see Hijacker.Used
	watched  bool         // see Hijacker.Watched; false after TakeOver

	// Set by TakeOver. The reader owns early.
	gateway net.Conn         // nil unless the peer is a gateway's client
	queue   *sendqueue.Queue // of the client's socket; nil: it cannot be looked at
	early   []byte           // read before anything of the peer's

	ending sync.Mutex // held while the connection is replaced or closed
	closed bool       // guarded by ending

	mu      sync.Mutex                      // also held while writing, for the order of writes
	buf     []byte                          // gathered
	lent    *[gatherBytes + gatherPart]byte // backs buf; nil: nothing was gathered since Flush
	corked  bool
	most    int         // bytes of buf; gatherBytes but in Gather
	full    func()      // called before a write to the peer; nil but in Gather
	closing bool        // a close frame was written
	vector  net.Buffers // reused
}

// NewConn returns a Conn on c. Owed returns how many bytes were sent and not acknowledged.
func NewConn(c net.Conn, owed func() int64) *Conn {
	f := &Conn{Conn: c, owed: owed, used: func() bool { return false }, most: gatherBytes}
	f.queued.Store(-1)
	f.progressed()
	return f
}

// epoch has a reading of the monotonic clock, so that a step of the wall clock ends no connection.
var epoch = time.Now()

func (f *Conn) progressed() { f.progress.Store(int64(time.Since(epoch))) }

// Deadline returns when the peer counts as gone unless it makes progress.
func (f *Conn) Deadline() time.Time {
	n := f.queued.Load()
	if n < 0 || !f.used() {
		n = f.owed()
	}
	return epoch.Add(time.Duration(f.progress.Load())).Add(sendqueue.Limit(n))
}

// Look looks whether the host of a client that uses the connection is alive, and notes that as progress. It is called
// with each ping.
func (f *Conn) Look() {
	queued, alive := int64(-1), false
	switch {
	case !f.used():
	case f.watched:
		queued, alive = 0, true
	case f.queue != nil:
		if n, moved, err := f.queue.Look(); err == nil { // otherwise the connection is closed
			queued, alive = n, moved || n == 0
		}
	}
	if f.queued.Store(queued); alive {
		f.progressed()
	}
}

// Gone reports whether the peer counts as gone, after another Look.
func (f *Conn) Gone() bool {
	if time.Now().Before(f.Deadline()) {
		return false
	}
	f.Look()
	return time.Now().After(f.Deadline())
}

// Read implements net.Conn. Bytes are progress.
func (f *Conn) Read(p []byte) (int, error) {
	if len(f.early) > 0 {
		n := copy(p, f.early)
		if f.early = f.early[n:]; len(f.early) == 0 {
			f.early = nil // it may be large
		}
		return n, nil
	}
	n, err := f.Conn.Read(p)
	if n > 0 {
		f.progressed()
	}
	return n, err
}

// SetWriteDeadline does nothing: a write ends when the peer makes no progress.
func (f *Conn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets the read deadline only.
func (f *Conn) SetDeadline(t time.Time) error { return f.Conn.SetReadDeadline(t) }

// Cork holds small writes back until Flush.
func (f *Conn) Cork() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.corked = true
}

// Write implements net.Conn. After Cork it may only gather the bytes.
func (f *Conn) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closing {
		return 0, ErrClosing
	}
	if n, err := f.writeLocked(p); err != nil {
		return n, err
	}
	if isClose(p) {
		f.closing = true
	}
	return len(p), nil
}

// Opcodes of frames, RFC 6455, section 5.2.
const (
	Text   = 0x1
	Binary = 0x2
	Close  = 0x8
	Ping   = 0x9
	Pong   = 0xa

	final      = 0x80
	controlMax = 125 // bytes of a control frame's payload
)

// isClose reports whether a write of the websocket library is a close frame, by which it answers invalid frames. It
// writes a control frame at once, and the rest of a message in larger pieces than that.
func isClose(p []byte) bool { return len(p) <= 2+controlMax && len(p) > 0 && p[0] == final|Close }

// WriteFrame writes one whole frame, past the websocket library, whose frames it never divides. The payload has several
// parts, which are not kept. Large ones are not copied. After Cork it may only gather the bytes. Nothing follows a
// close frame. The payload of a control frame has at most 125 bytes.
func (f *Conn) WriteFrame(opcode byte, parts ...[]byte) error {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closing {
		return ErrClosing
	}
	var space [10]byte
	header := append(space[:0], final|opcode)
	switch {
	case size <= controlMax:
		header = append(header, byte(size))
	case size <= math.MaxUint16:
		header = binary.BigEndian.AppendUint16(append(header, 126), uint16(size))
	default:
		header = binary.BigEndian.AppendUint64(append(header, 127), uint64(size))
	}
	f.gatherLocked(header)
	f.closing = opcode == Close
	for _, part := range parts {
		if _, err := f.writeLocked(part); err != nil {
			return err
		}
	}
	if !f.corked {
		return f.endGatherLocked()
	}
	return nil
}

// writeLocked gathers bytes, or writes them together with those gathered before. It returns how many of p are gathered
// or written.
func (f *Conn) writeLocked(p []byte) (int, error) {
	if f.corked && (len(p) <= gatherPart || f.full != nil && len(f.buf)+len(p) <= f.most) {
		f.gatherLocked(p)
		if len(f.buf) < f.most {
			return len(p), nil
		}
		return len(p), f.flushLocked()
	}
	return f.pushLocked(p)
}

// Gather calls write, and holds back what it writes, up to most bytes. It calls done once: before the peer is waited
// for, at the latest when write has returned.
func (f *Conn) Gather(most int, write func() error, done func()) error {
	f.mu.Lock()
	corked := f.corked
	f.corked, f.most, f.full = true, most, sync.OnceFunc(done)
	f.mu.Unlock()
	err := write()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full()
	f.corked, f.most, f.full = corked, gatherBytes, nil
	switch {
	case err != nil:
		return err
	case !corked:
		return f.endGatherLocked()
	case len(f.buf) >= gatherBytes:
		err = f.flushLocked()
	}
	if f.lent != nil && cap(f.buf) > len(f.lent) { // the larger buffer is not kept while the next message is written
		f.buf = append(f.lent[:0], f.buf...)
	}
	return err
}

// Flush writes the bytes that Cork has held back and ends the cork.
func (f *Conn) Flush() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.corked = false
	return f.endGatherLocked()
}

// endGatherLocked writes what was gathered. An idle connection holds no buffer.
func (f *Conn) endGatherLocked() error {
	err := f.flushLocked()
	if f.lent != nil {
		gathering.Put(f.lent)
		f.lent, f.buf = nil, nil
	}
	return err
}

// gathering lends buffers to connections that gather.
var gathering = sync.Pool{New: func() any { return new([gatherBytes + gatherPart]byte) }}

func (f *Conn) gatherLocked(p []byte) {
	if f.buf == nil {
		f.lent = gathering.Get().(*[gatherBytes + gatherPart]byte)
		f.buf = f.lent[:0]
	}
	f.buf = append(f.buf, p...)
}

func (f *Conn) flushLocked() error {
	_, err := f.pushLocked(nil)
	return err
}

// pushLocked writes the gathered bytes and then p, in as few writes as show progress. It returns how many bytes of p
// were written.
func (f *Conn) pushLocked(p []byte) (written int, err error) {
	if f.full != nil {
		f.full()
	}
	gathered := f.buf
	f.buf = f.buf[:0]
	for len(gathered) > 0 || len(p) > 0 {
		first, second := gathered[:min(len(gathered), writeBytes)], p[:0]
		gathered = gathered[len(first):]
		if len(gathered) == 0 {
			second = p[:min(len(p), writeBytes-len(first))]
			p = p[len(second):]
		}
		n, err := f.writeOnce(first, second)
		written += max(0, n-len(first))
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// writeOnce writes two pieces with one system call if the peer takes them at once. While it waits, it looks at the
// client's socket as often as pings would.
func (f *Conn) writeOnce(first, second []byte) (n int, err error) {
	for {
		deadline := f.Deadline()
		switch {
		case !f.used():
		case f.watched: // and a connection with TLS would not survive a deadline
			deadline = time.Time{}
		case f.queue != nil:
			if look := time.Now().Add(sendqueue.LookEvery); look.Before(deadline) {
				deadline = look
			}
		}
		m, err := f.writeUntil(first, second, deadline)
		n += m
		if !errors.Is(err, os.ErrDeadlineExceeded) || f.queue == nil {
			return n, err
		}
		if f.Look(); time.Now().After(f.Deadline()) {
			return n, err
		}
		k := min(m, len(first))
		first, second = first[k:], second[m-k:]
	}
}

// writeUntil writes two pieces until a deadline. It notes whether it had to wait.
func (f *Conn) writeUntil(first, second []byte, deadline time.Time) (n int, err error) {
	if err := f.Conn.SetWriteDeadline(deadline); err != nil {
		return 0, err
	}
	before := time.Now()
	switch {
	case len(second) == 0:
		n, err = f.Conn.Write(first)
	case len(first) == 0:
		n, err = f.Conn.Write(second)
	default:
		f.vector = append(f.vector[:0], first, second)
		v := f.vector
		var m int64
		m, err = v.WriteTo(f.Conn)
		n = int(m)
		clear(f.vector)
	}
	if err == nil && time.Since(before) > blocked && f.owed() > alwaysFits { // with less, the machine was busy
		f.progressed()
	}
	return n, err
}

// Hijacker makes a websocket library take over a connection as a Conn.
type Hijacker struct {
	http.ResponseWriter
	Owed    func() int64 // see NewConn
	Used    func() bool  // whether the client has shown that it uses the connection, and has room for more
	Watched bool         // the peer is a gateway that ends the connection of a client that is gone
	Conn    *Conn        // set by Hijack
}

// Hijack implements http.Hijacker.
func (h *Hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.Conn = NewConn(c, h.Owed)
	if h.Used != nil {
		h.Conn.used = h.Used
	}
	h.Conn.watched = h.Watched
	// The library keeps this reader, so it has to read from the Conn, too. Peek of what is buffered cannot fail.
	early, _ := rw.Peek(rw.Reader.Buffered())
	rw.Reader.Reset(io.MultiReader(bytes.NewReader(bytes.Clone(early)), h.Conn))
	return h.Conn, rw, nil
}
