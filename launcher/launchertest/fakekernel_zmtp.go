package launchertest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// The flags of a ZMTP frame, https://rfc.zeromq.org/spec/23/.
const (
	flagMore    = 0x01
	flagLong    = 0x02
	flagCommand = 0x04

	greetingSize = 64
	maxFrame     = 1 << 30 // bytes; peers are programs under test, not hostile ones
)

// zmtpPeer is the kernel's end of one ZeroMQ connection.
type zmtpPeer struct {
	// Fixed after the handshake.
	conn     net.Conn
	r        *bufio.Reader
	identity string
	out      *outbox
}

// acceptZMTP does the handshake on an accepted connection, as a socket of the named type. It announces ZMTP 3.1, as
// libzmq does.
func acceptZMTP(conn net.Conn, typ string) (*zmtpPeer, error) {
	hello := make([]byte, greetingSize)
	hello[0], hello[9], hello[10], hello[11] = 0xff, 0x7f, 3, 1
	copy(hello[12:], "NULL")
	ready := append([]byte("\x05READY"), property("Socket-Type", typ)...)
	ready = append(ready, property("Identity", "")...)
	if _, err := conn.Write(appendFrame(hello, flagCommand, ready)); err != nil {
		return nil, err
	}
	p := &zmtpPeer{conn: conn, r: bufio.NewReaderSize(conn, 64<<10)}
	greeting := make([]byte, greetingSize)
	if _, err := io.ReadFull(p.r, greeting); err != nil {
		return nil, err
	}
	if greeting[0] != 0xff || greeting[9]&1 == 0 || greeting[10] < 3 ||
		!strings.HasPrefix(string(greeting[12:32]), "NULL\x00") {
		return nil, fmt.Errorf("not a ZMTP 3 greeting with mechanism NULL: %q", greeting)
	}
	flags, body, err := p.readFrame()
	if err != nil {
		return nil, err
	}
	if flags&flagCommand == 0 || !strings.HasPrefix(string(body), "\x05READY") {
		return nil, fmt.Errorf("no READY but %.100q", body)
	}
	for rest := body[6:]; len(rest) > 0; {
		n := int(rest[0])
		if len(rest) < 1+n+4 {
			return nil, fmt.Errorf("READY is cut off: %.100q", body)
		}
		name, size := string(rest[1:1+n]), int(binary.BigEndian.Uint32(rest[1+n:]))
		if rest = rest[1+n+4:]; len(rest) < size {
			return nil, fmt.Errorf("READY is cut off: %.100q", body)
		}
		if strings.EqualFold(name, "Identity") {
			p.identity = string(rest[:size])
		}
		rest = rest[size:]
	}
	p.out = newOutbox(conn)
	return p, nil
}

func property(name, value string) []byte {
	p := append([]byte{byte(len(name))}, name...)
	return append(binary.BigEndian.AppendUint32(p, uint32(len(value))), value...)
}

func appendFrame(b []byte, flags byte, body []byte) []byte {
	return append(appendFrameHead(b, flags, len(body)), body...)
}

// appendFrameHead appends what stands before a frame's body.
func appendFrameHead(b []byte, flags byte, size int) []byte {
	if size > 255 {
		return binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(size))
	}
	return append(b, flags, byte(size))
}

func (p *zmtpPeer) readFrame() (flags byte, body []byte, err error) {
	var head [9]byte
	if _, err := io.ReadFull(p.r, head[:2]); err != nil {
		return 0, nil, err
	}
	size := uint64(head[1])
	if head[0]&flagLong != 0 {
		if _, err := io.ReadFull(p.r, head[2:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(head[1:])
	}
	if size > maxFrame {
		return 0, nil, fmt.Errorf("frame of %d bytes", size)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(p.r, body)
	return head[0], body, err
}

// read returns the next message. ZMTP 3.1 peers subscribe by a command, which is returned as the message of ZMTP 3.0.
// A PING is answered.
func (p *zmtpPeer) read() ([][]byte, error) {
	var frames [][]byte
	for {
		flags, body, err := p.readFrame()
		if err != nil {
			return nil, err
		}
		if flags&flagCommand == 0 {
			frames = append(frames, body)
			if flags&flagMore == 0 {
				return frames, nil
			}
			continue
		}
		switch command := string(body); {
		case strings.HasPrefix(command, "\x04PING") && len(command) >= 7:
			p.out.put(appendFrame(nil, flagCommand, []byte("\x04PONG"+command[7:])), 0)
		case strings.HasPrefix(command, "\x09SUBSCRIBE"):
			return [][]byte{append([]byte{1}, command[10:]...)}, nil
		case strings.HasPrefix(command, "\x06CANCEL"):
			return [][]byte{append([]byte{0}, command[7:]...)}, nil
		}
	}
}

// encodeMessage returns a message as it is sent on the wire. If prefix is not nil, it is the first frame.
func encodeMessage(prefix []byte, frames [][]byte) []byte {
	size := len(prefix) + 9
	for _, f := range frames {
		size += len(f) + 9
	}
	b := make([]byte, 0, size)
	if prefix != nil {
		b = appendFrame(b, flagMore, prefix)
	}
	for i, f := range frames {
		if i < len(frames)-1 {
			b = appendFrame(b, flagMore, f)
		} else {
			b = appendFrame(b, 0, f)
		}
	}
	return b
}

const (
	outboxLimit = 4 << 20   // bytes that may wait in an outbox before put waits
	outboxOwn   = 256 << 10 // bytes of a message that is not copied behind others
)

// outbox holds messages that wait to be sent on a connection. One goroutine (run) writes them in few large pieces.
type outbox struct {
	conn net.Conn // fixed

	// Guarded by mu; changed announces every change.
	mu       sync.Mutex
	changed  *sync.Cond
	buf      []byte   // behind large
	large    [][]byte // what waits before buf: messages that are not copied, and buffers before them
	bytes    int      // in buf and large
	messages int      // in buf and large
	writing  bool     // earlier messages are being written
	closed   bool
}

func newOutbox(conn net.Conn) *outbox {
	o := &outbox{conn: conn}
	o.changed = sync.NewCond(&o.mu)
	return o
}

// put adds one encoded message. With a high-water mark, the message is dropped if that many wait; without one, put
// waits for space. It reports whether the message was added.
func (o *outbox) put(message []byte, mark int) bool {
	if len(message) > outboxOwn {
		return o.putParts(nil, message, mark)
	}
	return o.putParts(message, nil, mark)
}

// putParts is put for a message in two parts. The second is not copied.
func (o *outbox) putParts(head, tail []byte, mark int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for mark <= 0 && o.bytes > outboxLimit && !o.closed {
		o.changed.Wait()
	}
	if o.closed || mark > 0 && o.messages >= mark {
		return false
	}
	o.buf = append(o.buf, head...)
	if len(tail) > 0 {
		o.large, o.buf = append(o.large, o.buf, tail), nil
	}
	o.bytes += len(head) + len(tail)
	o.messages++
	o.changed.Broadcast()
	return true
}

// run writes until the outbox is closed or the connection is lost.
func (o *outbox) run() {
	var spare []byte
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		for o.bytes == 0 && !o.closed {
			o.changed.Wait()
		}
		if o.closed {
			return
		}
		batch, large := o.buf, net.Buffers(o.large)
		o.buf, o.large, o.bytes, o.messages, o.writing = spare[:0], nil, 0, 0, true
		o.changed.Broadcast()
		o.mu.Unlock()
		_, err := large.WriteTo(o.conn)
		if err == nil {
			_, err = o.conn.Write(batch)
		}
		o.mu.Lock()
		if spare = batch; cap(spare) > 2*outboxLimit {
			spare = nil
		}
		o.writing = false
		o.closed = o.closed || err != nil
		o.changed.Broadcast()
	}
}

// flush waits until everything is written, the outbox is closed, or the time is over.
func (o *outbox) flush(limit time.Duration) {
	over := false
	timer := time.AfterFunc(limit, func() {
		o.mu.Lock()
		over = true
		o.changed.Broadcast()
		o.mu.Unlock()
	})
	defer timer.Stop()
	o.mu.Lock()
	defer o.mu.Unlock()
	for (o.bytes > 0 || o.writing) && !o.closed && !over {
		o.changed.Wait()
	}
}

// close ends run and closes the connection.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.changed.Broadcast()
	o.mu.Unlock()
	if err := o.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return // the peer may have closed it first
	}
}
