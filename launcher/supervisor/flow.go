package supervisor

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

const (
	flowBuffer = 64 << 10             // bytes gathered before they are written without being asked
	flowChunk  = 64 << 10             // bytes of one write: the unit in which progress is seen
	blocked    = 2 * time.Millisecond // a write that took longer has waited for the peer
	slowest    = 32 << 10             // bytes per second below which a peer counts as gone
	patience   = 45 * time.Second     // without progress, plus the time slowest takes for what is unacknowledged
	closeGrace = time.Second          // for the peer to answer a close frame
)

// flowConn is a websocket's network connection. It gathers several messages into one write, and knows when its peer
// last made progress: when bytes came from it, or a write that had to wait for it went on. A write into a buffer with
// room proves nothing. Read and Write may be called concurrently; Write and Flush, too.
type flowConn struct {
	net.Conn
	progress atomic.Int64 // Unix nanoseconds of the last progress
	owed     func() int64 // bytes sent and not acknowledged
	mu       sync.Mutex   // guards what follows and the order of writes
	buf      []byte
	corked   bool
}

func newFlowConn(c net.Conn, owed func() int64) *flowConn {
	f := &flowConn{Conn: c, owed: owed}
	f.progressed()
	return f
}

func (f *flowConn) progressed() { f.progress.Store(time.Now().UnixNano()) }

// deadline is when the peer counts as gone unless it makes progress.
func (f *flowConn) deadline() time.Time {
	return time.Unix(0, f.progress.Load()).Add(patience + time.Duration(f.owed()/slowest)*time.Second)
}

func (f *flowConn) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if n > 0 {
		f.progressed()
	}
	return n, err
}

// SetWriteDeadline does nothing: writes end by lack of progress.
func (f *flowConn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets the read deadline only.
func (f *flowConn) SetDeadline(t time.Time) error { return f.Conn.SetReadDeadline(t) }

// cork holds small writes back until Flush.
func (f *flowConn) cork() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.corked = true
}

func (f *flowConn) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.corked && len(f.buf)+len(p) <= flowBuffer {
		f.buf = append(f.buf, p...)
		return len(p), nil
	}
	if err := f.flush(); err != nil {
		return 0, err
	}
	if f.corked && len(p) <= flowBuffer {
		f.buf = append(f.buf, p...)
		return len(p), nil
	}
	return f.writeThrough(p)
}

// Flush writes what is held back and ends the cork.
func (f *flowConn) Flush() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.corked = false
	return f.flush()
}

func (f *flowConn) flush() error {
	if len(f.buf) == 0 {
		return nil
	}
	_, err := f.writeThrough(f.buf)
	if cap(f.buf) > flowBuffer/4 {
		f.buf = nil // an idle connection holds no large buffer
	}
	f.buf = f.buf[:0]
	return err
}

func (f *flowConn) writeThrough(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		n := min(len(p), flowChunk)
		if err := f.Conn.SetWriteDeadline(f.deadline()); err != nil {
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

// flowHijacker lets the websocket library take over a connection as a flowConn.
type flowHijacker struct {
	http.ResponseWriter
	owed func() int64
	flow *flowConn
}

// Hijack implements http.Hijacker.
func (h *flowHijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.flow = newFlowConn(c, h.owed)
	// The library goes on with this reader, so it has to read from the flowConn, too. Peek of what is buffered cannot fail.
	early, _ := rw.Reader.Peek(rw.Reader.Buffered())
	rw.Reader.Reset(io.MultiReader(bytes.NewReader(bytes.Clone(early)), h.flow))
	return h.flow, rw, nil
}
