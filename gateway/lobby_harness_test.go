package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

const testCursor = "000102030405060708090a0b0c0d0e0f1011121314151617"

// waiting is a client in the lobby.
type waiting struct {
	*websocket.Conn
	t testing.TB
}

// enter connects a client that offers a subprotocol, or none.
func (g *testGateway) enter(id, subprotocol, query string) *waiting {
	g.t.Helper()
	d := websocket.Dialer{EnableCompression: true}
	if subprotocol != "" {
		d.Subprotocols = []string{subprotocol}
	}
	conn, resp, err := d.Dial("ws"+g.http.URL[4:]+"/api/kernels/"+id+"/channels"+query,
		http.Header{"Authorization": {"token " + testToken}, "User-Agent": {"test"}})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	if conn.Subprotocol() != subprotocol || resp.Header.Get("Sec-Websocket-Extensions") != "" || resp.Header.Get(headerRequestID) == "" {
		g.t.Fatalf("answered with %v", resp.Header)
	}
	return &waiting{conn, g.t}
}

// request returns a frame with a message, and whether it is binary.
func (c *waiting) request(channel wire.Channel, msgType, id string, content any) (kind int, frame []byte) {
	c.t.Helper()
	m := wire.New(channel, msgType, "client", nil, content)
	m.Header = fmt.Appendf(nil, `{"msg_id":%q,"msg_type":%q,"session":"client"}`, id, msgType)
	if c.Subprotocol() != "" {
		return websocket.BinaryMessage, wire.EncodeV1(&m)
	}
	frame, _, err := wire.EncodeLegacy(&m, false)
	if err != nil {
		c.t.Fatal(err)
	}
	return websocket.TextMessage, frame
}

// send sends a message and returns its frame.
func (c *waiting) send(channel wire.Channel, msgType, id string, content any) []byte {
	c.t.Helper()
	kind, frame := c.request(channel, msgType, id, content)
	if err := c.WriteMessage(kind, frame); err != nil {
		c.t.Fatal(err)
	}
	return frame
}

// heard is what a client was told.
type heard struct {
	channel, msgType, parent string
	content                  map[string]any
}

// String gives what tests compare: the type, what it answers and what it says.
func (h heard) String() string {
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

func (h heard) display() string {
	transient, _ := h.content["transient"].(map[string]any)
	return fmt.Sprint(transient["display_id"])
}

// hear reads the next message.
func (c *waiting) hear() heard {
	c.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		c.t.Fatal(err)
	}
	kind, b, err := c.ReadMessage()
	if err != nil {
		c.t.Fatal(err)
	}
	var m wire.Message
	switch {
	case c.Subprotocol() == "":
		if kind != websocket.TextMessage {
			c.t.Fatalf("a binary frame: %q", b)
		}
		m, err = wire.DecodeLegacy(b, false)
	case c.Subprotocol() == wire.SubprotocolRelay:
		if got := fmt.Sprintf("%x", b[:wire.RelayCursor]); got != testCursor {
			c.t.Errorf("cursor %s", got)
		}
		b = b[wire.RelayCursor:]
		fallthrough
	default:
		m, err = wire.DecodeV1(b)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	h := heard{channel: m.Channel.String(), msgType: wire.MsgType(m.Header), parent: wire.StringField(m.Parent, "msg_id")}
	if err := json.Unmarshal(m.Content, &h.content); err != nil {
		c.t.Fatal(err)
	}
	return h
}

// wantHeard fails unless the next messages are these.
func (c *waiting) wantHeard(want ...string) (last heard) {
	c.t.Helper()
	for _, w := range want {
		if last = c.hear(); last.String() != w {
			c.t.Fatalf("got  %s\nwant %s", last, w)
		}
	}
	return last
}

// wantClose fails unless the next thing is a close frame with the code and a text that begins so.
func (c *waiting) wantClose(code int, text string) {
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

// arrived is what a supervisor got on a connection: text and binary messages, and pings as "ping ...".
type arrived struct {
	conn   *websocket.Conn
	header http.Header
	got    chan string
}

// next returns what it got next.
func (a *arrived) next(t *testing.T) string {
	t.Helper()
	select {
	case text, ok := <-a.got:
		if !ok {
			t.Fatal("the connection to the supervisor ended")
		}
		return text
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came to the supervisor")
	}
	return ""
}

// accepting makes a supervisor that takes one websocket.
func accepting(t *testing.T, up websocket.Upgrader) (prepare func(*fakeSupervisor), conns <-chan *arrived) {
	ch := make(chan *arrived, 1)
	return func(s *fakeSupervisor) {
		s.upgradeWith(func(w http.ResponseWriter, r *http.Request) {
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
		})
	}, ch
}

var likeSupervisors = websocket.Upgrader{Subprotocols: lobbyUpgrader.Subprotocols, EnableCompression: true}

// nothingHeld fails unless the lobby is empty again.
func (g *testGateway) nothingHeld() {
	g.t.Helper()
	g.conns.wg.Wait()
	if n := g.lobbyHeld.Load(); n != 0 {
		g.t.Errorf("%d bytes are still counted as held", n)
	}
}
