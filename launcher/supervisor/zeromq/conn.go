package zeromq

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The ZMTP 3 stream, https://rfc.zeromq.org/spec/23/: a greeting of 64 bytes, one READY command each way, then frames.
// A frame is a byte of flags, the length in one byte or, with flagLong, in eight (big endian), and that many bytes. A
// command is a single frame whose body begins with the length of its name and its name.
const (
	greetingSize = 64

	flagMore     = 0x01
	flagLong     = 0x02
	flagCommand  = 0x04
	flagReserved = ^byte(flagMore | flagLong | flagCommand)

	maxCommand = 64 << 10 // bytes of one command, READY included

	// maxFrame bounds the length of any frame. No kernel holds more in memory, so a higher number is no length.
	maxFrame     = 1 << 40
	discardPiece = 1 << 20 // bytes

	// Commands after the handshake are heartbeats, and each costs us an answer. A peer may send commandBurst of them at
	// once and commandRate a second; a peer that sends more is broken or hostile.
	commandBurst = 256
	commandRate  = 64

	maxPingContext = 16          // bytes, by the protocol
	pongPatience   = time.Second // for the peer to take a pong; the reader waits meanwhile

	// Messages up to this many bytes are copied together for one write, which is cheaper than a vector of a dozen
	// pieces.
	coalesceLimit = 16 << 10
)

// zmtpConn is the connection below the ZeroMQ library. The library trusts its peer. It allocates any length that a
// frame claims, and panics on a truncated READY. It hands commands to its caller, writes each frame in two pieces, and
// waits without limit. So zmtpConn checks everything that the peer sends before the library sees it. It answers
// commands itself, and sends the library's writes for one message in one system call.
//
// One goroutine reads and any number write, all through socket. A Sub has another goroutine, which reads ahead.
type zmtpConn struct {
	net.Conn // the stream; fixed

	// Fixed.
	kind   Kind
	limits Limits

	// Owned by the reader.
	ahead    *readAhead
	r        *bufio.Reader // on ahead
	stage    zmtpStage
	checked  []byte         // what the library reads next: a frame's header, or the whole READY
	left     int64          // bytes of the greeting or of the present frame's body that may be read
	frames   int            // frames of the present message so far
	size     int64          // bytes of the present message so far
	skipped  *TooLargeError // what was discarded of the message that is read now; nil: nothing
	fault    error          // why the stream cannot be read any further; nil: it can
	credit   float64
	credited time.Time
	head     [9]byte // backs checked

	// Set by the reader, taken by the holder of writing.
	pong atomic.Pointer[[]byte]

	// Guarded by writing.
	writing  sync.Mutex
	batching bool     // Write collects
	pending  [][]byte // what the library has written of the present message
	bytes    int      // in pending
	carry    []byte   // rest of a pong that the peer did not take in time
	small    []byte   // reused for messages that are copied together
}

// zmtpStage is the part of the stream that the reader has reached.
type zmtpStage int

const (
	inGreeting zmtpStage = iota
	inHandshake
	inTraffic
)

func newZMTPConn(raw net.Conn, kind Kind, limits Limits) *zmtpConn {
	ahead := newReadAhead(raw)
	return &zmtpConn{
		Conn: raw, kind: kind, limits: limits, ahead: ahead,
		r: bufio.NewReaderSize(ahead, 16<<10), left: greetingSize, credit: commandBurst,
	}
}

// handshaken notes that the library has completed the handshake, so that messages follow.
func (c *zmtpConn) handshaken() {
	c.stage = inTraffic
	if c.kind == Sub {
		c.ahead.begin()
	}
}

// reason returns our own error of a failed read if there is one, else the library's.
func (c *zmtpConn) reason(err error) error {
	if c.fault != nil {
		return c.fault
	}
	return err
}

// refusal returns why the handshake failed. It is our own error or the stream's if there is one, else ErrProtocol with
// the library's error.
func (c *zmtpConn) refusal(err error) error {
	var stream net.Error
	if c.fault != nil || errors.As(err, &stream) {
		return c.reason(err)
	}
	return violation("%v", err)
}

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrProtocol}, args...)...)
}

// Read passes checked parts of the stream to the library. An error is permanent.
func (c *zmtpConn) Read(p []byte) (int, error) {
	for len(c.checked) == 0 && c.left == 0 && c.fault == nil {
		if c.stage == inTraffic {
			c.fault = c.nextFrame()
		} else {
			c.fault = c.nextReady()
		}
	}
	switch {
	case len(c.checked) > 0:
		n := copy(p, c.checked)
		c.checked = c.checked[n:]
		return n, nil
	case c.fault != nil:
		return 0, c.fault
	}
	if int64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err := c.r.Read(p)
	c.left -= int64(n)
	if err != nil {
		c.fault = err
	}
	return n, err
}

// frameHeader reads the header of the next frame and makes the checks that apply to every frame. The returned bytes are
// valid until the next call.
func (c *zmtpConn) frameHeader() (flags byte, size int64, header []byte, err error) {
	h, err := c.r.Peek(2)
	if err != nil {
		return 0, 0, nil, err
	}
	flags = h[0]
	if flags&flagReserved != 0 {
		return 0, 0, nil, violation("frame with flags %#02x", flags)
	}
	if flags&(flagCommand|flagMore) == flagCommand|flagMore {
		return 0, 0, nil, violation("command of several frames")
	}
	length := uint64(h[1])
	if flags&flagLong != 0 {
		if h, err = c.r.Peek(9); err != nil {
			return 0, 0, nil, err
		}
		length = binary.BigEndian.Uint64(h[1:])
	}
	limit := uint64(maxFrame)
	if flags&flagCommand != 0 {
		limit = maxCommand
	}
	if length > limit {
		return 0, 0, nil, violation("frame of %d bytes, at most %d allowed", length, limit)
	}
	n := copy(c.head[:], h)
	_, err = c.r.Discard(n)
	return flags, int64(length), c.head[:n], err
}

// nextFrame advances to the next frame of a message. It handles the commands before it.
func (c *zmtpConn) nextFrame() error {
	for {
		flags, size, header, err := c.frameHeader()
		if err != nil {
			return err
		}
		if flags&flagCommand != 0 {
			if c.frames > 0 {
				return violation("command within a message")
			}
			if err := c.command(int(size)); err != nil {
				return err
			}
			continue
		}
		c.frames++
		c.size += size
		if size > c.limits.Frame || c.size > c.limits.Message || c.frames > c.limits.Frames {
			return c.skip(flags, size)
		}
		if flags&flagMore == 0 {
			c.frames, c.size = 0, 0
		}
		c.checked, c.left = header, size
		return nil
	}
}

// skip discards the rest of a message that exceeds the limits, from a frame on whose header has been read. The library
// gets an empty last frame instead, so that it returns the frames before.
func (c *zmtpConn) skip(flags byte, size int64) error {
	for {
		if err := c.discard(size); err != nil {
			return err
		}
		if flags&flagMore == 0 {
			break
		}
		var err error
		if flags, size, _, err = c.frameHeader(); err != nil {
			return err
		}
		if flags&flagCommand != 0 {
			return violation("command within a message")
		}
		c.frames++
		c.size = min(c.size+size, math.MaxInt64-maxFrame)
	}
	c.skipped = &TooLargeError{Bytes: c.size, Frames: c.frames}
	c.frames, c.size = 0, 0
	c.head = [9]byte{}
	c.checked = c.head[:2] // no flags, no bytes
	return nil
}

// discard reads and forgets n bytes.
func (c *zmtpConn) discard(n int64) error {
	for n > 0 {
		m, err := c.r.Discard(int(min(n, discardPiece)))
		n -= int64(m)
		if err != nil {
			return err
		}
	}
	return nil
}

// command reads a command after the handshake. It answers PING and ignores all others.
func (c *zmtpConn) command(size int) error {
	now := time.Now()
	if !c.credited.IsZero() {
		c.credit = min(commandBurst, c.credit+now.Sub(c.credited).Seconds()*commandRate)
	}
	c.credited = now
	if c.credit < 1 {
		return violation("more than %d commands a second", commandRate)
	}
	c.credit--
	body := make([]byte, size)
	for n := 0; n < size; {
		m, err := c.r.Read(body[n:])
		if err != nil {
			return err
		}
		n += m
	}
	name, rest, err := commandName(body)
	if err != nil {
		return err
	}
	if string(name) == "PING" {
		const ttl = 2 // bytes; the peer's proposal for how long we wait for it, which we ignore
		if len(rest) < ttl || len(rest) > ttl+maxPingContext {
			return violation("PING of %d bytes", len(body))
		}
		c.answer(rest[ttl:])
	}
	return nil
}

func commandName(body []byte) (name, rest []byte, err error) {
	if len(body) == 0 || int(body[0]) > len(body)-1 {
		return nil, nil, violation("command without a name")
	}
	end := 1 + int(body[0])
	return body[1:end], body[end:], nil
}

// nextReady reads the peer's half of the handshake. The library panics on several kinds of broken READY, so it gets
// only a READY that is valid in all its parts.
func (c *zmtpConn) nextReady() error {
	if c.stage == inGreeting {
		c.stage = inHandshake
	} else if c.checked != nil {
		return violation("a second frame in the handshake")
	}
	flags, size, header, err := c.frameHeader()
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 {
		return violation("message before READY")
	}
	frame := make([]byte, len(header)+int(size))
	for n := copy(frame, header); n < len(frame); {
		m, err := c.r.Read(frame[n:])
		if err != nil {
			return err
		}
		n += m
	}
	if err := checkReady(frame[len(header):], c.kind); err != nil {
		return err
	}
	c.checked = frame
	return nil
}

func checkReady(body []byte, kind Kind) error {
	name, rest, err := commandName(body)
	if err != nil {
		return err
	}
	switch string(name) {
	case "READY":
	case "ERROR":
		if len(rest) > 0 {
			rest = rest[1:] // the length of the text, which is the rest
		}
		return violation("peer rejects the connection: %.200q", rest)
	default:
		return violation("command %.32q instead of READY", name)
	}
	peer := ""
	for len(rest) > 0 {
		key, value, tail, ok := readProperty(rest)
		if !ok {
			return violation("READY with broken properties")
		}
		if strings.EqualFold(string(key), "Socket-Type") {
			if peer != "" {
				return violation("READY with two socket types")
			}
			peer = string(value)
		}
		rest = tail
	}
	switch {
	case kind == Dealer && (peer == "ROUTER" || peer == "REP"):
	case kind == Sub && (peer == "PUB" || peer == "XPUB"):
	default:
		return violation("peer is a socket of type %.32q", peer)
	}
	return nil
}

// readProperty splits the first property off a READY's metadata: length and name, four bytes of length and value. Names
// may have only letters, digits and a few signs. So no two spellings are one to the library and two to us.
func readProperty(p []byte) (key, value, rest []byte, ok bool) {
	n := int(p[0])
	if n == 0 || len(p) < 1+n+4 {
		return nil, nil, nil, false
	}
	key, p = p[1:1+n], p[1+n:]
	for _, b := range key {
		if !bytes.ContainsRune([]byte("-_.+"), rune(b)) && (b|0x20 < 'a' || b|0x20 > 'z') && (b < '0' || b > '9') {
			return nil, nil, nil, false
		}
	}
	size := binary.BigEndian.Uint32(p)
	if p = p[4:]; uint64(size) > uint64(len(p)) {
		return nil, nil, nil, false
	}
	return key, p[:size], p[size:], true
}

// Write sends the library's bytes. During the handshake it sends them at once, later together with the rest of the
// message.
func (c *zmtpConn) Write(p []byte) (int, error) {
	if !c.batching {
		return c.Conn.Write(p)
	}
	c.pending = append(c.pending, p)
	c.bytes += len(p)
	return len(p), nil
}

// batch runs a function that writes one message through the library, then sends it.
func (c *zmtpConn) batch(write func() error) error {
	c.writing.Lock()
	c.batching = true
	err := write()
	c.batching = false
	if err == nil {
		err = c.flushLocked()
	}
	clear(c.pending) // otherwise a big message would stay in memory until the next
	c.pending, c.bytes = c.pending[:0], 0
	c.writing.Unlock()
	c.sendPong()
	return err
}

// flushLocked sends carry and pending.
func (c *zmtpConn) flushLocked() error {
	if c.bytes <= coalesceLimit {
		c.small = append(c.small[:0], c.carry...)
		for _, p := range c.pending {
			c.small = append(c.small, p...)
		}
		c.carry = nil
		_, err := c.pushLocked(net.Buffers{c.small}, c.limits.Write)
		return err
	}
	v := make(net.Buffers, 0, 1+len(c.pending))
	if len(c.carry) > 0 {
		v = append(v, c.carry)
		c.carry = nil
	}
	_, err := c.pushLocked(append(v, c.pending...), c.limits.Write)
	return err
}

// pushLocked writes until everything is sent or the peer has taken nothing for as long as patience.
func (c *zmtpConn) pushLocked(v net.Buffers, patience time.Duration) (total int64, err error) {
	for {
		if err := c.Conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
			return total, err
		}
		var n int64
		if len(v) == 1 {
			var m int
			m, err = c.Conn.Write(v[0])
			n, v[0] = int64(m), v[0][m:]
		} else {
			n, err = v.WriteTo(c.Conn)
		}
		total += n
		if n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return total, err
		}
	}
}

// answer sends a PONG as soon as no other goroutine writes. A later PONG replaces one that is not sent yet.
func (c *zmtpConn) answer(context []byte) {
	body := append([]byte("\x04PONG"), context...)
	frame := append([]byte{flagCommand, byte(len(body))}, body...)
	c.pong.Store(&frame)
	c.sendPong()
}

// sendPong writes the pong that is due, unless another goroutine holds writing. That goroutine calls sendPong after it
// releases writing, so no pong is forgotten. A peer that pings but does not read delays the caller for at most
// pongPatience. It gets no further pong before the rest of the last.
func (c *zmtpConn) sendPong() {
	for c.pong.Load() != nil && c.writing.TryLock() {
		if frame := c.pong.Swap(nil); frame != nil && len(c.carry) == 0 {
			// An error other than a deadline shows in the next Send or Recv.
			n, err := c.pushLocked(net.Buffers{*frame}, pongPatience)
			if err != nil && n > 0 {
				c.carry = (*frame)[n:]
			}
		}
		c.writing.Unlock()
	}
}
