package zeromq

import (
	"net"
	"sync"
)

const (
	aheadLimit  = 24 << 20  // bytes of messages that were read from a subscription and not yet received
	aheadLarge  = 56 << 20  // bytes above which no frame with memory of its own is begun before others are handled
	aheadWide   = 8 << 20   // bytes of wide messages above which no wide frame is begun before these are handled
	wideLeast   = 256 << 10 // bytes of the smallest wide frame, or message
	aheadSpares = 2         // chunks that are kept for the reader
	queueKept   = 1 << 10   // messages for which an empty queue keeps memory

	// Memory of a message besides its bytes, and of each frame.
	messageOverhead = 64
	frameOverhead   = 24
)

// readAhead reads a subscription's messages as soon as they arrive, and keeps them until receive takes them. A kernel
// drops what it cannot send beyond ZeroMQ's high-water mark, and a unix socket holds only some 200 KiB. So the reader
// of the connection must wait neither for the one who receives nor for a lock of the supervisor. It must not wait for
// the garbage collector either, which makes goroutines that allocate help it. Therefore the one who receives allocates
// most chunks. aheadLimit bounds what is kept, except for one message. When it is reached, the connection's own buffers
// fill. A kernel's bound counts messages, so large ones wait there as well as here: one that would exceed aheadLarge is
// read when those before it have been handled. For the same reason only a few wide messages are read ahead. More of
// them would only take memory.
//
// receive belongs to one goroutine. begin starts the goroutine that reads, and end awaits it.
type readAhead struct {
	r    *reader // owned by the goroutine that reads
	done chan struct{}

	mu     sync.Mutex
	cond   *sync.Cond // the one waits for messages or the other for room, never both
	queue  []message  // oldest first
	first  int        // queue[:first] was received
	bytes  int        // of the messages that wait
	taken  int        // bytes of the message that was received last, until the next is asked for
	wide   int        // bytes of the wide ones among these
	idle   bool       // the one that reads waits for room
	spares [][]byte   // chunks of chunkMost bytes
	wanted int        // how many spares to allocate
	err    error      // why no more messages will come; nil: they may
	ended  bool       // end was called: messages that wait are not wanted
}

func newReadAhead(r *reader) *readAhead {
	a := &readAhead{r: r, done: make(chan struct{})}
	a.cond = sync.NewCond(&a.mu)
	r.fresh, r.room = a.chunk, a.room
	return a
}

// begin starts to read ahead. Its caller must call end.
func (a *readAhead) begin() {
	go func() {
		defer close(a.done)
		a.fill()
	}()
}

// end waits for the goroutine that reads. The connection must be closed.
func (a *readAhead) end() {
	a.stop(net.ErrClosed)
	a.mu.Lock()
	a.ended = true
	a.mu.Unlock()
	<-a.done
}

// stop makes receive return err after the messages read so far. The first err stays.
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
		m, err := a.r.next()
		if err != nil {
			a.stop(err)
			return
		}
		if !a.put(m) {
			return
		}
	}
}

// put adds a message and waits until fewer than aheadLimit bytes wait. It reports false at the end.
func (a *readAhead) put(m message) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.queue) == cap(a.queue) && a.first > len(a.queue)/2 { // less often, each message would move many others
		n := copy(a.queue, a.queue[a.first:])
		clear(a.queue[n:])
		a.queue, a.first = a.queue[:n], 0
	}
	m.memory = messageOverhead + frameOverhead*len(m.frames)
	for _, f := range m.frames {
		m.memory += len(f)
	}
	a.queue = append(a.queue, m)
	a.bytes += m.memory
	a.wide += wideOf(m.memory)
	a.cond.Signal()
	a.awaitLocked(func() bool { return a.bytes >= aheadLimit })
	return a.err == nil
}

// room waits until a large frame may be read.
func (a *readAhead) room(size int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.awaitLocked(func() bool {
		all, wide := a.bytes+a.taken, wideOf(size)
		return all > 0 && all+size > aheadLarge || wide > 0 && a.wide > 0 && a.wide+wide > aheadWide
	})
}

// wideOf returns a size if it is that of a wide message or frame, else 0.
func wideOf(size int) int {
	if size < wideLeast {
		return 0
	}
	return size
}

// awaitLocked waits while the one that reads has to, at most until the end.
func (a *readAhead) awaitLocked(full func() bool) {
	for a.idle = true; full() && a.err == nil; {
		a.cond.Wait()
	}
	a.idle = false
}

// chunk returns memory for the reader.
func (a *readAhead) chunk(size int) []byte {
	if size == chunkMost {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.wanted = aheadSpares
		if n := len(a.spares); n > 0 {
			chunk := a.spares[n-1]
			a.spares[n-1] = nil
			a.spares = a.spares[:n-1]
			return chunk
		}
	}
	return make([]byte, size)
}

// receive returns the next message. It returns those read ahead before the connection's error, but none of them after
// end.
func (a *readAhead) receive() (message, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wide -= wideOf(a.taken)
	a.taken = 0
	if a.idle {
		a.cond.Signal()
	}
	if a.wanted > len(a.spares) {
		a.wanted = 0
		a.mu.Unlock()
		spare := make([]byte, chunkMost)
		a.mu.Lock()
		a.spares = append(a.spares, spare)
	}
	for a.first == len(a.queue) && a.err == nil {
		a.cond.Wait()
	}
	if a.first == len(a.queue) || a.ended {
		return message{}, a.err
	}
	m := a.queue[a.first]
	a.queue[a.first] = message{}
	a.first++
	if a.first == len(a.queue) {
		a.queue, a.first = a.queue[:0], 0
		if cap(a.queue) > queueKept {
			a.queue = nil
		}
	}
	a.bytes -= m.memory
	a.taken = m.memory
	if a.idle {
		a.cond.Signal()
	}
	return m, nil
}
