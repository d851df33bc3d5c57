package channels

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

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
		poll.Until(t, "it is held", func() bool { return s.lobby.Held() > 9<<20 })
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
	t.Run("the client that holds most goes", func(t *testing.T) {
		s := startServer(t)
		s.addStarting(idA, "")
		s.lobby.held.Store(lobbyTotal - 3<<20)
		large, small := s.enter(idA, jupyter.SubprotocolV1, ""), s.enter(idA, jupyter.SubprotocolV1, "")
		large.send(jupyter.Shell, "execute_request", "large", strings.Repeat("x", 2<<20))
		poll.Until(t, "it is held", func() bool { return s.lobby.Held() > lobbyTotal-1<<20 })
		frame := small.send(jupyter.Shell, "execute_request", "small", strings.Repeat("x", 3<<19))
		large.wantClose(1013, "more is waiting")
		super, conns := accepting(t, likeSupervisors)
		s.give(idA, super)
		if got := (<-conns).next(t); got != string(frame) {
			t.Errorf("the supervisor got %d bytes of the other client, not %d", len(got), len(frame))
		}
		if n := s.lobby.Held(); n != lobbyTotal-3<<20 {
			t.Errorf("%d bytes are counted", n)
		}
	})
	t.Run("an evicted client's bytes are freed at once", func(t *testing.T) {
		l := NewLobby()
		l.held.Store(lobbyTotal - 3<<20)
		near, far := net.Pipe()
		defer func() { _, _ = near.Close(), far.Close() }()
		c := &recorder{Conn: near, lobby: l, early: make([]byte, 4<<20)}
		c.reader = bufio.NewReader(c)
		b := make([]byte, 2<<20)
		if _, err := c.Read(b); err != nil || len(c.held) != len(b) {
			t.Fatalf("%d bytes are held, %v", len(c.held), err)
		}
		if _, err := c.Read(b); err == nil || len(c.held) != 0 || l.Held() != lobbyTotal-3<<20 {
			t.Errorf("%d bytes are held, %d count, %v", len(c.held), l.Held(), err)
		}
		c.cut(2) // a ping that was read before
		if l.Held() != lobbyTotal-3<<20 {
			t.Errorf("%d bytes count", l.Held())
		}
	})
	t.Run("the user who holds most loses a client", func(t *testing.T) {
		s := startServer(t)
		s.addStarting(idA, "")
		s.lobby.held.Store(lobbyTotal - 5<<20)
		enter := func(user string, size int) *client {
			c := s.enter(idA, jupyter.SubprotocolV1, "?user="+user)
			before := s.lobby.Held()
			c.send(jupyter.Shell, "execute_request", user, strings.Repeat("x", size))
			if user != "cyd" { // whose message exceeds the bound
				poll.Until(t, "it is held", func() bool { return s.lobby.Held()-before > int64(size) })
			}
			return c
		}
		enter("ann", 2<<20)
		enter("bob", 1<<20)
		larger := enter("bob", 5<<18)
		enter("cyd", 1<<20)
		larger.wantClose(1013, "more is waiting")
		super, conns := accepting(t, likeSupervisors)
		s.give(idA, super)
		for range 3 {
			if got := (<-conns).next(t); len(got) < 1<<20 {
				t.Errorf("the supervisor got %q", got)
			}
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
			poll.Until(t, "all is read", func() bool {
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
		poll.Until(t, "it is held", func() bool { return s.lobby.Held() > 0 })
		leave(c)
		s.wantNothingHeld()
	}
	s.http.Client().CloseIdleConnections()
	poll.Until(t, "descriptors and goroutines are as before", func() bool {
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
		"with an unknown reason": {func(s *testServer) { s.change(func() { s.kernels[idA].gone = launcher.ErrNotFound }) },
			"it was removed"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, subprotocol := range []string{"", jupyter.SubprotocolV1} {
				s := startServer(t)
				s.addStarting(idA, "its image is pulled")
				ws := s.enter(idA, subprotocol, "")
				ws.send(jupyter.Shell, "kernel_info_request", "info", struct{}{})
				ws.send(jupyter.Shell, "execute_request", "cell1", struct{}{})
				ws.send(jupyter.Stdin, "input_reply", "answer", struct{}{})
				ws.send(jupyter.Shell, "comm_msg", "comm", struct{}{})
				ws.send(jupyter.Shell, "execute_request", "cell2", struct{}{})
				ws.wantMessages("iopub status  starting", "iopub status cell1 busy",
					"iopub display_data cell1 [ekg] The kernel is starting: its image is pulled.")
				c.die(s)
				ws.wantMessages("iopub update_display_data cell1 [ekg] The kernel is dead: "+c.reason+".",
					"iopub status info idle", // no reply: see notice.Fails
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
		poll.Until(t, "it is held", func() bool { return s.lobby.Held() > 0 })
		s.set(idA, api.Dead, strings.Repeat("é", 200))
		ws.wantMessages("iopub status  starting", "iopub status cell busy",
			"iopub display_data cell [ekg] The kernel is dead: "+strings.Repeat("é", 200)+".")
		ws.wantClose(1000, "the kernel is gone: é") // and is no longer than a close frame may be
	})
	t.Run("stopped on request", func(t *testing.T) {
		s := startServer(t)
		s.addStarting(idA, "")
		ws := s.enter(idA, "", "")
		ws.wantMessages("iopub status  starting")
		s.registry.Revoke(idA, ErrKernelStopped)
		ws.wantMessages("iopub status  dead")
		ws.wantClose(1000, "the kernel is gone: it was shut down on request")
	})
}

func TestLobby_AnotherProtocol(t *testing.T) {
	for name, up := range map[string]websocket.Upgrader{
		"none": {},
		"one that was not offered": {Error: func(http.ResponseWriter, *http.Request, int, error) {},
			Subprotocols: []string{"v2.kernel.websocket.jupyter.org"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			s.addStarting(idA, "")
			c := s.enter(idA, jupyter.SubprotocolV1, "")
			super, _ := accepting(t, up)
			s.give(idA, super)
			c.wantMessages("iopub status  starting")
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
		c.wantMessages("iopub status  starting")
		c.wantClose(1013, "too many sessions")
	})
	t.Run("the lobby tries a supervisor that does not answer again", func(t *testing.T) {
		s := startServer(t)
		s.addStarting(idA, "")
		c := s.enter(idA, jupyter.SubprotocolV1, "")
		c.wantMessages("iopub status  starting")
		super, conns := accepting(t, likeSupervisors)
		var tried atomic.Bool
		s.give(idA, func(w http.ResponseWriter, r *http.Request) {
			if !tried.Swap(true) {
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
	for name, frame := range map[string]string{
		"not masked": "\x81\x02{}", "a reserved kind": "\x83\x80\x00\x00\x00\x00",
		"a ping that is too long": "\x89\xfe\x00\x80\x00\x00\x00\x00",
	} {
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
