package supervisor

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
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

	// Commands after the handshake are heartbeats at most. A peer may send commandBurst of them at once and commandRate
	// a second; one that sends more is broken or hostile, and each costs us an answer.
	commandBurst = 256
	commandRate  = 64

	maxPingContext = 16          // bytes, by the protocol
	pongPatience   = time.Second // how long a reader may be held up by a peer that does not take its pong

	// Messages up to this size are copied together for one write, which is cheaper than a vector of a dozen pieces. Bigger
	// ones are not copied.
	coalesceLimit = 16 << 10
)

// zmtpConn is the connection below the ZeroMQ library, which trusts its peer: it allocates whatever length a frame
// claims, panics on a READY that is cut off, hands commands to its caller, writes each frame in two pieces and waits for
// ever. So all that the peer sends is checked here before the library sees it, commands are answered here and not handed
// on, and what the library writes for one message leaves in one system call.
//
// One goroutine reads and any number writes, all through zmqSocket. A sub has another goroutine, which reads ahead.
type zmtpConn struct {
	net.Conn // the stream; fixed

	// Fixed.
	kind   socketKind
	limits socketLimits

	// Owned by the reader.
	ahead    *readAhead
	r        *bufio.Reader // on ahead
	stage    zmtpStage
	checked  []byte // what the library reads next: a frame's header, or the whole READY
	left     int64  // bytes of the greeting or of the present frame's body that may be read
	frames   int    // frames of the present message so far
	size     int64  // bytes of the present message so far
	fault    error  // why the stream can not be read any further
	credit   float64
	credited time.Time
	head     [9]byte // backs checked

	// Set by the reader, taken by whoever holds writing.
	pong atomic.Pointer[[]byte]

	// Guarded by writing.
	writing  sync.Mutex
	batching bool     // Write collects
	pending  [][]byte // what the library has written of the present message
	bytes    int      // in pending
	carry    []byte   // rest of a pong that the peer did not take in time
	small    []byte   // reused; backs what is copied together
}

// zmtpStage is where in the stream the reader is.
type zmtpStage int

const (
	inGreeting zmtpStage = iota
	inHandshake
	inTraffic
)

func newZMTPConn(raw net.Conn, kind socketKind, limits socketLimits) *zmtpConn {
	ahead := newReadAhead(raw)
	return &zmtpConn{
		Conn: raw, kind: kind, limits: limits, ahead: ahead,
		r: bufio.NewReaderSize(ahead, 16<<10), left: greetingSize, credit: commandBurst,
	}
}

// handshaken tells that the library has completed the handshake: what follows are messages.
func (c *zmtpConn) handshaken() {
	c.stage = inTraffic
	if c.kind == sub {
		c.ahead.begin()
	}
}

// reason returns our own account of a failed read where there is one, else the library's error.
func (c *zmtpConn) reason(err error) error {
	if c.fault != nil {
		return c.fault
	}
	return err
}

// refusal returns why the handshake failed: errZMTP with what the library says, where neither we nor the stream had
// anything against what it refused.
func (c *zmtpConn) refusal(err error) error {
	var stream net.Error
	if c.fault != nil || errors.As(err, &stream) {
		return c.reason(err)
	}
	return violation("%v", err)
}

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errZMTP}, args...)...)
}

// Read hands the stream on to the library, having checked it as far as it goes. An error is permanent.
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

// frameHeader reads the header of the next frame and checks what is true of every frame. The returned bytes are valid
// until the next call.
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
	limit := uint64(c.limits.Frame)
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

// nextFrame moves on to the next frame of a message. Commands on the way are dealt with.
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
		if c.frames > c.limits.Frames {
			return violation("message of more than %d frames", c.limits.Frames)
		}
		if c.size > c.limits.Message {
			return violation("message of more than %d bytes", c.limits.Message)
		}
		if flags&flagMore == 0 {
			c.frames, c.size = 0, 0
		}
		c.checked, c.left = header, size
		return nil
	}
}

// command reads a command behind the handshake. A PING is answered; nothing else means anything to us.
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
		const ttl = 2 // bytes; how long the peer thinks we should wait for it, which is ours to decide
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

// nextReady reads the peer's half of the handshake. The library panics on several kinds of broken READY, so it gets one
// only if it is sound in all its parts.
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

func checkReady(body []byte, kind socketKind) error {
	name, rest, err := commandName(body)
	if err != nil {
		return err
	}
	switch string(name) {
	case "READY":
	case "ERROR":
		if len(rest) > 0 {
			rest = rest[1:] // length of the text, which is all that follows
		}
		return violation("peer refuses the connection: %.200q", rest)
	default:
		return violation("command %.32q in place of READY", name)
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
	case kind == dealer && (peer == "ROUTER" || peer == "REP"):
	case kind == sub && (peer == "PUB" || peer == "XPUB"):
	default:
		return violation("peer is a socket of type %.32q", peer)
	}
	return nil
}

// readProperty splits the first property off a READY's metadata: length and name, four bytes of length and value. Names
// are letters, digits and a few signs, so that no two spellings are one to the library and different to us.
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

// Write takes what the library has to say: at once during the handshake, together with the rest of its message after.
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
		err = c.flush()
	}
	clear(c.pending) // else a big message would stay alive until the next
	c.pending, c.bytes = c.pending[:0], 0
	c.writing.Unlock()
	c.sendPong()
	return err
}

// flush sends carry and pending. It must hold writing.
func (c *zmtpConn) flush() error {
	if c.bytes <= coalesceLimit {
		c.small = append(c.small[:0], c.carry...)
		for _, p := range c.pending {
			c.small = append(c.small, p...)
		}
		c.carry = nil
		_, err := c.push(net.Buffers{c.small}, c.limits.Write)
		return err
	}
	v := make(net.Buffers, 0, 1+len(c.pending))
	if len(c.carry) > 0 {
		v = append(v, c.carry)
		c.carry = nil
	}
	_, err := c.push(append(v, c.pending...), c.limits.Write)
	return err
}

// push writes until all is out or the peer has taken nothing for as long as patience lasts. It must hold writing.
func (c *zmtpConn) push(v net.Buffers, patience time.Duration) (total int64, err error) {
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

// answer sends a PONG as soon as nobody else writes. A PING that is answered late is replaced by the next.
func (c *zmtpConn) answer(context []byte) {
	body := append([]byte("\x04PONG"), context...)
	frame := append([]byte{flagCommand, byte(len(body))}, body...)
	c.pong.Store(&frame)
	c.sendPong()
}

// sendPong writes the pong that is due, if nobody holds writing: who does will call it again after releasing it, so none
// is forgotten. A peer that pings but does not read holds up the caller for pongPatience at most, and gets no further
// pong before the rest of the last.
func (c *zmtpConn) sendPong() {
	for c.pong.Load() != nil && c.writing.TryLock() {
		if frame := c.pong.Swap(nil); frame != nil && len(c.carry) == 0 {
			// An error that is not only impatience shows in the next Send or Recv.
			n, err := c.push(net.Buffers{*frame}, pongPatience)
			if err != nil && n > 0 {
				c.carry = (*frame)[n:]
			}
		}
		c.writing.Unlock()
	}
}
