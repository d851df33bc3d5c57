package supervisor

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestSupervisor_BigMessages: 100 MB pass in both directions. A jupyter server gets a notice instead of a message that
// would end its connection.
func TestSupervisor_BigMessages(t *testing.T) {
	size := 100_000_000
	if raceEnabled {
		size = 12_000_000 // the detector's shadow memory makes the full size take a minute; it runs without it, too
	}
	r := startSupervisor(t, func(c *api.Config) { c.LogLimit = 300 << 20 }).ready()
	relay := r.dial(dialOption{session: "relay", header: http.Header{"User-Agent": {"Tornado/6.5"}}})
	bothFramings(t, func(t *testing.T, v1 bool) {
		c := r.dial(dialOption{session: fmt.Sprint("big", v1), v1: v1})
		id := c.execute(fmt.Sprintf("big %d", size))
		big, ok := find(c.result(id), "display_data", id)
		if !ok || big.Size() < size {
			t.Errorf("display data has %d bytes", big.Size())
		}
		c.result(c.send(jupyter.Shell, "execute_request", map[string]string{"code": "#" + strings.Repeat("x", size)}))
		rid := relay.execute("print 1")
		all := relay.result(rid)
		if _, ok := find(all, "display_data", ""); ok {
			t.Error("the relay was sent the big message")
		}
		if text := output(all, id); !strings.Contains(text, "display_data") {
			t.Errorf("the relay got the text %q", text)
		}
	})
}

func TestSupervisor_Buffers(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	relay := r.dial(dialOption{session: "relay", header: http.Header{"User-Agent": {"Tornado/6.5"}}})
	relay.result(relay.execute("print 1"))
	bothFramings(t, func(t *testing.T, v1 bool) {
		c := r.dial(dialOption{session: fmt.Sprint("buf", v1), v1: v1})
		id := c.execute("buffers 1000")
		comm, _ := find(c.result(id), "comm_msg", id)
		if len(comm.Buffers) != 1 || len(comm.Buffers[0]) != 1000 {
			t.Errorf("%d buffers", len(comm.Buffers))
		}
		theirs := relay.collect("comm", func(g got) bool { return g.msgType == "comm_msg" && g.parent == id })
		if b := theirs[len(theirs)-1].Buffers; len(b) != 0 {
			t.Error("a binary frame went to a jupyter server")
		}
	})
}

func TestSupervisor_Malformed(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	other := r.dial(dialOption{session: "other"})
	for _, tc := range []struct {
		name string
		v1   bool
		kind int
		data string
		code int
	}{
		{"text that is not JSON", false, websocket.TextMessage, "hello", websocket.CloseInvalidFramePayloadData},
		{"binary garbage", false, websocket.BinaryMessage, "\xff\xff\xff\xff\x00", websocket.CloseInvalidFramePayloadData},
		{"v1 with 2^62 offsets", true, websocket.BinaryMessage, "\x00\x00\x00\x00\x00\x00\x00\x40" +
			strings.Repeat("\x00", 80), websocket.CloseInvalidFramePayloadData},
		{"text on v1", true, websocket.TextMessage, "{}", websocket.CloseUnsupportedData},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := r.dial(dialOption{session: "bad", v1: tc.v1})
			if err := c.ws.WriteMessage(tc.kind, []byte(tc.data)); err != nil {
				t.Fatal(err)
			}
			for {
				if _, err := c.recv(); err != nil {
					if !websocket.IsCloseError(err, tc.code) {
						t.Errorf("ended with %v, want close code %d", err, tc.code)
					}
					break
				}
			}
			other.result(other.execute("print 1"))
		})
	}
}

// TestSupervisor_ControlFrameWithinMessage: pings between the fragments of a message (RFC 6455, section 5.4) are
// answered, and the message is whole.
func TestSupervisor_ControlFrameWithinMessage(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	bothFramings(t, func(t *testing.T, v1 bool) {
		c := r.dial(dialOption{session: fmt.Sprint("fragments", v1), v1: v1})
		pongs := make(chan string, 10)
		c.ws.SetPongHandler(func(data string) error { pongs <- data; return nil })
		m := jupyter.New(jupyter.Shell, "execute_request", c.session, nil,
			map[string]string{"code": "print 1 #" + strings.Repeat("x", 30000)})
		kind, frame := websocket.BinaryMessage, jupyter.EncodeV1(&m)
		if !v1 {
			var err error
			if frame, _, err = jupyter.AppendLegacy(nil, &m, false); err != nil {
				t.Fatal(err)
			}
			kind = websocket.TextMessage
		}
		w, err := c.ws.NextWriter(kind)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if _, err := w.Write(frame[i*9000 : (i+1)*9000]); err != nil {
				t.Fatal(err)
			}
			if err := c.ws.WriteControl(websocket.PingMessage, []byte(fmt.Sprint(i)), time.Now().Add(time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.Write(frame[27000:]); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		c.result(jupyter.StringField(m.Header, "msg_id"))
		closed := make(chan struct{})
		go func() { // a pong may come behind the reply
			defer close(closed)
			for err := error(nil); err == nil; _, _, err = c.ws.ReadMessage() {
			}
		}()
		for i := range 3 {
			if got := <-pongs; got != fmt.Sprint(i) {
				t.Errorf("pong %q, want %d", got, i)
			}
		}
		_ = c.ws.Close()
		<-closed
	})
}

// TestSupervisor_SlowReader: a client that does not read gets every reply, and a notice of how much it missed. It costs
// no more memory than the log's limit, and delays no other client.
func TestSupervisor_SlowReader(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.LogLimit = 4 << 20 }).ready()
	slow := r.dial(dialOption{session: "slow"})
	id := slow.execute("print 1")
	slow.result(id)
	const displays = 40000
	cell := slow.execute(fmt.Sprintf("flood %d", displays))
	fast := r.dial(dialOption{session: "fast"})
	fast.result(fast.execute("print 1")) // behind the flood on shell: when it is answered the flood is over
	if size, limit := r.s.log.Sizes(); size > limit {
		t.Errorf("log holds %d bytes, its limit is %d", size, limit)
	}
	all := slow.result(cell)
	seen, missing := 0, 0
	for _, g := range all {
		if g.msgType == "display_data" {
			seen++
		}
		if g.msgType == "stream" {
			var n int
			if _, err := fmt.Sscanf(strings.TrimPrefix(g.text(), "[ekg] "), "%d messages", &n); err == nil {
				missing += n
			}
		}
	}
	if missing == 0 || seen == displays {
		t.Fatalf("nothing was lost: %d seen, %d missing; the test proves nothing", seen, missing)
	}
	if seen+missing < displays {
		t.Errorf("%d seen and %d announced as missing of %d", seen, missing, displays)
	}
}

// TestSupervisor_BlackHole: a peer that vanishes silently is given up, and its session continues on another connection.
func TestSupervisor_BlackHole(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	hole := &stuckConn{release: make(chan struct{})}
	c := r.dial(dialOption{session: "ann", conn: func(n net.Conn) net.Conn { hole.Conn = n; return hole }})
	c.result(c.execute("print 1"))
	id := c.execute("print 200")
	r.until("idle", func(st api.Status) bool { return st.State == api.Idle && st.LogBytes > 0 })
	back := r.dial(dialOption{session: "ann"}) // the old connection is still open
	all := back.result(id)
	if n := strings.Count(output(all, id), "\n"); n != 200 {
		t.Errorf("%d of 200 lines came on the new connection", n)
	}
	close(hole.release)
}

// stuckConn is a client's connection; release exists to keep it open without reading.
type stuckConn struct {
	net.Conn
	release chan struct{}
}

// TestSupervisor_AbandonedConnection: when a browser leaves a connection early, its jupyter server keeps the connection
// to the gateway, takes one message from it and answers pings until the second. The page's next connection reads on
// where the page was, not where the abandoned one is: a repeated "restarting" would be another restart to JupyterLab.
func TestSupervisor_AbandonedConnection(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.Argv = append(c.Argv, "--start-delay", "300ms") })
	abandoned := r.dial(dialOption{session: "ann"}) // before the kernel's first message, so the first ping goes first
	if first, err := abandoned.recv(); err != nil || first.msgType != "status" {
		t.Fatalf("first message: %s, %v", first.msgType, err)
	}
	second := make(chan struct{})
	go func() {
		defer close(second)
		_, _, _ = abandoned.ws.NextReader() // answers pings until the next message
	}()
	t.Cleanup(func() { <-second })
	r.ready()
	page := r.dial(dialOption{session: "ann"})
	seen := map[string]bool{}
	for _, g := range page.result(page.execute("print 10")) {
		seen[jupyter.StringField(g.Header, "msg_id")] = true
	}
	r.acknowledged("ann", page)
	_ = page.ws.NetConn().Close()
	eventually(t, "the page has left", func() bool {
		r.s.mu.Lock()
		defer r.s.mu.Unlock()
		return len(r.s.clients.connected) == 1
	})
	page = r.dial(dialOption{session: "ann"})
	for _, g := range page.result(page.execute("print 1")) {
		if seen[jupyter.StringField(g.Header, "msg_id")] {
			t.Errorf("%s came again: %s", g.msgType, g.Content)
		}
	}
}

// TestSupervisor_WebsocketVersion: a handshake with a version that is not spoken is answered with 426 and the one that
// is.
func TestSupervisor_WebsocketVersion(t *testing.T) {
	r := startSupervisor(t, nil)
	for _, version := range []string{"", "8", "14"} {
		req, err := http.NewRequest(http.MethodGet, r.url("/channels"), nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket",
			"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": version} {
			req.Header.Set(name, value)
		}
		tr := &http.Transport{DialContext: r.dialer(), DisableKeepAlives: true}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got := resp.Header.Get("Sec-WebSocket-Version"); resp.StatusCode != http.StatusUpgradeRequired || got != "13" {
			t.Errorf("version %q: %d, and the answer names %q", version, resp.StatusCode, got)
		}
	}
}

// TestSupervisor_Compression: the gateway decides whether messages are compressed, and an offer alone is ignored.
func TestSupervisor_Compression(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	for _, allowed := range []string{"", "1"} {
		var read atomic.Int64
		header := http.Header{"User-Agent": {"test"}}
		if allowed != "" {
			header.Set(api.HeaderCompress, allowed)
		}
		c := r.dial(dialOption{session: "page" + allowed, deflate: true, header: header, conn: func(c net.Conn) net.Conn {
			return countingConn{c, &read}
		}})
		id := c.execute("big 100000")
		if big, ok := find(c.result(id), "display_data", id); !ok || big.Size() < 100_000 {
			t.Errorf("display data has %d bytes", big.Size())
		}
		if got := read.Load() < 50_000; got != (allowed != "") {
			t.Errorf("%s: %q: %d bytes were read", api.HeaderCompress, allowed, read.Load())
		}
	}
}

// countingConn counts what is read.
type countingConn struct {
	net.Conn
	read *atomic.Int64
}

func (c countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}
