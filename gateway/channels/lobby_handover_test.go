package channels

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/listener"
)

func TestLobby_HandsOver(t *testing.T) {
	for _, subprotocol := range []string{"", jupyter.SubprotocolV1, jupyter.SubprotocolRelay} {
		t.Run("subprotocol "+subprotocol, func(t *testing.T) {
			s := startServer(t)
			s.addStarting(idA, "no GPU is free")
			c := s.enter(idA, subprotocol, "?session_id=s&cursor="+testCursor+"&other=x")
			var pongs []string
			c.SetPongHandler(func(data string) error { pongs = append(pongs, data); return nil })
			relay := subprotocol == jupyter.SubprotocolRelay

			var sent []string
			for i := range 3 {
				if err := c.WriteControl(websocket.PingMessage, []byte(fmt.Sprint(i)), time.Now().Add(time.Second)); err != nil {
					t.Fatal(err)
				}
				sent = append(sent, string(c.send(jupyter.Shell, "kernel_info_request", fmt.Sprint("info", i), struct{}{})))
				if err := c.WriteControl(websocket.PongMessage, []byte("any"), time.Now().Add(time.Second)); err != nil {
					t.Fatal(err)
				}
				code := strings.Repeat("é", 3000*i)
				sent = append(sent, string(c.send(jupyter.Shell, "execute_request", fmt.Sprint("cell", i),
					map[string]string{"code": code})))
				if relay && i == 2 {
					// The newest ping stays where it was: what stands before it is what its answer proves.
					sent = slices.Insert(sent, len(sent)-2, "ping 2")
				}
			}
			c.wantMessages("iopub status  starting")
			first := c.wantMessages("iopub status cell0 busy",
				"iopub display_data cell0 [ekg] The kernel is starting: no GPU of 8 is free.")
			s.set(idA, api.Starting, "its image is pulled.")
			next := c.wantMessages("iopub update_display_data cell0 [ekg] The kernel is starting: its image is pulled.")
			super, conns := accepting(t, likeSupervisors)
			s.give(idA, super)
			last := c.wantMessages("iopub update_display_data cell0 <nil>")
			if first.display() != next.display() || first.display() != last.display() {
				t.Errorf("displays %s, %s, %s", first.display(), next.display(), last.display())
			}

			a := <-conns
			if a.conn.Subprotocol() != subprotocol || a.header.Get("Sec-Websocket-Extensions") != "" ||
				a.header.Get("Query") != "session_id=s&cursor="+testCursor+"&other=x" || a.header.Get("User-Agent") != "test" {
				t.Errorf("the supervisor got a request with %v", a.header)
			}
			for i, want := range sent {
				if got := a.next(t); got != want {
					t.Fatalf("message %d: got %.200q, want %.200q", i, got, want)
				}
			}
			if want := map[bool]string{false: "[0 1 2]", true: "[]"}[relay]; fmt.Sprint(pongs) != want {
				t.Errorf("pongs %v, want %s", pongs, want)
			}
			// From now on bytes are copied, in both directions.
			frame := c.send(jupyter.Shell, "execute_request", "later", struct{}{})
			if got := a.next(t); got != string(frame) {
				t.Errorf("got %q", got)
			}
			if err := a.conn.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
				t.Fatal(err)
			}
			if _, b, err := c.ReadMessage(); err != nil || string(b) != "hello" {
				t.Errorf("got %q, %v", b, err)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			for range a.got { // until it is gone there, too
			}
			s.wantNothingHeld()
		})
	}
}

// A start that takes no time leaves no trace in the cell.
func TestLobby_SaysNothingOfAQuickStart(t *testing.T) {
	s := startServer(t)
	s.addStarting(idA, "")
	c := s.enter(idA, jupyter.SubprotocolV1, "")
	c.send(jupyter.Shell, "execute_request", "cell", struct{}{})
	super, conns := accepting(t, likeSupervisors)
	began := time.Now()
	s.give(idA, super)
	a := <-conns
	if took := time.Since(began); took > lobbyLook/2 {
		t.Errorf("the supervisor was noticed after %v", took)
	}
	if err := a.conn.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	c.wantMessages("iopub status  starting")
	if _, b, err := c.ReadMessage(); err != nil || string(b) != "hello" {
		t.Errorf("got %q, %v", b, err)
	}
}

// The change from the lobby to the copier may fall anywhere in a frame, and the first frame may come with the
// handshake.
func TestLobby_HandsOverWithinAFrame(t *testing.T) {
	s := startServer(t)
	secure := httptest.NewTLSServer(http.HandlerFunc(s.serve))
	t.Cleanup(secure.Close)
	dials := map[string]func() (net.Conn, error){
		"tcp": func() (net.Conn, error) { return net.Dial("tcp", s.http.Listener.Addr().String()) },
		"tls": func() (net.Conn, error) {
			return tls.Dial("tcp", secure.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		},
	}
	frame := func(text string) []byte { // masked with zeros, and long enough for the second form of a length
		head := []byte{0x81, 0x80 | 126, byte(len(text) >> 8), byte(len(text)), 0, 0, 0, 0}
		return append(head, text...)
	}
	whole := `{"header":{"msg_id":"a","msg_type":"execute_request"},"parent_header":{},"metadata":{},"content":{"code":"` +
		strings.Repeat("x", 200) + `"}}`
	for name, dial := range dials {
		for _, at := range []int{1, 2, 3, 4, 7, 8, 9, 100} {
			id := fmt.Sprintf("%s%02x", idA[:len(idA)-2], at)
			s.addStarting(id, "")
			conn, err := dial()
			if err != nil {
				t.Fatal(err)
			}
			all := frame(whole)
			_, _ = fmt.Fprintf(conn, "GET /%s HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\n"+
				"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n%s%s", id, all, all[:at])
			want := int64(len(all) + at)
			poll.Until(t, "the lobby has read it", func() bool { return s.lobby.Held() == want })
			super, conns := accepting(t, likeSupervisors)
			s.give(id, super)
			a := <-conns
			if got := a.next(t); got != whole {
				t.Errorf("%s, cut at %d: the first message came as %q", name, at, got)
			}
			if _, err := conn.Write(all[at:]); err != nil {
				t.Fatal(err)
			}
			if got := a.next(t); got != whole {
				t.Errorf("%s, cut at %d: the second message came as %q", name, at, got)
			}
			_ = conn.Close()
			for range a.got { // until it is gone there, too
			}
			s.wantNothingHeld()
		}
	}
}

// superviseReal gives kernel A a real supervisor, with the fake kernel, until the test ends.
func (s *testServer) superviseReal(t *testing.T) {
	t.Helper()
	dir := s.dir
	cfg := api.Config{Protocol: api.ProtocolVersion, KernelID: idA, SpecName: "fake",
		Argv: []string{os.Args[0], "-f", "{connection_file}"}, Env: map[string]string{fakeKernelVariable: "1"},
		WorkingDir: dir, InterruptMode: "signal", Listen: "unix:" + filepath.Join(dir, "s"), Transport: "ipc", RunDir: dir,
		ConnectionFile: filepath.Join(dir, "c.json"), EndFile: filepath.Join(dir, "end.json"), LogLimit: 64 << 20,
		StopGrace: 5 * time.Second, DeadLinger: time.Minute, RestartLimit: 1}
	l, err := listener.Open(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	super := supervisor.New(cfg, "test", slog.New(slog.DiscardHandler))
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); wg.Wait() })
	wg.Go(func() {
		if err := supervisor.Serve(ctx, super, l); err != nil {
			t.Error(err)
		}
	})
	s.change(func() { s.kernels[idA].socket, s.kernels[idA].Stale = filepath.Join(dir, "s"), false })
}

// The real thing: cells that were sent before there was a supervisor run once, in order, and their output comes back.
func TestLobby_RealSupervisor(t *testing.T) {
	for _, subprotocol := range []string{"", jupyter.SubprotocolV1} {
		t.Run("subprotocol "+subprotocol, func(t *testing.T) {
			s := startServer(t)
			s.addStarting(idA, "its image is pulled")
			c := s.enter(idA, subprotocol, "?session_id=s")
			for i := range 5 {
				c.send(jupyter.Shell, "execute_request", fmt.Sprint("cell", i), map[string]any{
					"code": fmt.Sprint("echo line ", i), "silent": false, "store_history": true})
			}
			s.superviseReal(t)

			var lines, replies []string
			for len(replies) < 5 || len(lines) < 5 {
				h := c.receive()
				switch h.msgType {
				case "stream":
					lines = append(lines, fmt.Sprint(h.parent, " ", strings.TrimSpace(fmt.Sprint(h.content["text"]))))
				case "execute_reply":
					replies = append(replies, fmt.Sprint(h.parent, " ", h.content["status"]))
				}
			}
			if got := fmt.Sprint(replies); got != "[cell0 ok cell1 ok cell2 ok cell3 ok cell4 ok]" {
				t.Errorf("replies %s", got)
			}
			if got := fmt.Sprint(lines); got != "[cell0 line 0 cell1 line 1 cell2 line 2 cell3 line 3 cell4 line 4]" {
				t.Errorf("output %s", got)
			}

			c.send(jupyter.Shell, "execute_request", "flood", map[string]any{"code": "flood 200000"})
			for m := c.receive(); m.msgType != "display_data"; {
				m = c.receive()
			}
			closing := websocket.FormatCloseMessage(websocket.CloseGoingAway, "")
			if err := c.WriteControl(websocket.CloseMessage, closing, time.Now().Add(20*time.Second)); err != nil {
				t.Fatal(err)
			}
			c.wantClose(websocket.CloseGoingAway, "") // while output flows
		})
	}
}

// TestLobby_ControlFrameWithinMessage: control frames between the fragments of a message (RFC 6455, section 5.4) are
// answered, and the supervisor gets the whole message.
func TestLobby_ControlFrameWithinMessage(t *testing.T) {
	for _, subprotocol := range []string{"", jupyter.SubprotocolV1, jupyter.SubprotocolRelay} {
		t.Run("subprotocol "+subprotocol, func(t *testing.T) {
			s := startServer(t)
			s.addStarting(idA, "")
			c := s.enter(idA, subprotocol, "?cursor="+testCursor)
			kind, frame := c.request(jupyter.Shell, "execute_request", "cell",
				map[string]string{"code": strings.Repeat("x", 30000)})
			w, err := c.NextWriter(kind)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				if _, err := w.Write(frame[i*9000 : (i+1)*9000]); err != nil {
					t.Fatal(err)
				}
				for _, control := range []int{websocket.PingMessage, websocket.PongMessage} {
					if err := c.WriteControl(control, []byte(fmt.Sprint(i)), time.Now().Add(time.Second)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := w.Write(frame[27000:]); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			c.wantMessages("iopub status  starting", "iopub status cell busy")
			super, conns := accepting(t, likeSupervisors)
			s.give(idA, super)
			a := <-conns
			if subprotocol == jupyter.SubprotocolRelay {
				if got := a.next(t); got != "ping 2" {
					t.Errorf("got %.100q, want the newest ping", got)
				}
			}
			if got := a.next(t); got != string(frame) {
				t.Errorf("got %d bytes, want %d", len(got), len(frame))
			}
			_ = c.Close() // the test is over
			s.wantNothingHeld()
		})
	}
}
