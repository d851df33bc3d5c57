package channels

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
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
			c.wantHeard("iopub status  starting")
			first := c.wantHeard("iopub status cell0 busy",
				"iopub display_data cell0 [ekg] The kernel is starting: no GPU is free.")
			s.set(idA, api.Starting, "its image is pulled.")
			next := c.wantHeard("iopub update_display_data cell0 [ekg] The kernel is starting: its image is pulled.")
			super, conns := accepting(t, likeSupervisors)
			s.give(idA, super)
			last := c.wantHeard("iopub update_display_data cell0 <nil>")
			if first.display() != next.display() || first.display() != last.display() {
				t.Errorf("displays %s, %s, %s", first.display(), next.display(), last.display())
			}

			a := <-conns
			if a.conn.Subprotocol() != subprotocol || a.header.Get("Sec-Websocket-Extensions") != "" ||
				a.header.Get("Query") != "session_id=s&cursor="+testCursor+"&other=x" || a.header.Get("User-Agent") != "test" {
				t.Errorf("the supervisor was asked with %v", a.header)
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
	c.wantHeard("iopub status  starting")
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
			eventually(t, "the lobby has read it", func() bool { return s.lobby.Held() == want })
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

// A waiting websocket is not silent: proxies in front would end it.
func TestLobby_Pings(t *testing.T) {
	s := startServer(t)
	s.lobby.ping = 10 * time.Millisecond
	s.addStarting(idA, "")
	c := s.enter(idA, jupyter.SubprotocolV1, "")
	pinged := make(chan struct{}, 100)
	answer := c.PingHandler()
	c.SetPingHandler(func(data string) error { pinged <- struct{}{}; return answer(data) })
	var wg sync.WaitGroup
	wg.Go(func() { _, _, _ = c.ReadMessage(); _, _, _ = c.ReadMessage() })
	<-pinged
	<-pinged
	_ = c.Close()
	wg.Wait()
	s.wantNothingHeld()
}

func TestLobby_Bounds(t *testing.T) {
	t.Run("bytes of one client", func(t *testing.T) {
		s := startServer(t)
		s.addStarting(idA, "")
		c := s.enter(idA, jupyter.SubprotocolV1, "")
		c.send(jupyter.Shell, "execute_request", "fits", strings.Repeat("x", 9<<20))
		eventually(t, "it is held", func() bool { return s.lobby.Held() > 9<<20 })
		kind, frame := c.request(jupyter.Shell, "execute_request", "too much", strings.Repeat("x", 2<<20))
		_ = c.WriteMessage(kind, frame) // the other side may be closing already
		c.wantClose(1013, "more is waiting")
		s.wantNothingHeld()
	})
	t.Run("one endless frame", func(t *testing.T) {
		s := startServer(t)
		s.addStarting(idA, "")
		conn, br := s.dial(idA, func(r *http.Request) { r.Header.Set("Sec-WebSocket-Protocol", jupyter.SubprotocolV1) })
		_, _ = conn.Write([]byte{0x82, 0xff, 0x0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
		piece := make([]byte, 1<<20)
		for range 12 {
			if _, err := conn.Write(piece); err != nil {
				break
			}
		}
		b, _ := io.ReadAll(br) // a reset may follow what counts
		if !bytes.Contains(b, []byte("more is waiting")) {
			t.Errorf("got %q", b)
		}
		s.wantNothingHeld()
	})
	t.Run("messages of one client", func(t *testing.T) {
		s := startServer(t)
		s.addStarting(idA, "")
		c := s.enter(idA, "", "")
		kind, frame := c.request(jupyter.Shell, "comm_msg", "", struct{}{})
		for range lobbyMessages + 1 {
			if err := c.WriteMessage(kind, frame); err != nil {
				t.Fatal(err)
			}
		}
		c.wantClose(1013, "more is waiting")
		s.wantNothingHeld()
	})
	t.Run("bytes of all clients", func(t *testing.T) {
		s := startServer(t)
		s.addStarting(idA, "")
		s.lobby.held.Store(lobbyTotal - 10)
		c := s.enter(idA, "", "")
		c.send(jupyter.Shell, "execute_request", "a", struct{}{})
		c.wantClose(1013, "more is waiting")
		s.registry.wg.Wait()
		if n := s.lobby.Held(); n != lobbyTotal-10 {
			t.Errorf("%d bytes are counted", n)
		}
	})
	t.Run("pings are no messages and leave nothing", func(t *testing.T) {
		for _, subprotocol := range []string{"", jupyter.SubprotocolRelay} {
			s := startServer(t)
			s.addStarting(idA, "")
			c := s.enter(idA, subprotocol, "?cursor="+testCursor)
			for i := range 20_000 {
				if err := c.WriteControl(websocket.PingMessage, fmt.Appendf(nil, "%08d", i),
					time.Now().Add(20*time.Second)); err != nil {
					t.Fatal(err)
				}
			}
			frame := c.send(jupyter.Shell, "comm_msg", "", struct{}{})
			pings := make(chan struct{})
			go func() { // takes the pongs
				defer close(pings)
				_, _, _ = c.ReadMessage()
				_, _, _ = c.ReadMessage()
			}()
			super, conns := accepting(t, likeSupervisors)
			var last int64
			var since time.Time
			eventually(t, "all is read", func() bool {
				n := s.lobby.Held()
				if n != last {
					last, since = n, time.Now()
				}
				return n > int64(len(frame)) && n < int64(len(frame))+50 && time.Since(since) > 300*time.Millisecond
			})
			s.give(idA, super)
			a := <-conns
			if subprotocol != "" {
				if got := a.next(t); got != "ping 00019999" {
					t.Errorf("got %q", got)
				}
			}
			if got := a.next(t); got != string(frame) {
				t.Errorf("got %q", got)
			}
			_ = c.Close()
			<-pings
			for range a.got { // until it is gone there, too
			}
			s.wantNothingHeld()
		}
	})
}

func TestLobby_ClientGone(t *testing.T) {
	s := startServer(t)
	s.addStarting(idA, "no GPU is free")
	fds, goroutines := resources(t)
	for _, leave := range []func(*client){
		func(c *client) { _ = c.NetConn().Close() },
		func(c *client) { _ = c.NetConn().(*net.TCPConn).SetLinger(0); _ = c.NetConn().Close() },
		func(c *client) {
			_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1001, ""), time.Now().Add(time.Second))
			c.wantClose(1001, "")
			_ = c.NetConn().Close()
		},
	} {
		c := s.enter(idA, jupyter.SubprotocolV1, "")
		c.send(jupyter.Shell, "execute_request", "cell", struct{}{})
		eventually(t, "it is held", func() bool { return s.lobby.Held() > 0 })
		leave(c)
		s.wantNothingHeld()
	}
	s.http.Client().CloseIdleConnections()
	eventually(t, "descriptors and goroutines are as before", func() bool {
		f, n := resources(t)
		return f <= fds && n <= goroutines
	})
}

func TestLobby_KernelDies(t *testing.T) {
	for name, c := range map[string]struct {
		die    func(s *testServer)
		reason string
	}{
		"in its pod": {func(s *testServer) { s.set(idA, api.Dead, `image "x" does not exist`) }, `image "x" does not exist`},
		"and is gone": {func(s *testServer) {
			s.change(func() { s.kernels[idA].gone = &launcher.GoneError{ID: idA, Reason: "its node was lost"} })
		}, "its node was lost"},
		"and nobody knows why": {func(s *testServer) { s.change(func() { s.kernels[idA].gone = launcher.ErrNotFound }) },
			"it was removed"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, subprotocol := range []string{"", jupyter.SubprotocolV1} {
				s := startServer(t)
				s.addStarting(idA, "its image is pulled")
				ws := s.enter(idA, subprotocol, "")
				ws.send(jupyter.Shell, "execute_request", "cell1", struct{}{})
				ws.send(jupyter.Stdin, "input_reply", "answer", struct{}{})
				ws.send(jupyter.Shell, "comm_msg", "comm", struct{}{})
				ws.send(jupyter.Shell, "execute_request", "cell2", struct{}{})
				ws.wantHeard("iopub status  starting", "iopub status cell1 busy",
					"iopub display_data cell1 [ekg] The kernel is starting: its image is pulled.")
				c.die(s)
				ws.wantHeard("iopub update_display_data cell1 [ekg] The kernel is dead: "+c.reason+".",
					"shell execute_reply cell1 error KernelDied "+c.reason, "iopub status cell1 idle",
					"iopub status comm idle",
					"shell execute_reply cell2 error KernelDied "+c.reason, "iopub status cell2 idle",
					"iopub status  dead")
				ws.wantClose(1000, "the kernel is gone: "+c.reason)
				s.wantNothingHeld()
			}
		})
	}
	t.Run("before anything was said", func(t *testing.T) {
		s := startServer(t)
		s.addStarting(idA, "")
		ws := s.enter(idA, "", "")
		ws.send(jupyter.Shell, "execute_request", "cell", struct{}{})
		eventually(t, "it is held", func() bool { return s.lobby.Held() > 0 })
		s.set(idA, api.Dead, strings.Repeat("é", 200))
		ws.wantHeard("iopub status  starting", "iopub status cell busy",
			"iopub display_data cell [ekg] The kernel is dead: "+strings.Repeat("é", 200)+".")
		ws.wantClose(1000, "the kernel is gone: é") // and is no longer than a close frame may be
	})
	t.Run("stopped on request", func(t *testing.T) {
		s := startServer(t)
		s.addStarting(idA, "")
		ws := s.enter(idA, "", "")
		ws.wantHeard("iopub status  starting")
		s.registry.Revoke(idA, ErrKernelStopped)
		ws.wantHeard("iopub status  dead")
		ws.wantClose(1000, "the kernel is gone: it was shut down on request")
	})
}

func TestLobby_AnotherProtocol(t *testing.T) {
	for name, up := range map[string]websocket.Upgrader{
		"none": {},
		"one that was not asked for": {Error: func(http.ResponseWriter, *http.Request, int, error) {},
			Subprotocols: []string{"v2.kernel.websocket.jupyter.org"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			s.addStarting(idA, "")
			c := s.enter(idA, jupyter.SubprotocolV1, "")
			super, _ := accepting(t, up)
			s.give(idA, super)
			c.wantHeard("iopub status  starting")
			c.wantClose(1012, "the kernel's supervisor speaks another protocol")
			s.wantNothingHeld()
		})
	}
	t.Run("a supervisor that rejects", func(t *testing.T) {
		s := startServer(t)
		s.addStarting(idA, "")
		c := s.enter(idA, jupyter.SubprotocolV1, "")
		s.give(idA, func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "too many sessions", http.StatusServiceUnavailable)
		})
		c.wantHeard("iopub status  starting")
		c.wantClose(1013, "too many sessions")
	})
	t.Run("a supervisor that does not answer yet is asked again", func(t *testing.T) {
		s := startServer(t)
		s.addStarting(idA, "")
		c := s.enter(idA, jupyter.SubprotocolV1, "")
		c.wantHeard("iopub status  starting")
		super, conns := accepting(t, likeSupervisors)
		var asked atomic.Bool
		s.give(idA, func(w http.ResponseWriter, r *http.Request) {
			if !asked.Swap(true) {
				panic(http.ErrAbortHandler)
			}
			super(w, r)
		})
		<-conns
	})
}

func TestLobby_RefusesWhatASupervisorWould(t *testing.T) {
	s := startServer(t)
	s.addStarting(idA, "")
	for _, c := range []struct {
		name, subprotocol string
		kind              int
		frame             string
		code              int
	}{
		{"no JSON", "", websocket.TextMessage, "hello", 1007},
		{"no frame", jupyter.SubprotocolV1, websocket.BinaryMessage, "hello", 1007},
		{"text where bytes belong", jupyter.SubprotocolV1, websocket.TextMessage, "{}", 1003},
		{"a header that is no JSON", "", websocket.TextMessage,
			`{"header":{"msg_id":"a" x},"parent_header":{},"metadata":{},"content":{}}`, 1007},
		{"a header that is too long", "", websocket.TextMessage,
			`{"header":{"msg_id":"` + strings.Repeat("a", framing.MaxHeader) +
				`"},"parent_header":{},"metadata":{},"content":{}}`, 1007},
	} {
		t.Run(c.name, func(t *testing.T) {
			ws := s.enter(idA, c.subprotocol, "")
			if err := ws.WriteMessage(c.kind, []byte(c.frame)); err != nil {
				t.Fatal(err)
			}
			ws.wantClose(c.code, "")
		})
	}
	for name, frame := range map[string]string{"not masked": "\x81\x02{}", "a reserved kind": "\x83\x80\x00\x00\x00\x00",
		"a ping that is too long": "\x89\xfe\x00\x80\x00\x00\x00\x00"} {
		t.Run(name, func(t *testing.T) {
			ws := s.enter(idA, "", "")
			if _, err := ws.NetConn().Write([]byte(frame)); err != nil {
				t.Fatal(err)
			}
			ws.wantClose(1002, "")
		})
	}
	t.Run("a frame longer than there can be", func(t *testing.T) {
		ws := s.enter(idA, "", "")
		if _, err := ws.NetConn().Write([]byte("\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00")); err != nil {
			t.Fatal(err)
		}
		ws.wantClose(1009, "")
	})
	s.wantNothingHeld()
}

func TestLobby_Drain(t *testing.T) {
	s := startServer(t)
	s.addStarting(idA, "")
	conn, br := s.dial(idA)
	var sign [2]byte
	if _, err := io.ReadFull(br, sign[:]); err != nil {
		t.Fatal(err)
	}
	status := make([]byte, sign[1])
	if sign[1] == 126 {
		var n [2]byte
		if _, err := io.ReadFull(br, n[:]); err != nil {
			t.Fatal(err)
		}
		status = make([]byte, int(n[0])<<8|int(n[1]))
	}
	if _, err := io.ReadFull(br, status); err != nil || !bytes.Contains(status, []byte("starting")) {
		t.Fatalf("got %q, %v", status, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.registry.Drain(context.Background()) })
	// The orderly end of the stream, as for every other websocket.
	if b, err := io.ReadAll(br); err != nil || len(b) > 0 {
		t.Errorf("got %q, %v", b, err)
	}
	_ = conn.Close()
	wg.Wait()
	s.wantNothingHeld()
}

// The real thing: cells that were sent before there was a supervisor run once, in order, and their output comes back.
func TestLobby_RealSupervisor(t *testing.T) {
	for _, subprotocol := range []string{"", jupyter.SubprotocolV1} {
		t.Run("subprotocol "+subprotocol, func(t *testing.T) {
			s := startServer(t)
			s.addStarting(idA, "its image is pulled")
			dir := s.dir
			c := s.enter(idA, subprotocol, "?session_id=s")
			for i := range 5 {
				c.send(jupyter.Shell, "execute_request", fmt.Sprint("cell", i), map[string]any{
					"code": fmt.Sprint("echo line ", i), "silent": false, "store_history": true})
			}
			cfg := api.Config{Protocol: api.ProtocolVersion, KernelID: idA, SpecName: "fake",
				Argv: []string{os.Args[0], "-f", "{connection_file}"}, Env: map[string]string{fakeKernelVariable: "1"},
				WorkingDir: dir, InterruptMode: "signal", Listen: "unix:" + filepath.Join(dir, "s"), Transport: "ipc", RunDir: dir,
				ConnectionFile: filepath.Join(dir, "c.json"), EndFile: filepath.Join(dir, "end.json"), LogLimit: 64 << 20,
				StopGrace: 5 * time.Second, DeadLinger: time.Minute, RestartLimit: 1}
			l, err := supervisor.Listen(&cfg)
			if err != nil {
				t.Fatal(err)
			}
			super := supervisor.New(cfg, "test", slog.New(slog.DiscardHandler))
			var wg sync.WaitGroup
			ctx, stop := context.WithCancel(context.Background())
			defer wg.Wait()
			defer stop()
			wg.Go(func() {
				if err := supervisor.Serve(ctx, super, l); err != nil {
					t.Error(err)
				}
			})
			s.change(func() { s.kernels[idA].socket, s.kernels[idA].Stale = filepath.Join(dir, "s"), false })

			var lines, replies []string
			for len(replies) < 5 || len(lines) < 5 {
				h := c.hear()
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
		})
	}
}
