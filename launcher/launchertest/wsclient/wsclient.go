// Package wsclient is a websocket client of a kernel for benchmarks. It costs as little as possible, so that the server
// is measured: it decodes no message, and masks with zeros, which a server cannot tell from another mask.
package wsclient

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// Opcodes of frames, RFC 6455, section 5.2.
const (
	opText, opBinary, opPing, opPong = 1, 2, 9, 10
)

const (
	readBuffer  = 256 << 10 // bytes
	mostMessage = 1 << 30   // bytes
)

// Conn is a connection to a kernel's channels. It is not for concurrent use. Its owner closes the net.Conn.
type Conn struct {
	conn net.Conn
	r    *bufio.Reader
	v1   bool
	buf  []byte // the message that was read last
	out  []byte // the pong that was written last
}

// Upgrade does the handshake on conn for a kernel's id and a session, with the v1 framing or the default one. A server
// may answer when the kernel is ready; the caller sets a deadline. It fails if the server does not know the framing.
func Upgrade(conn net.Conn, host, kernel, session string, v1 bool) (*Conn, error) {
	c := &Conn{conn: conn, v1: v1, r: bufio.NewReaderSize(conn, readBuffer)}
	protocol := ""
	if v1 {
		protocol = "Sec-WebSocket-Protocol: " + jupyter.SubprotocolV1 + "\r\n"
	}
	if _, err := fmt.Fprintf(conn,
		"GET /api/kernels/%s/channels?session_id=%s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n%s\r\n",
		kernel, session, host, protocol); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(c.r, nil) // what follows it stays in r; a library's client would keep it
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, fmt.Errorf("websocket of kernel %s: %s", kernel, resp.Status)
	}
	if v1 && resp.Header.Get("Sec-WebSocket-Protocol") != jupyter.SubprotocolV1 {
		return nil, errors.New("the server does not know the framing v1")
	}
	return c, nil
}

// Frame returns a message as a websocket frame, for Write.
func (c *Conn) Frame(m *jupyter.Message) ([]byte, error) {
	if c.v1 {
		return appendFrame(nil, opBinary, jupyter.EncodeV1(m)), nil
	}
	data, _, err := jupyter.AppendLegacy(nil, m, true)
	return appendFrame(nil, opText, data), err
}

// Write sends a frame.
func (c *Conn) Write(frame []byte) error {
	_, err := c.conn.Write(frame)
	return err
}

func appendFrame(b []byte, opcode byte, payload []byte) []byte {
	const final, masked = 0x80, 0x80
	b = append(b, final|opcode)
	switch n := len(payload); {
	case n < 126:
		b = append(b, masked|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, masked|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, masked|127), uint64(n))
	}
	return append(append(b, 0, 0, 0, 0), payload...)
}

// Next returns the next message as the framing has it, which is valid until the next call. Servers send unfragmented
// frames. Next answers pings, as any client does. It allocates only for a message that is larger than all before.
func (c *Conn) Next() ([]byte, error) {
	for {
		head, err := c.read(2)
		if err != nil {
			return nil, err
		}
		opcode, size := head[0]&0xf, uint64(head[1])
		switch size {
		case 126:
			if head, err = c.read(2); err != nil {
				return nil, err
			}
			size = uint64(binary.BigEndian.Uint16(head))
		case 127:
			if head, err = c.read(8); err != nil {
				return nil, err
			}
			size = binary.BigEndian.Uint64(head)
		}
		if size > mostMessage {
			return nil, fmt.Errorf("message of %d bytes", size)
		}
		if _, err = c.read(int(size)); err != nil {
			return nil, err
		}
		switch opcode {
		case opText, opBinary:
			return c.buf, nil
		case opPing:
			c.out = appendFrame(c.out[:0], opPong, c.buf)
			if err := c.Write(c.out); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("frame with opcode %d: %.200q", opcode, c.buf)
		}
	}
}

// read reads n bytes into buf.
func (c *Conn) read(n int) ([]byte, error) {
	c.buf = slices.Grow(c.buf[:0], n)[:n]
	_, err := io.ReadFull(c.r, c.buf)
	return c.buf, err
}
