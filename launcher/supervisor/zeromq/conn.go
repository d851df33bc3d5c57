package zeromq

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
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
	headerMost   = 9 // bytes of a frame's header at most

	flagMore     = 0x01
	flagLong     = 0x02
	flagCommand  = 0x04
	flagReserved = ^byte(flagMore | flagLong | flagCommand)

	maxCommand = 64 << 10 // bytes of one command, READY included

	handshakeBuffer = 4 << 10 // bytes

	// maxFrame bounds the length of any frame. No kernel holds more in memory, so a higher number is no length.
	maxFrame = 1 << 40

	// Commands after the handshake are heartbeats, and each costs us an answer. A peer may send commandBurst of them at
	// once and commandRate a second; a peer that sends more is broken or hostile.
	commandBurst = 256
	commandRate  = 64

	maxPingContext = 16          // bytes, by the protocol
	pongPatience   = time.Second // for the peer to take a pong; the reader waits meanwhile

	// Messages up to this many bytes are copied together for one write, which is cheaper than a vector of a dozen
	// pieces. Of larger ones, the frames up to this size are copied together.
	coalesceLimit = 16 << 10
)

// zmtpConn is a connection that speaks ZMTP. The ZeroMQ library does its handshake, and trusts its peer: it allocates
// any length that a frame claims, and panics on a truncated READY. So zmtpConn checks everything that the peer sends
// before the library sees it. Messages do not pass the library. It would copy each frame, hand commands to its caller,
// write each frame in two pieces, and wait without limit.
//
// One goroutine reads, the one of readAhead for a Sub, and any number write.
type zmtpConn struct {
	net.Conn // the stream; fixed

	// Fixed.
	kind   Kind
	limits Limits

	// Of the handshake.
	stage   zmtpStage
	r       *bufio.Reader
	checked []byte // what the library reads next: the whole READY
	left    int    // bytes of the greeting that may be read
	fault   error  // why the stream cannot be read any further; nil: it can

	// Set by the reader, taken by the holder of writing.
	pong atomic.Pointer[[]byte]

	// Guarded by writing.
	writing sync.Mutex
	carry   []byte      // rest of a pong that the peer did not take in time
	small   []byte      // reused for what is copied together
	vector  net.Buffers // reused
}

// zmtpStage is the part of the handshake that the reader has reached.
type zmtpStage int

const (
	inGreeting zmtpStage = iota
	inHandshake
)

func newZMTPConn(raw net.Conn, kind Kind, limits Limits) *zmtpConn {
	return &zmtpConn{Conn: raw, kind: kind, limits: limits, r: bufio.NewReaderSize(raw, handshakeBuffer),
		left: greetingSize}
}

// messages returns the reader of the messages behind the handshake, which the library has completed.
func (c *zmtpConn) messages() *reader {
	early, _ := c.r.Peek(c.r.Buffered()) // never fails
	c.r = nil
	return newReader(c, bytes.Clone(early))
}

// refusal returns why the handshake failed. It is our own error or the stream's if there is one, else ErrProtocol with
// the library's error.
func (c *zmtpConn) refusal(err error) error {
	var stream net.Error
	switch {
	case c.fault != nil:
		return c.fault
	case errors.As(err, &stream):
		return err
	}
	return violation("%v", err)
}

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrProtocol}, args...)...)
}

// Read passes checked parts of the handshake to the library. An error is permanent.
func (c *zmtpConn) Read(p []byte) (int, error) {
	if len(c.checked) == 0 && c.left == 0 && c.fault == nil {
		c.fault = c.nextReady()
	}
	switch {
	case len(c.checked) > 0:
		n := copy(p, c.checked)
		c.checked = c.checked[n:]
		return n, nil
	case c.fault != nil:
		return 0, c.fault
	}
	n, err := c.r.Read(p[:min(len(p), c.left)])
	c.left -= n
	c.fault = err
	return n, err
}

// checkHeader makes the checks that apply to the header of every frame.
func checkHeader(flags byte, length uint64) error {
	if flags&flagReserved != 0 {
		return violation("frame with flags %#02x", flags)
	}
	if flags&(flagCommand|flagMore) == flagCommand|flagMore {
		return violation("command of several frames")
	}
	limit := uint64(maxFrame)
	if flags&flagCommand != 0 {
		limit = maxCommand
	}
	if length > limit {
		return violation("frame of %d bytes, at most %d allowed", length, limit)
	}
	return nil
}

// commandName splits a command into its name and the rest.
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
	header, err := c.r.Peek(2)
	if err != nil {
		return err
	}
	flags, size := header[0], uint64(header[1])
	if flags&flagLong != 0 {
		if header, err = c.r.Peek(9); err != nil {
			return err
		}
		size = binary.BigEndian.Uint64(header[1:])
	}
	if err := checkHeader(flags, size); err != nil {
		return err
	}
	if flags&flagCommand == 0 {
		return violation("message before READY")
	}
	frame := make([]byte, len(header)+int(size))
	if _, err := io.ReadFull(c.r, frame); err != nil {
		return err
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

// send writes one message, with one system call if the peer takes it at once.
func (c *zmtpConn) send(frames [][]byte) error {
	c.writing.Lock()
	err := c.sendLocked(frames)
	c.writing.Unlock()
	c.sendPong()
	return err
}

func (c *zmtpConn) sendLocked(frames [][]byte) error {
	copied := len(c.carry)
	for _, f := range frames {
		copied += headerMost
		if len(f) <= coalesceLimit {
			copied += len(f)
		}
	}
	b := append(slices.Grow(c.small[:0], copied), c.carry...) // not moved below, since parts of it are in v
	c.carry = nil
	v, from := c.vector[:0], 0
	for i, f := range frames {
		b = appendHeader(b, len(f), i < len(frames)-1)
		if len(f) <= coalesceLimit {
			b = append(b, f...)
			continue
		}
		v = append(v, b[from:], f)
		from = len(b)
	}
	if from < len(b) {
		v = append(v, b[from:])
	}
	c.small, c.vector = b, v
	_, err := c.pushLocked(v, c.limits.Write)
	clear(v) // otherwise a large message would stay in memory until the next
	if cap(c.small) > 2*coalesceLimit {
		c.small = nil
	}
	return err
}

// appendHeader appends the header of a message's frame.
func appendHeader(b []byte, size int, more bool) []byte {
	flags := byte(0)
	if more {
		flags = flagMore
	}
	if size > math.MaxUint8 {
		return binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(size))
	}
	return append(b, flags, byte(size))
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
