package channels

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
)

const testCursor = "000102030405060708090a0b0c0d0e0f1011121314151617"

// client is a client in the lobby.
type client struct {
	*websocket.Conn
	t testing.TB
}

// enter connects a client that offers a subprotocol; "" for no subprotocol.
func (s *testServer) enter(id, subprotocol, query string) *client {
	s.t.Helper()
	d := websocket.Dialer{EnableCompression: true}
	if subprotocol != "" {
		d.Subprotocols = []string{subprotocol}
	}
	conn, resp, err := d.Dial("ws"+s.http.URL[4:]+"/"+id+query, http.Header{"User-Agent": {"test"}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	if conn.Subprotocol() != subprotocol || resp.Header.Get("Sec-Websocket-Extensions") != "" ||
		resp.Header.Get(requestIDHeader) == "" {
		s.t.Fatalf("answered with %v", resp.Header)
	}
	return &client{conn, s.t}
}

// request returns a frame with a message, and whether it is binary.
func (c *client) request(channel jupyter.Channel, msgType, id string, content any) (kind int, frame []byte) {
	c.t.Helper()
	m := jupyter.New(channel, msgType, "client", nil, content)
	m.Header = fmt.Appendf(nil, `{"msg_id":%q,"msg_type":%q,"session":"client"}`, id, msgType)
	if c.Subprotocol() != "" {
		return websocket.BinaryMessage, jupyter.EncodeV1(&m)
	}
	frame, _, err := jupyter.AppendLegacy(nil, &m, false)
	if err != nil {
		c.t.Fatal(err)
	}
	return websocket.TextMessage, frame
}

// send sends a message and returns its frame.
func (c *client) send(channel jupyter.Channel, msgType, id string, content any) []byte {
	c.t.Helper()
	kind, frame := c.request(channel, msgType, id, content)
	if err := c.WriteMessage(kind, frame); err != nil {
		c.t.Fatal(err)
	}
	return frame
}

// received is a message that a client has read.
type received struct {
	channel, msgType, parent string
	content                  map[string]any
}

// String gives what tests compare: channel, type, parent and text.
func (h received) String() string {
	said := ""
	switch h.msgType {
	case "status":
		said = fmt.Sprint(h.content["execution_state"])
	case "display_data", "update_display_data":
		data, _ := h.content["data"].(map[string]any)
		said = fmt.Sprint(data["text/plain"])
	case "execute_reply":
		said = fmt.Sprint(h.content["status"], " ", h.content["ename"], " ", h.content["evalue"])
	}
	return strings.TrimSpace(h.channel + " " + h.msgType + " " + h.parent + " " + said)
}

func (h received) display() string {
	transient, _ := h.content["transient"].(map[string]any)
	return fmt.Sprint(transient["display_id"])
}

// receive reads the next message.
func (c *client) receive() received {
	c.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		c.t.Fatal(err)
	}
	kind, b, err := c.ReadMessage()
	if err != nil {
		c.t.Fatal(err)
	}
	var m jupyter.Message
	switch {
	case c.Subprotocol() == "":
		if kind != websocket.TextMessage {
			c.t.Fatalf("a binary frame: %q", b)
		}
		m, err = jupyter.DecodeLegacy(b, false)
	case c.Subprotocol() == jupyter.SubprotocolRelay:
		if got := fmt.Sprintf("%x", b[:jupyter.RelayCursor]); got != testCursor {
			c.t.Errorf("cursor %s", got)
		}
		b = b[jupyter.RelayCursor:]
		fallthrough
	default:
		m, err = jupyter.DecodeV1(b)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	h := received{channel: m.Channel.String(), msgType: jupyter.StringField(m.Header, "msg_type"),
		parent: jupyter.StringField(m.Parent, "msg_id")}
	if err := json.Unmarshal(m.Content, &h.content); err != nil {
		c.t.Fatal(err)
	}
	return h
}

// wantMessages fails unless the next messages are these.
func (c *client) wantMessages(want ...string) (last received) {
	c.t.Helper()
	for _, w := range want {
		if last = c.receive(); last.String() != w {
			c.t.Fatalf("got  %s\nwant %s", last, w)
		}
	}
	return last
}

// wantClose fails unless the next thing is a close frame with the code and a text that begins so.
func (c *client) wantClose(code int, text string) {
	c.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		c.t.Fatal(err)
	}
	for {
		_, _, err := c.ReadMessage()
		var closed *websocket.CloseError
		if err == nil {
			continue
		}
		if !errors.As(err, &closed) || closed.Code != code || !strings.HasPrefix(closed.Text, text) {
			c.t.Fatalf("got %v, want %d %q", err, code, text)
		}
		_ = c.NetConn().Close() // the other side waits for it
		return
	}
}

// arrived is a connection of a supervisor. got has the messages read from it; a ping is "ping ...", a pong "pong".
type arrived struct {
	conn   *websocket.Conn
	header http.Header
	got    chan string
}

// next returns the next message.
func (a *arrived) next(t *testing.T) string {
	t.Helper()
	select {
	case text, ok := <-a.got:
		if !ok {
			t.Fatal("the connection to the supervisor ended")
		}
		return text
	case <-time.After(20 * time.Second):
		t.Fatal("the supervisor got nothing")
	}
	return ""
}

// accepting makes a supervisor that accepts one websocket.
func accepting(t *testing.T, up websocket.Upgrader) (supervisor http.HandlerFunc, conns <-chan *arrived) {
	ch := make(chan *arrived, 1)
	return func(w http.ResponseWriter, r *http.Request) {
		conn, err := up.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		a := &arrived{conn: conn, header: r.Header.Clone(), got: make(chan string, 20000)}
		a.header.Set("Query", r.URL.RawQuery)
		defer close(a.got)
		conn.SetPingHandler(func(data string) error {
			a.got <- "ping " + data
			return conn.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(time.Second))
		})
		conn.SetPongHandler(func(string) error { a.got <- "pong"; return nil })
		ch <- a
		for {
			_, b, err := conn.ReadMessage()
			if err != nil {
				return
			}
			a.got <- string(b)
		}
	}, ch
}

// likeSupervisors chooses subprotocols as supervisors do, and offers compression.
var likeSupervisors = websocket.Upgrader{Subprotocols: framing.Subprotocols(), EnableCompression: true}
