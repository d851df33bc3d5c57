//go:build e2e

package e2e

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// This file is a Jupyter client on a websocket. It is written from the protocol's description and shares nothing with
// the code under test.

const subprotocolV1 = "v1.kernel.websocket.jupyter.org"

// message holds the parts of a Jupyter message that the tests read.
type message struct {
	Channel string          `json:"channel"`
	Header  header          `json:"header"`
	Parent  header          `json:"parent_header"`
	Meta    json.RawMessage `json:"metadata"`
	Content json.RawMessage `json:"content"`
	Buffers [][]byte        `json:"-"`
}

type header struct {
	MsgID    string `json:"msg_id,omitempty"`
	MsgType  string `json:"msg_type,omitempty"`
	Session  string `json:"session,omitempty"`
	Username string `json:"username"`
	Date     string `json:"date,omitempty"`
	Version  string `json:"version,omitempty"`
	Subshell string `json:"subshell_id,omitempty"`
}

// field returns a string of the content.
func (m message) field(name string) string {
	var c map[string]any
	if json.Unmarshal(m.Content, &c) != nil {
		return ""
	}
	s, _ := c[name].(string)
	return s
}

// client is one websocket of a kernel.
type client struct {
	t       *testing.T
	ws      *websocket.Conn
	v1      bool
	session string
	got     chan message // closed at the end of the websocket
	failed  error        // why the websocket ended; set before got is closed
}

var messageNumber atomic.Int64

// dial opens a websocket with a session id, in the v1 framing or the default one. A goroutine reads it.
func (g *gateway) dial(t *testing.T, id, session string, v1 bool) *client {
	t.Helper()
	c, err := g.tryDial(t, id, session, v1)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (g *gateway) tryDial(t *testing.T, id, session string, v1 bool) (*client, error) {
	ws, err := g.connect(t.Context(), id, session, v1, 20*time.Second)
	if err != nil {
		return nil, err
	}
	c := &client{t: t, ws: ws, v1: v1, session: session, got: make(chan message, 1024)}
	go c.read()
	t.Cleanup(func() {
		_ = ws.Close() // it may already be closed
		for range c.got {
			continue // until read ends and closes got
		}
	})
	return c, nil
}

// connect opens the websocket.
func (g *gateway) connect(
	ctx context.Context,
	id, session string,
	v1 bool,
	limit time.Duration,
) (*websocket.Conn, error) {
	subprotocol := ""
	if v1 {
		subprotocol = subprotocolV1
	}
	return g.connectWith(ctx, id, url.Values{"session_id": {session}}, subprotocol, limit)
}

// connectWith opens a websocket that speaks the subprotocol, or the default framing if that is empty.
func (g *gateway) connectWith(
	ctx context.Context,
	id string,
	query url.Values,
	subprotocol string,
	limit time.Duration,
) (*websocket.Conn, error) {
	d := websocket.Dialer{HandshakeTimeout: limit}
	if subprotocol != "" {
		d.Subprotocols = []string{subprotocol}
	}
	at := strings.Replace(g.url, "http", "ws", 1) + "/api/kernels/" + id + "/channels?" + query.Encode()
	ws, resp, err := d.DialContext(ctx, at, map[string][]string{"Authorization": {"token " + g.token}})
	if err != nil {
		if resp != nil {
			return nil, fmt.Errorf("dial: %w: %s", err, resp.Status)
		}
		return nil, fmt.Errorf("dial: %w", err)
	}
	if got := ws.Subprotocol(); got != subprotocol {
		return nil, errors.Join(fmt.Errorf("negotiated subprotocol %q, want %q", got, subprotocol), ws.Close())
	}
	return ws, nil
}

// open opens a websocket whose messages the test does not read.
func (g *gateway) open(t *testing.T, id string) *websocket.Conn {
	t.Helper()
	ws, err := g.connect(t.Context(), id, "x", false, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.Close() }) // it may already be closed
	return ws
}

// wantEnd checks that the server ends a websocket within limit. It returns the error of the last read.
func wantEnd(t *testing.T, ws *websocket.Conn, limit time.Duration) (lastRead error) {
	t.Helper()
	err := ws.SetReadDeadline(time.Now().Add(limit))
	for err == nil {
		_, _, err = ws.ReadMessage()
	}
	var late net.Error // gorilla's copy of the error is not os.ErrDeadlineExceeded
	if errors.As(err, &late) && late.Timeout() {
		t.Errorf("the websocket is still open after %v", limit)
	}
	return err
}

// read collects messages until the websocket ends.
func (c *client) read() {
	defer close(c.got)
	for {
		kind, data, err := c.ws.ReadMessage()
		if err != nil {
			c.failed = err
			return
		}
		m, err := decode(kind, data)
		if err != nil {
			c.failed = err
			return
		}
		c.got <- m
	}
}

// decode reads any of the three layouts: v1, JSON, and JSON followed by buffers.
func decode(kind int, data []byte) (message, error) {
	var m message
	if kind == websocket.TextMessage {
		return m, json.Unmarshal(data, &m)
	}
	if len(data) >= 8 && data[0] != 0 { // v1: a small little-endian count comes first
		n := int(binary.LittleEndian.Uint64(data))
		if n < 6 || len(data) < 8*(n+1) {
			return m, errors.New("v1 frame with a bad count")
		}
		part := func(i int) []byte {
			return data[binary.LittleEndian.Uint64(data[8*(i+1):]):binary.LittleEndian.Uint64(data[8*(i+2):])]
		}
		m.Channel = string(part(0))
		m.Meta, m.Content = part(3), part(4)
		for i := 5; i < n-1; i++ {
			m.Buffers = append(m.Buffers, part(i))
		}
		return m, errors.Join(json.Unmarshal(part(1), &m.Header), json.Unmarshal(part(2), &m.Parent))
	}
	n := int(binary.BigEndian.Uint32(data))
	ends := func(i int) uint32 {
		if i == n {
			return uint32(len(data))
		}
		return binary.BigEndian.Uint32(data[4*(i+1):])
	}
	for i := 1; i < n; i++ {
		m.Buffers = append(m.Buffers, data[ends(i):ends(i+1)])
	}
	return m, json.Unmarshal(data[ends(0):ends(1)], &m)
}

// encode writes a message in the layout of this connection.
func (c *client) encode(m message) (int, []byte) {
	c.t.Helper()
	js := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			c.t.Fatal(err)
		}
		return b
	}
	if m.Meta == nil {
		m.Meta = json.RawMessage("{}")
	}
	if c.v1 {
		parts := append([][]byte{[]byte(m.Channel), js(m.Header), []byte("{}"), m.Meta, m.Content}, m.Buffers...)
		if m.Parent.MsgID != "" {
			parts[2] = js(m.Parent)
		}
		out := binary.LittleEndian.AppendUint64(nil, uint64(len(parts)+1))
		at := uint64(8 * (len(parts) + 2))
		for _, p := range append(parts, nil) {
			out = binary.LittleEndian.AppendUint64(out, at)
			at += uint64(len(p))
		}
		for _, p := range parts {
			out = append(out, p...)
		}
		return websocket.BinaryMessage, out
	}
	object := js(map[string]any{
		"channel":       m.Channel,
		"header":        m.Header,
		"parent_header": m.Parent,
		"metadata":      m.Meta,
		"content":       m.Content,
	})
	if len(m.Buffers) == 0 {
		return websocket.TextMessage, object
	}
	parts := append([][]byte{object}, m.Buffers...)
	out := binary.BigEndian.AppendUint32(nil, uint32(len(parts)))
	at := uint32(4 * (len(parts) + 1))
	for _, p := range parts {
		out = binary.BigEndian.AppendUint32(out, at)
		at += uint32(len(p))
	}
	for _, p := range parts {
		out = append(out, p...)
	}
	return websocket.BinaryMessage, out
}

// newRequest returns a request with a new msg_id.
func newRequest(session, channel, msgType, content string, more ...func(*message)) message {
	m := message{Channel: channel, Content: json.RawMessage(content), Header: header{
		MsgID:   fmt.Sprintf("e2e-%d", messageNumber.Add(1)),
		MsgType: msgType,
		Session: session,
		Version: "5.4",
		Date:    time.Now().UTC().Format(time.RFC3339Nano),
	}}
	for _, f := range more {
		f(&m)
	}
	return m
}

// executeRequest returns the content of an execute_request.
func executeRequest(code string, allowStdin bool) string {
	content, err := json.Marshal(map[string]any{
		"code": code, "silent": false, "store_history": true, "allow_stdin": allowStdin,
		"user_expressions": struct{}{}, "stop_on_error": true,
	})
	if err != nil {
		panic(err) // these types can always be encoded
	}
	return string(content)
}

// send sends a request and returns its id.
func (c *client) send(channel, msgType, content string, more ...func(*message)) string {
	c.t.Helper()
	m := newRequest(c.session, channel, msgType, content, more...)
	kind, data := c.encode(m)
	if err := c.ws.WriteMessage(kind, data); err != nil {
		c.t.Fatalf("send %s: %v", msgType, err)
	}
	return m.Header.MsgID
}

// until returns the first message that matches, and all messages before it.
func (c *client) until(limit time.Duration, what string, match func(message) bool) (message, []message) {
	c.t.Helper()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	var before []message
	for {
		select {
		case m, ok := <-c.got:
			if !ok {
				c.t.Fatalf("the websocket ended before %s: %v", what, c.failed)
			}
			if match(m) {
				return m, before
			}
			before = append(before, m)
		case <-timeout.C:
			c.t.Fatalf("not within %v: %s; got %d other messages", limit, what, len(before))
		}
	}
}

// prints reads until the output has a text, and returns the output so far. A message may hold a part of a line.
func (c *client) prints(text string) (output string) {
	c.t.Helper()
	c.until(20*time.Second, fmt.Sprintf("%q", text), func(m message) bool {
		if m.Header.MsgType == "stream" {
			output += m.field("text")
		}
		return strings.Contains(output, text)
	})
	return output
}

// ended reads until the server ends the websocket, and returns the output so far.
func (c *client) ended(limit time.Duration) (output string) {
	c.t.Helper()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for {
		select {
		case m, ok := <-c.got:
			if !ok {
				return output
			}
			if m.Header.MsgType == "stream" {
				output += m.field("text")
			}
		case <-timeout.C:
			c.t.Fatalf("the websocket is still open after %v", limit)
		}
	}
}

// result is the outcome of a request.
type result struct {
	reply  message
	stdout string
	all    []message
}

// finish waits for a request's reply and its idle status.
func (c *client) finish(msgID string, limit time.Duration) result {
	c.t.Helper()
	var r result
	replied, idle := false, false
	_, before := c.until(limit, "reply and idle of "+msgID, func(m message) bool {
		if m.Parent.MsgID != msgID {
			return false
		}
		r.all = append(r.all, m)
		switch {
		case m.Channel == "iopub" && m.Header.MsgType == "status" && m.field("execution_state") == "idle":
			idle = true
		case m.Channel == "iopub" && m.Header.MsgType == "stream" && m.field("name") == "stdout":
			r.stdout += m.field("text")
		case m.Channel != "iopub" && m.Channel != "stdin":
			r.reply, replied = m, true
		}
		return replied && idle
	})
	_ = before // messages of other requests, such as the statuses of connections
	return r
}

// execute runs a cell to its end.
func (c *client) execute(code string, limit time.Duration) result {
	c.t.Helper()
	return c.finish(c.begin(code), limit)
}

// begin sends a cell.
func (c *client) begin(code string) string {
	c.t.Helper()
	return c.send("shell", "execute_request", executeRequest(code, true))
}

// says runs a cell and checks that it prints exactly this text.
func (c *client) says(code, want string) {
	c.t.Helper()
	r := c.execute(code, 30*time.Second)
	if r.stdout != want {
		c.t.Fatalf("%q printed %q, want %q; reply %s", code, r.stdout, want, r.reply.Content)
	}
}
