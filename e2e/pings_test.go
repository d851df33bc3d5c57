//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// heldBytes is the requested buffer size of the sockets between the proxy and its client. Linux doubles it.
const heldBytes = 32 << 10

// websocketProxy terminates websockets on both of its sides, as some proxies do. It answers pings itself, even for
// bytes that its client has not received yet.
type websocketProxy struct {
	*httptest.Server
	mu   sync.Mutex
	open []*websocket.Conn
}

func newWebsocketProxy(t *testing.T, g *gateway) *websocketProxy {
	t.Helper()
	p := &websocketProxy{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := websocket.Dialer{HandshakeTimeout: 20 * time.Second, Subprotocols: websocket.Subprotocols(r)}
		upstream, _, err := d.DialContext(r.Context(), "ws://"+g.addr+r.URL.RequestURI(),
			http.Header{"Authorization": r.Header["Authorization"]})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = upstream.Close() }()
		u := websocket.Upgrader{}
		if s := upstream.Subprotocol(); s != "" {
			u.Subprotocols = []string{s}
		}
		client, err := u.Upgrade(w, r, nil)
		if err != nil {
			return // the library has already answered
		}
		defer func() { _ = client.Close() }()
		if err := client.NetConn().(*net.TCPConn).SetWriteBuffer(heldBytes); err != nil {
			t.Error(err)
		}
		p.mu.Lock()
		p.open = append(p.open, client, upstream)
		p.mu.Unlock()
		var both sync.WaitGroup
		both.Go(func() { carryMessages(upstream, client) })
		both.Go(func() { carryMessages(client, upstream) })
		both.Wait()
	}))
	t.Cleanup(func() {
		p.cut()
		p.Close() // waits for the handlers
	})
	return p
}

// carryMessages copies one direction until either side ends, and then ends both. Reading also answers pings.
func carryMessages(dst, src *websocket.Conn) {
	defer func() { _ = dst.Close() }()
	defer func() { _ = src.Close() }()
	for {
		kind, data, err := src.ReadMessage()
		if err != nil || dst.WriteMessage(kind, data) != nil {
			return
		}
	}
}

// cut ends all connections at once. Their buffered data is lost.
func (p *websocketProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		reset(c.NetConn().(*net.TCPConn))
	}
	p.open = nil
}

// readUntil reads from a websocket until a message matches. It returns all messages that it read.
func readUntil(t *testing.T, ws *websocket.Conn, limit time.Duration, match func(message) bool) []message {
	t.Helper()
	if err := ws.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	var all []message
	for {
		kind, data, err := ws.ReadMessage()
		if err != nil {
			t.Fatalf("after %d messages: %v", len(all), err)
		}
		m, err := decode(kind, data)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
		if match(m) {
			return all
		}
	}
}

// TestE2E_ProxyAnswersPings: a proxy between client and gateway acknowledges messages for the client. Only the messages
// that it holds at its end are lost.
func TestE2E_ProxyAnswersPings(t *testing.T) {
	t.Parallel()
	const (
		lines = 1500
		size  = 2000                        // bytes of a line, at least
		most  = 4*heldBytes + 64<<10 + size // unread data: two sockets, the libraries' own buffers, a message
	)
	framings(t, func(t *testing.T, v1 bool) {
		g := newGateway(t)
		p := newWebsocketProxy(t, g)
		behind := *g
		behind.url = p.URL
		id, file := g.kernel("python3"), filepath.Join(g.dir, "produced")
		ws, err := behind.connect(t.Context(), id, "s", v1, 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := ws.NetConn().(*net.TCPConn).SetReadBuffer(heldBytes); err != nil {
			t.Fatal(err)
		}
		asking := &client{t: t, ws: ws, v1: v1, session: "s"}
		cell := asking.begin(fmt.Sprintf(`import time
for i in range(%d):
    print('line', i, 'x' * %d, flush=True)
    time.sleep(0.001)
open(%q, 'w').close()`, lines, size, file))
		got := linesOf(readUntil(t, ws, 20*time.Second, func(m message) bool {
			return strings.Contains(m.field("text"), "line 100 ")
		}))
		g.eventually(time.Minute, "the cell has printed all", func() error { _, err := os.Stat(file); return err })
		g.state(id, "idle", 20*time.Second)
		p.cut()
		_ = ws.Close() // the connection is already broken

		back := behind.dial(t, id, "s", v1)
		r := back.finish(cell, 30*time.Second)
		rest := linesOf(r.all)
		if len(got) < 101 || len(rest) == 0 || rest[len(rest)-1] != lines-1 {
			t.Fatalf("the first connection got %d lines, and the second %d", len(got), len(rest))
		}
		for i := 1; i < len(rest); i++ {
			if rest[i] != rest[i-1]+1 {
				t.Fatalf("on the second connection line %d follows %d", rest[i], rest[i-1])
			}
		}
		lost := rest[0] - got[len(got)-1] - 1
		t.Logf("%d lines were lost with the proxy, of %d bytes each", lost, size)
		if lost*size > most || r.reply.field("status") != "ok" {
			t.Errorf("%d bytes were lost with the proxy, which held no more than %d; reply %s", lost*size, most, r.reply.Content)
		}
		back.says("print('on')", "on\n")
	})
}

// linesOf returns the numbers of the lines that messages print. A line may be split over several messages.
func linesOf(all []message) []int {
	var text strings.Builder
	for _, m := range all {
		if m.Header.MsgType == "stream" && m.field("name") == "stdout" {
			text.WriteString(m.field("text"))
		}
	}
	var numbers []int
	for line := range strings.Lines(text.String()) {
		var i int
		if _, err := fmt.Sscanf(line, "line %d ", &i); err == nil {
			numbers = append(numbers, i)
		}
	}
	return numbers
}
