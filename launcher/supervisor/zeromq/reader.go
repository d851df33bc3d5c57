package zeromq

import (
	"encoding/binary"
	"math"
	"slices"
	"time"
)

const (
	chunkLeast = 4 << 10   // bytes of a chunk while little arrives
	chunkMost  = 128 << 10 // bytes of a chunk while as much arrives as can be read

	ownFrame = 16 << 10 // frames from this size on have memory of their own, unless they have arrived already
	trusted  = 4 << 20  // bytes of a frame that must have arrived before memory for the rest is allocated
	restPart = 8        // the last 1/restPart of a chunk is not worth a read
	slabSize = 256      // frames whose slices are allocated together
)

// message is what a reader has read: the frames of one message. With large, the frames before the excess.
type message struct {
	frames [][]byte
	large  *TooLargeError
	memory int // bytes that it takes while it waits; set by readAhead
}

// reader reads messages from a connection. It reads into chunks, and small frames are parts of a chunk: they are not
// copied, and share its memory. A chunk is not written twice, and the garbage collector frees it when its last frame is
// not used any more. A large frame is read into memory of its own.
//
// It belongs to one goroutine.
type reader struct {
	// Fixed.
	c      *zmtpConn
	limits Limits
	fresh  func(size int) []byte // allocates a chunk
	room   func(size int)        // waits until a large frame may be read

	chunk  []byte // chunk[:w] is filled; frames that were returned end before r
	r, w   int
	size   int  // bytes of the next chunk
	filled bool // the last read has filled half of the chunk, up to its end

	slab    [][]byte // what is left of an allocated array of frames
	frames  [][]byte // of the present message; reused
	bytes   int64    // of the present message so far
	credit  float64  // commands that the peer may send
	counted time.Time
}

// newReader returns a reader. early is what was read from the connection already; the reader keeps it.
func newReader(c *zmtpConn, early []byte) *reader {
	return &reader{c: c, limits: c.limits, chunk: early, w: len(early), size: chunkLeast, credit: commandBurst,
		fresh: func(size int) []byte { return make([]byte, size) }, room: func(int) {}}
}

// next waits for the next message. It answers the commands before and within it. An error is permanent.
func (r *reader) next() (message, error) {
	r.frames, r.bytes = r.frames[:0], 0
	for {
		flags, size, err := r.dataHeader()
		if err != nil {
			return message{}, err
		}
		r.bytes += size
		if size > r.limits.Frame || r.bytes > r.limits.Message || len(r.frames) >= r.limits.Frames {
			return r.skip(flags, size)
		}
		frame, err := r.frame(int(size))
		if err != nil {
			return message{}, err
		}
		r.frames = append(r.frames, frame)
		if flags&flagMore == 0 {
			return message{frames: r.take()}, nil
		}
	}
}

// dataHeader reads the header of the next frame of a message, and handles the commands before it. The protocol has
// commands between messages only. libzmq sends its heartbeats also between the frames of a message (seen with 4.3.5).
func (r *reader) dataHeader() (flags byte, size int64, err error) {
	for {
		flags, size, err = r.header()
		if err != nil || flags&flagCommand == 0 {
			return flags, size, err
		}
		if err := r.command(int(size)); err != nil {
			return 0, 0, err
		}
	}
}

// header reads the header of a frame and makes the checks that apply to every frame.
func (r *reader) header() (flags byte, size int64, err error) {
	if err := r.need(2); err != nil {
		return 0, 0, err
	}
	n := 2
	flags = r.chunk[r.r]
	length := uint64(r.chunk[r.r+1])
	if flags&flagLong != 0 {
		n = headerMost
		if err := r.need(n); err != nil {
			return 0, 0, err
		}
		length = binary.BigEndian.Uint64(r.chunk[r.r+1:])
	}
	if err := checkHeader(flags, length); err != nil {
		return 0, 0, err
	}
	r.r += n
	return flags, int64(length), nil
}

// frame reads a frame's body.
func (r *reader) frame(size int) ([]byte, error) {
	if size > r.w-r.r && size >= ownFrame {
		return r.own(size)
	}
	if err := r.need(size); err != nil {
		return nil, err
	}
	frame := r.chunk[r.r : r.r+size : r.r+size]
	r.r += size
	return frame, nil
}

// own reads a large frame into memory of its own. A length is not trusted before a part of the frame has arrived.
func (r *reader) own(size int) ([]byte, error) {
	if r.limits.Large != nil {
		r.limits.Large(size)
	}
	r.room(size)
	frame := make([]byte, min(size, trusted))
	n := copy(frame, r.chunk[r.r:r.w])
	r.r += n
	for {
		for n < len(frame) {
			m, err := r.c.Conn.Read(frame[n:])
			n += m
			if err != nil && n < len(frame) {
				return nil, err
			}
		}
		if n == size {
			return frame, nil
		}
		whole := make([]byte, size)
		copy(whole, frame)
		frame = whole
	}
}

// need waits until n bytes are unread in the chunk.
func (r *reader) need(n int) error {
	for r.w-r.r < n {
		if err := r.read(n); err != nil {
			return err
		}
	}
	return nil
}

// read reads once, into a chunk in which n unread bytes have room.
func (r *reader) read(n int) error {
	if len(r.chunk)-r.r < n || len(r.chunk)-r.w <= len(r.chunk)/restPart {
		r.turn(n)
	}
	m, err := r.c.Conn.Read(r.chunk[r.w:])
	r.w += m
	r.filled = r.w == len(r.chunk) && m >= len(r.chunk)/2
	if m > 0 {
		return nil // an error comes again
	}
	return err
}

// turn begins a new chunk, with room for n bytes, and moves the unread bytes to it. Chunks become larger while reads
// fill them, and smaller again.
func (r *reader) turn(n int) {
	if r.filled {
		r.size = min(4*r.size, chunkMost)
	} else {
		r.size = max(r.size/2, chunkLeast)
	}
	chunk := r.fresh(max(r.size, n))
	r.w = copy(chunk, r.chunk[r.r:r.w])
	r.chunk, r.r = chunk, 0
}

// take returns the frames of the present message, to which nothing can be appended. The slices of most messages are
// allocated with those of others. A large message has its own, since the slab keeps the memory of its frames.
func (r *reader) take() [][]byte {
	n := len(r.frames)
	var frames [][]byte
	if r.bytes >= ownFrame || n > slabSize/4 {
		frames = slices.Clone(r.frames)
	} else {
		if len(r.slab) < n {
			r.slab = make([][]byte, slabSize)
		}
		frames, r.slab = r.slab[:n:n], r.slab[n:]
		copy(frames, r.frames)
	}
	clear(r.frames)
	if cap(r.frames) > slabSize {
		r.frames = nil
	}
	return frames
}

// skip discards the rest of a message that exceeds the limits, from a frame on whose header has been read.
func (r *reader) skip(flags byte, size int64) (message, error) {
	first := r.take()
	frames := len(first) + 1
	for {
		if err := r.discard(size); err != nil {
			return message{}, err
		}
		if flags&flagMore == 0 {
			return message{frames: first, large: &TooLargeError{Bytes: r.bytes, Frames: frames}}, nil
		}
		var err error
		if flags, size, err = r.dataHeader(); err != nil {
			return message{}, err
		}
		frames++
		r.bytes = min(r.bytes+size, math.MaxInt64-maxFrame)
	}
}

// discard reads and forgets n bytes.
func (r *reader) discard(n int64) error {
	for {
		m := min(n, int64(r.w-r.r))
		n -= m
		if n == 0 {
			r.r += int(m)
			return nil
		}
		r.w = r.r // what is behind the last frame can be written again
		if err := r.read(1); err != nil {
			return err
		}
	}
}

// command reads a command after the handshake. It answers PING and ignores all others.
func (r *reader) command(size int) error {
	now := time.Now()
	if !r.counted.IsZero() {
		r.credit = min(commandBurst, r.credit+now.Sub(r.counted).Seconds()*commandRate)
	}
	r.counted = now
	if r.credit < 1 {
		return violation("more than %d commands a second", commandRate)
	}
	r.credit--
	if err := r.need(size); err != nil {
		return err
	}
	body := r.chunk[r.r : r.r+size]
	r.r += size
	name, rest, err := commandName(body)
	if err != nil {
		return err
	}
	if string(name) == "PING" {
		const ttl = 2 // bytes; the peer's proposal for how long we wait for it, which we ignore
		if len(rest) < ttl || len(rest) > ttl+maxPingContext {
			return violation("PING of %d bytes", len(body))
		}
		r.c.answer(rest[ttl:])
	}
	return nil
}
