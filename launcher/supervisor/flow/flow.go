// Package flow controls how a client's websocket is written. A Conn gathers messages into large writes and knows
// whether its peer still makes progress. A Pacer says when to wait for more messages. The package knows nothing of
// messages or sessions, and starts no goroutine.
package flow

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Patience is how long a peer may make no progress, plus the time that slowest takes for the unacknowledged bytes.
const Patience = 45 * time.Second

const (
	gatherBytes = 64 << 10             // gathered before they are written without Flush
	writeBytes  = 64 << 10             // bytes of one write: the unit in which progress is seen
	blocked     = 2 * time.Millisecond // a write that took longer has waited for the peer
	slowest     = 32 << 10             // bytes per second below which a peer counts as gone
)

// Conn is a websocket's network connection. Its peer makes progress when it sends bytes, or when a write that had to
// wait for it goes on. A write into a buffer with room proves nothing. Read and Write may be called concurrently, and
// so may Write and Flush.
type Conn struct {
	net.Conn
	progress atomic.Int64 // time of the last progress, in nanoseconds after epoch
	owed     func() int64 // bytes sent and not acknowledged

	mu     sync.Mutex // also held while writing, for the order of writes
	buf    []byte
	corked bool
	most   int    // bytes of buf; gatherBytes but in Gather
	full   func() // called before a write to the peer; nil but in Gather
}

// NewConn returns a Conn on c. Owed returns how many bytes were sent and not acknowledged.
func NewConn(c net.Conn, owed func() int64) *Conn {
	f := &Conn{Conn: c, owed: owed, most: gatherBytes}
	f.progressed()
	return f
}

// epoch has a reading of the monotonic clock, so that a step of the wall clock ends no connection.
var epoch = time.Now()

func (f *Conn) progressed() { f.progress.Store(int64(time.Since(epoch))) }

// Deadline returns when the peer counts as gone unless it makes progress.
func (f *Conn) Deadline() time.Time {
	return epoch.Add(time.Duration(f.progress.Load())).Add(Patience + time.Duration(f.owed()/slowest)*time.Second)
}

// Read implements net.Conn. Bytes are progress.
func (f *Conn) Read(p []byte) (int, error) {
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
	if f.corked && len(f.buf)+len(p) <= f.most {
		f.buf = append(f.buf, p...)
		return len(p), nil
	}
	if err := f.flushLocked(); err != nil {
		return 0, err
	}
	if f.corked && len(p) <= f.most {
		f.buf = append(f.buf, p...)
		return len(p), nil
	}
	return f.writeLocked(p)
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
	if err == nil && (!corked || len(f.buf) > gatherBytes) {
		err = f.flushLocked()
	}
	return err
}

// Flush writes the bytes that Cork has held back and ends the cork.
func (f *Conn) Flush() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.corked = false
	return f.flushLocked()
}

func (f *Conn) flushLocked() error {
	if len(f.buf) == 0 {
		return nil
	}
	_, err := f.writeLocked(f.buf)
	if cap(f.buf) > gatherBytes/4 {
		f.buf = nil // an idle connection holds no large buffer
	}
	f.buf = f.buf[:0]
	return err
}

func (f *Conn) writeLocked(p []byte) (int, error) {
	if f.full != nil {
		f.full()
	}
	written := 0
	for len(p) > 0 {
		n := min(len(p), writeBytes)
		if err := f.Conn.SetWriteDeadline(f.Deadline()); err != nil {
			return written, err
		}
		before := time.Now()
		n, err := f.Conn.Write(p[:n])
		written += n
		if err != nil {
			return written, err
		}
		if time.Since(before) > blocked {
			f.progressed()
		}
		p = p[n:]
	}
	return written, nil
}

// Hijacker makes a websocket library take over a connection as a Conn.
type Hijacker struct {
	http.ResponseWriter
	Owed func() int64 // see NewConn
	Conn *Conn        // set by Hijack
}

// Hijack implements http.Hijacker.
func (h *Hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.Conn = NewConn(c, h.Owed)
	// The library keeps this reader, so it has to read from the Conn, too. Peek of what is buffered cannot fail.
	early, _ := rw.Peek(rw.Reader.Buffered())
	rw.Reader.Reset(io.MultiReader(bytes.NewReader(bytes.Clone(early)), h.Conn))
	return h.Conn, rw, nil
}
