package zeromq

import (
	"net"
	"sync"
)

const (
	aheadLimit  = 64 << 20 // bytes read from a subscription and not yet parsed
	aheadChunk  = 64 << 10 // bytes of one buffer
	aheadSpares = 4        // empty buffers that are kept
	aheadLeast  = 4 << 10  // free bytes that a buffer needs to be filled further
)

// readAhead reads a subscription's connection as soon as bytes arrive, and keeps them until Read takes them. A kernel
// drops what it cannot send beyond ZeroMQ's high-water mark, and a unix socket holds only some 200 KiB. So the reader
// of the connection must wait neither for the parser nor for a lock of the supervisor. It must not wait for the garbage
// collector either, which makes goroutines that allocate help it. Therefore it reuses its buffers. aheadLimit bounds
// them; when they are full, the connection's own buffers fill.
//
// Read belongs to one goroutine. begin starts the goroutine that fills, and end awaits it.
type readAhead struct {
	conn net.Conn // fixed
	on   bool     // set by begin; before that, Read reads the connection; owned by the reader
	done chan struct{}

	mu     sync.Mutex
	cond   *sync.Cond // the reader waits for bytes or the filler for room, never both
	chunks []*chunk   // oldest first; the filler fills the last
	spares []*chunk
	bytes  int   // unread, in chunks
	err    error // why no more bytes will come; nil: they may
	ended  bool  // end was called: unread bytes are not wanted
}

// chunk is a buffer. The reader takes bytes from r up to w, the filler writes from w on.
type chunk struct {
	buf  [aheadChunk]byte
	r, w int
}

func newReadAhead(conn net.Conn) *readAhead {
	a := &readAhead{conn: conn, done: make(chan struct{})}
	a.cond = sync.NewCond(&a.mu)
	return a
}

// begin starts to read ahead. Its caller must call end.
func (a *readAhead) begin() {
	a.on = true
	go func() {
		defer close(a.done)
		a.fill()
	}()
}

// end waits for the filler, if begin was called. The connection must be closed.
func (a *readAhead) end() {
	if !a.on {
		return
	}
	a.stop(net.ErrClosed)
	a.mu.Lock()
	a.ended = true
	a.mu.Unlock()
	<-a.done
}

// stop makes Read return err after the bytes read so far. The first err stays.
func (a *readAhead) stop(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		a.err = err
	}
	a.cond.Signal()
}

func (a *readAhead) fill() {
	for {
		c := a.room()
		if c == nil {
			return
		}
		n, err := a.conn.Read(c.buf[c.w:])
		a.mu.Lock()
		c.w += n
		a.bytes += n
		a.cond.Signal()
		a.mu.Unlock()
		if err != nil {
			a.stop(err)
			return
		}
	}
}

// room waits until fewer than aheadLimit bytes are unread. It returns the chunk to fill, or nil at the end.
func (a *readAhead) room() *chunk {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.bytes >= aheadLimit && a.err == nil {
		a.cond.Wait()
	}
	if a.err != nil {
		return nil
	}
	if n := len(a.chunks); n > 0 && len(a.chunks[n-1].buf)-a.chunks[n-1].w >= aheadLeast {
		return a.chunks[n-1]
	}
	var c *chunk
	if n := len(a.spares); n > 0 {
		c, a.spares = a.spares[n-1], a.spares[:n-1]
	} else {
		c = new(chunk)
	}
	a.chunks = append(a.chunks, c)
	return c
}

// Read implements io.Reader. It returns the bytes read ahead before the connection's error, but none of them after end.
func (a *readAhead) Read(p []byte) (int, error) {
	if !a.on {
		return a.conn.Read(p)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.bytes == 0 && a.err == nil {
		a.cond.Wait()
	}
	if a.bytes == 0 || a.ended {
		return 0, a.err
	}
	c := a.chunks[0]
	if c.r == c.w { // the filler fills another by now
		a.recycleLocked()
		c = a.chunks[0]
	}
	n := copy(p, c.buf[c.r:c.w])
	c.r += n
	a.bytes -= n
	a.cond.Signal()
	return n, nil
}

// recycleLocked takes back the first chunk, which is read to its end and no longer filled.
func (a *readAhead) recycleLocked() {
	c := a.chunks[0]
	a.chunks = append(a.chunks[:0], a.chunks[1:]...)
	if len(a.spares) < aheadSpares {
		c.r, c.w = 0, 0
		a.spares = append(a.spares, c)
	}
}
