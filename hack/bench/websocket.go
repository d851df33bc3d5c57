package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// The framings of websockets.
const (
	framingJSON = "json" // Jupyter's first, without a subprotocol
	framingV1   = "v1"   // the subprotocol v1.kernel.websocket.jupyter.org
)

// Opcodes of websocket frames, RFC 6455.
const (
	opText, opBinary, opPing, opPong = 1, 2, 9, 10
)

// quickAck is the socket option TCP_QUICKACK of Linux. Each read may clear it.
const quickAck = 12

// marked is the largest message that is searched for marks. A larger one is an output.
const marked = 4 << 10

var (
	outputMark = []byte(`"display_data"`)
	replyMark  = []byte(`"execute_reply"`)
	idleMark   = []byte(`"idle"`)
)

// websocketClient is a client of a gateway. It allocates only for messages that are larger than all before.
type websocketClient struct {
	conn    net.Conn
	r       *bufio.Reader
	v1      bool
	session []byte // of its messages
	buf     []byte // the message that was read last
	out     []byte // the frame that was written last
}

// quickConn acknowledges what it has read at once. Otherwise Linux may wait up to 40 ms. A server that has left Nagle's
// algorithm on sends nothing in that time.
type quickConn struct {
	net.Conn
	raw syscall.RawConn
}

func (c *quickConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil {
		err = c.raw.Control(acknowledge)
	}
	return n, err
}

func acknowledge(fd uintptr) {
	// Only the time of an acknowledgement depends on it.
	_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, quickAck, 1)
}

// dialWebsocket connects to a kernel of a gateway.
func dialWebsocket(host, kernel, framing string, quick bool) (*websocketClient, error) {
	conn, err := net.DialTimeout("tcp", host, 10*time.Second)
	if err != nil {
		return nil, err
	}
	c := &websocketClient{conn: conn, v1: framing == framingV1, session: []byte("bench-" + jupyter.NewID())}
	if quick {
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			c.close()
			return nil, err
		}
		c.conn = &quickConn{conn, raw}
	}
	c.r = bufio.NewReaderSize(c.conn, 256<<10)
	if err := c.upgrade(host, kernel); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *websocketClient) close() { _ = c.conn.Close() } // its owner has what it wanted

// upgrade does the handshake. A server may answer it when its kernel is ready. Jupyter's servers send requests of their
// own with the session of the address, so the client's messages have another.
func (c *websocketClient) upgrade(host, kernel string) error {
	protocol := ""
	if c.v1 {
		protocol = "Sec-WebSocket-Protocol: " + jupyter.SubprotocolV1 + "\r\n"
	}
	if err := c.conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c.conn,
		"GET /api/kernels/%s/channels?session_id=%s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n%s\r\n",
		kernel, jupyter.NewID(), host, protocol); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("websocket of kernel %s: %s", kernel, resp.Status)
	}
	if c.v1 && resp.Header.Get("Sec-WebSocket-Protocol") != jupyter.SubprotocolV1 {
		return errors.New("the server does not know the framing v1")
	}
	return nil
}

// frame encodes a request as a websocket frame. The mask is zeros, which a server cannot tell from another.
func (c *websocketClient) frame(code string) ([]byte, error) {
	m := executeRequest(string(c.session), code)
	if c.v1 {
		return appendFrame(nil, opBinary, jupyter.EncodeV1(&m)), nil
	}
	data, _, err := jupyter.EncodeLegacy(&m, true)
	return appendFrame(nil, opText, data), err
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

func (c *websocketClient) ask(a asking) (answer, error) {
	frames := make([][]byte, len(a.codes))
	for i, code := range a.codes {
		var err error
		if frames[i], err = c.frame(code); err != nil {
			return answer{}, err
		}
	}
	got := answer{complete: true, times: make([]time.Duration, 0, len(frames))}
	began := time.Now()
	if err := c.conn.SetDeadline(began.Add(a.deadline)); err != nil {
		return got, err
	}
	var sent time.Time
	for i, f := range frames {
		if a.pace > 0 && i > 0 {
			time.Sleep(time.Until(sent.Add(a.pace)))
		}
		sent = time.Now()
		if a.limit > 0 && i > 0 && sent.Sub(began) > a.limit {
			break
		}
		_, err := c.conn.Write(f)
		if err == nil {
			var replied time.Time
			if replied, err = c.answered(&got, &a); err == nil {
				got.times = append(got.times, replied.Sub(sent))
				continue
			}
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return got, err
		}
		got.complete = false
		break
	}
	got.took = time.Since(began)
	return got, nil
}

// answered reads until the reply and the idle. It returns when the reply came.
func (c *websocketClient) answered(got *answer, a *asking) (replied time.Time, err error) {
	for idle := false; !idle || replied.IsZero(); {
		m, err := c.next()
		if err != nil {
			return replied, err
		}
		switch {
		case len(m) > marked || bytes.Contains(m, outputMark):
			got.outputs++
			got.bytes += int64(len(m))
			if got.outputs == a.pauseAt {
				time.Sleep(a.pause)
			}
		case !bytes.Contains(m, c.session):
			// The present state, which a new client gets first, answers no request.
		case bytes.Contains(m, idleMark):
			idle = true
		case bytes.Contains(m, replyMark):
			replied = time.Now()
		}
	}
	return replied, nil
}

// next returns the next message. The servers send unfragmented frames. It answers pings, as any client does.
func (c *websocketClient) next() ([]byte, error) {
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
		if size > 1<<30 {
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
			if _, err := c.conn.Write(c.out); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("frame with opcode %d: %.200q", opcode, c.buf)
		}
	}
}

// read reads n bytes into buf.
func (c *websocketClient) read(n int) ([]byte, error) {
	c.buf = slices.Grow(c.buf[:0], n)[:n]
	_, err := io.ReadFull(c.r, c.buf)
	return c.buf, err
}
