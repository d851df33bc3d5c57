package supervisor

import (
	"net"
	"sync"
)

const (
	aheadLimit  = 64 << 20 // bytes read from a subscription and not yet parsed
	aheadChunk  = 64 << 10 // bytes of one buffer
	aheadSpares = 4        // empty buffers that are kept
	aheadLeast  = 4 << 10  // bytes that a buffer must have left to be read into
)

// readAhead takes from a subscription's connection whatever there is, as soon as it is there, and keeps it until it is
// asked for. A kernel drops what it cannot get rid of beyond ZeroMQ's high-water mark, and a unix socket holds no more
// than some 200 KiB; so its reader must not wait for anything else: not for the parser, not for a lock of the
// supervisor, not for the garbage collector, which lets those work who allocate. It hence fills buffers that it uses
// again. Bounded by aheadLimit, behind which the connection's own buffers fill.
//
// Read belongs to one goroutine; the one that fills is started by begin and awaited by end.
type readAhead struct {
	conn net.Conn // fixed
	on   bool     // set by begin, before which Read goes to the connection; owned by the reader
	done chan struct{}

	mu     sync.Mutex
	cond   *sync.Cond // the reader waits for bytes or the filler for room, never both
	chunks []*chunk   // oldest first; the filler fills the last
	spares []*chunk
	bytes  int   // unread, in chunks
	err    error // why there will be no more
	ended  bool  // what there is is not wanted
}

// chunk is a buffer: the reader takes from r up to w, the filler writes behind w.
type chunk struct {
	buf  [aheadChunk]byte
	r, w int
}

func newReadAhead(conn net.Conn) *readAhead {
	a := &readAhead{conn: conn, done: make(chan struct{})}
	a.cond = sync.NewCond(&a.mu)
	return a
}

// begin starts to read ahead. Whoever calls it owes an end.
func (a *readAhead) begin() {
	a.on = true
	go func() {
		defer close(a.done)
		a.fill()
	}()
}

// end waits for the filler, if there is one, after the connection was closed.
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

// stop makes err the end of what can be read, behind what has been, unless there is one already.
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

// room waits until the bound allows more and returns where to put it, nil at the end.
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

// Read is an io.Reader's. What was read before the connection broke comes before its error, but not after end.
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
	if c.r == c.w { // the filler has gone on to another
		a.recycle()
		c = a.chunks[0]
	}
	n := copy(p, c.buf[c.r:c.w])
	c.r += n
	a.bytes -= n
	a.cond.Signal()
	return n, nil
}

// recycle takes back the first chunk, which is read to its end and no longer filled. a.mu is held.
func (a *readAhead) recycle() {
	c := a.chunks[0]
	a.chunks = append(a.chunks[:0], a.chunks[1:]...)
	if len(a.spares) < aheadSpares {
		c.r, c.w = 0, 0
		a.spares = append(a.spares, c)
	}
}
