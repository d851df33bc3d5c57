package main

import (
	"bytes"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/wsclient"
)

// The framings of websockets.
const (
	framingJSON = "json" // Jupyter's first, without a subprotocol
	framingV1   = "v1"   // the subprotocol v1.kernel.websocket.jupyter.org
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

// websocketClient is a client of a gateway.
type websocketClient struct {
	conn    net.Conn
	ws      *wsclient.Conn
	session []byte // of its messages
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
	c := &websocketClient{conn: conn, session: []byte("bench-" + jupyter.NewID())}
	if quick {
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			c.close()
			return nil, err
		}
		c.conn = &quickConn{conn, raw}
	}
	// A server may answer the handshake when its kernel is ready. Jupyter's servers send requests of their own with the
	// session of the address, so the client's messages have another.
	if err = c.conn.SetDeadline(time.Now().Add(2 * time.Minute)); err == nil {
		c.ws, err = wsclient.Upgrade(c.conn, host, kernel, jupyter.NewID(), framing == framingV1)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *websocketClient) close() { _ = c.conn.Close() } // its owner has what it wanted

func (c *websocketClient) ask(a asking) (answer, error) {
	frames := make([][]byte, len(a.codes))
	for i, code := range a.codes {
		m := executeRequest(string(c.session), code)
		var err error
		if frames[i], err = c.ws.Frame(&m); err != nil {
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
		err := c.ws.Write(f)
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
		m, err := c.ws.Next()
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
