package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// dialChannels opens a websocket by hand, so that a test has the bare bytes, and checks that it was accepted.
func (g *testGateway) dialChannels(id, query string, change ...func(*http.Request)) (*net.TCPConn, *bufio.Reader) {
	g.t.Helper()
	conn, resp, br := g.tryChannels(id, query, change...)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		g.t.Fatalf("got %d, want 101", resp.StatusCode)
	}
	return conn, br
}

func (g *testGateway) tryChannels(id, query string, change ...func(*http.Request)) (*net.TCPConn, *http.Response,
	*bufio.Reader) {
	g.t.Helper()
	r, err := http.NewRequest("GET", g.http.URL+"/api/kernels/"+id+"/channels"+query, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	r.Header.Set("Authorization", "token "+testToken)
	asUpgrade(r)
	for _, f := range change {
		f(r)
	}
	conn, err := net.Dial("tcp", r.URL.Host)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	if err := r.Write(conn); err != nil {
		g.t.Fatal(err)
	}
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, r)
	if err != nil {
		g.t.Fatal(err)
	}
	return conn.(*net.TCPConn), resp, br
}

func TestChannels_CarriesMessages(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.add(idA, "python3", api.Idle).upgradeWith(func(w http.ResponseWriter, r *http.Request) {
		up := websocket.Upgrader{Subprotocols: []string{"v1.kernel.websocket.jupyter.org"}, EnableCompression: true}
		conn, err := up.Upgrade(w, r, http.Header{"Set-Cookie": {"evil=1"}})
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		for {
			kind, b, err := conn.ReadMessage()
			if err != nil {
				return
			}
			if string(b) == "close" {
				_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1012, "why"),
					time.Now().Add(time.Second))
				return
			}
			if err := conn.WriteMessage(kind, b); err != nil {
				t.Error(err)
				return
			}
		}
	})
	dialer := websocket.Dialer{Subprotocols: []string{"v1.kernel.websocket.jupyter.org"}, EnableCompression: true}
	conn, resp, err := dialer.Dial("ws"+g.http.URL[4:]+"/api/kernels/"+idA+"/channels?token="+testToken, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if conn.Subprotocol() != "v1.kernel.websocket.jupyter.org" || resp.Header.Get("Set-Cookie") != "" {
		t.Errorf("subprotocol %q, header %v", conn.Subprotocol(), resp.Header)
	}
	for _, size := range []int{0, 1, 4096, 4097, 100_000, 10 << 20} {
		want := bytes.Repeat([]byte("é1234567"), size/8+1)
		if err := conn.WriteMessage(websocket.BinaryMessage, want); err != nil {
			t.Fatal(err)
		}
		if _, got, err := conn.ReadMessage(); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes came back as %d: %v", len(want), len(got), err)
		}
	}
	// The close frame must reach the client although the connection ends right behind it.
	if err := conn.WriteMessage(websocket.TextMessage, []byte("close")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, 1012) {
		t.Errorf("got %v, want close 1012", err)
	}
}

// Bytes that either side sends right behind its part of the handshake lie in buffered readers, and must not be lost.
func TestChannels_EarlyBytes(t *testing.T) {
	g := startGateway(t, nil)
	got := make(chan string, 1)
	g.fake.add(idA, "python3", api.Idle).upgradeWith(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: " +
			"Upgrade\r\n\r\nfrom the supervisor"))
		b := make([]byte, len("from the client"))
		_, _ = io.ReadFull(rw, b) // the comparison below tells
		got <- string(b)
	})
	conn, err := net.Dial("tcp", g.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn,
		"GET /api/kernels/%s/channels?token=%s HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\n"+
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\nfrom the client", idA, testToken)
	if b, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(b), "\r\n\r\nfrom the supervisor") {
		t.Errorf("the client got %q, %v", b, err)
	}
	if text := <-got; text != "from the client" {
		t.Errorf("the supervisor got %q", text)
	}
}

func TestChannels_Refuses(t *testing.T) {
	g := startGateway(t, nil)
	super := g.fake.add(idA, "python3", api.Idle)
	path := "/api/kernels/" + idA + "/channels"
	g.do("GET", path, "").want(t, 400, "")
	g.do("HEAD", path, "", asUpgrade).want(t, 400, "")
	g.do("POST", path, "", asUpgrade).want(t, 405, "")
	g.do("GET", path, "body", asUpgrade).want(t, 400, "")
	for _, key := range []string{"", "x", "dGhlIHNhbXBsZSBub25jZQ", "dGhlIHNhbXBsZSBub25jZTEyMzQ="} {
		g.do("GET", path, "", asUpgrade, func(r *http.Request) { r.Header.Set("Sec-WebSocket-Key", key) }).want(t, 400, "")
	}
	g.wantVersion(idA)
	if super.sent() != "" {
		t.Errorf("the supervisor got a request: %s", super.sent())
	}
	for _, c := range []struct {
		answer http.HandlerFunc
		status int
		text   string
	}{
		{func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(421) }, 503, ""},
		{func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }, 503, ""},
		{func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }, 503, ""},
		{func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 503, ""},
		{func(w http.ResponseWriter, _ *http.Request) {
			for i := range 5000 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 100))
			}
			w.WriteHeader(400)
		}, 503, ""},
		{func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(503)
			_, _ = fmt.Fprint(w, `{"reason": "Service Unavailable", "message": "too many sessions"}`)
		}, 503, "too many sessions"},
		{func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Set-Cookie", "evil=1")
			w.WriteHeader(400)
			_, _ = fmt.Fprint(w, `{"reason": "Bad Request", "message": "bad key"}`)
		}, 400, "bad key"},
	} {
		super.upgradeWith(c.answer)
		r := g.do("GET", path, "", asUpgrade).want(t, c.status, c.text)
		if r.Header.Get("Set-Cookie") != "" {
			t.Error("a cookie came through")
		}
	}
}

func TestChannels_Drain(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.add(idA, "python3", api.Idle)
	var readers []*bufio.Reader
	for range 20 {
		_, br := g.dialChannels(idA, "")
		readers = append(readers, br)
	}
	began := time.Now()
	g.Drain(context.Background())
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
	for _, br := range readers {
		// An orderly end of the stream and not one byte before it: no close frame, no reset.
		if b, err := io.ReadAll(br); err != nil || len(b) > 0 {
			t.Fatalf("got %q, %v", b, err)
		}
	}
	_, resp, _ := g.tryChannels(idA, "")
	if resp.StatusCode != 503 {
		t.Errorf("after it: got %d, want 503", resp.StatusCode)
	}
	g.do("GET", "/api/kernels", "").want(t, 200, idA)
}

// A connection that is revoked during its handshake must not be accepted after that.
func TestChannels_RevokedDuringTheHandshake(t *testing.T) {
	g := startGateway(t, nil)
	dialed, release := make(chan struct{}), make(chan struct{})
	g.fake.add(idA, "python3", api.Idle).upgradeWith(func(_ http.ResponseWriter, r *http.Request) {
		close(dialed)
		select {
		case <-r.Context().Done():
		case <-release:
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() { g.do("GET", "/api/kernels/"+idA+"/channels", "", asUpgrade).want(t, 503, "") })
	<-dialed
	g.websockets.Revoke(idA, errors.New("revoked"))
	wg.Wait()
	close(release)
	g.wantNoWebsockets()
}

// wantNoWebsockets waits until all websockets are closed.
func (g *testGateway) wantNoWebsockets() {
	g.t.Helper()
	poll.Until(g.t, "all websockets are closed", func() bool {
		open, _, _ := g.websockets.Traffic()
		return open == 0
	})
}

func TestChannels_KernelDeleted(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.add(idA, "python3", api.Idle)
	_, br := g.dialChannels(idA, "")
	g.do("DELETE", "/api/kernels/"+idA, "").want(t, 204, "")
	if b, err := io.ReadAll(br); err != nil || len(b) > 0 {
		t.Errorf("got %q, %v", b, err)
	}
	g.wantNoWebsockets()
}

// enterLobby connects a client to a kernel without a supervisor, and reads that the kernel is starting.
func (g *testGateway) enterLobby(id string) *websocket.Conn {
	g.t.Helper()
	conn, resp, err := websocket.DefaultDialer.Dial("ws"+g.http.URL[4:]+"/api/kernels/"+id+"/channels?token="+testToken,
		nil)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	if resp.Header.Get(api.HeaderRequestID) == "" {
		g.t.Errorf("answered with %v", resp.Header)
	}
	if _, b, err := conn.ReadMessage(); err != nil || !strings.Contains(string(b), `"execution_state":"starting"`) {
		g.t.Fatalf("got %q, %v", b, err)
	}
	return conn
}

// A client that waits for its kernel's supervisor is joined to it, or gets the reason: the kernel was
// deleted, or the supervisor rejects it.
func TestLobby_Ends(t *testing.T) {
	t.Run("supervisor comes", func(t *testing.T) {
		g := startGateway(t, nil)
		g.fake.addStarting(idA, "no GPU is free")
		conn := g.enterLobby(idA)
		if err := conn.WriteMessage(websocket.TextMessage,
			[]byte(`{"header":{},"parent_header":{},"metadata":{},"content":{}}`)); err != nil {
			t.Fatal(err)
		}
		got := make(chan string, 1)
		g.fake.give(idA, func(s *fakeSupervisor) {
			s.upgradeWith(func(w http.ResponseWriter, r *http.Request) {
				up := websocket.Upgrader{}
				super, err := up.Upgrade(w, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = super.Close() }()
				_, b, _ := super.ReadMessage() // the comparison below tells
				got <- string(b)
			})
		})
		if b := <-got; !strings.HasPrefix(b, `{"header":{}`) {
			t.Errorf("the supervisor got %q", b)
		}
	})
	t.Run("kernel is deleted", func(t *testing.T) {
		g := startGateway(t, nil)
		g.fake.addStarting(idA, "")
		conn := g.enterLobby(idA)
		g.do("DELETE", "/api/kernels/"+idA, "").want(t, 204, "")
		wantClose(t, conn, websocket.CloseNormalClosure, "the kernel is gone: it was ")
	})
	t.Run("supervisor rejects", func(t *testing.T) {
		g := startGateway(t, nil)
		g.fake.addStarting(idA, "")
		conn := g.enterLobby(idA)
		g.fake.give(idA, func(s *fakeSupervisor) {
			s.upgradeWith(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(503)
				_, _ = fmt.Fprint(w, `{"reason": "Service Unavailable", "message": "too many sessions"}`)
			})
		})
		wantClose(t, conn, websocket.CloseTryAgainLater, "too many sessions")
	})
	t.Run("invalid handshake", func(t *testing.T) {
		g := startGateway(t, nil)
		g.fake.addStarting(idA, "")
		g.do("GET", "/api/kernels/"+idA+"/channels", "", asUpgrade, func(r *http.Request) {
			r.Header.Set("Sec-WebSocket-Key", "12")
		}).want(t, 400, "")
		g.wantVersion(idA)
	})
}

// wantVersion checks that handshakes with another version of the websocket protocol, or with none, are answered with
// 426 and the version that is spoken.
func (g *testGateway) wantVersion(id string) {
	g.t.Helper()
	for _, version := range []string{"", "0", "7", "8", "12", "14", "13.1", "x"} {
		r := g.do("GET", "/api/kernels/"+id+"/channels", "", asUpgrade, func(r *http.Request) {
			r.Header.Set("Sec-WebSocket-Version", version)
		}).want(g.t, 426, "version 13")
		if got := r.Header.Get("Sec-WebSocket-Version"); got != "13" {
			g.t.Errorf("version %q: the answer names %q", version, got)
		}
	}
}

// wantClose reads until the connection ends, which must be with the code and a text that begins as given.
func wantClose(t *testing.T, conn *websocket.Conn, code int, text string) {
	t.Helper()
	for {
		_, _, err := conn.ReadMessage()
		var closed *websocket.CloseError
		switch {
		case err == nil:
			continue
		case !errors.As(err, &closed) || closed.Code != code || !strings.HasPrefix(closed.Text, text):
			t.Errorf("got %v, want %d %q", err, code, text)
		}
		_ = conn.NetConn().Close() // the other side waits for it
		return
	}
}

func TestLobby_RESTWhileStarting(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.addStarting(idA, "no GPU is free")
	path := "/api/kernels/" + idA
	g.do("GET", path, "").want(t, 200, `"execution_state":"starting","connections":0,"reason":"no GPU is free"`)
	g.do("GET", "/api/kernels", "").want(t, 200, `"reason":"no GPU is free"`)
	g.do("POST", path+"/interrupt", "").want(t, 409, "The kernel is starting: no GPU is free.")
	g.do("POST", path+"/restart", "").want(t, 409, "The kernel is starting: no GPU is free.")
	g.do("GET", path+"/log", "").want(t, 503, "The kernel is starting: no GPU is free.")
	g.do("DELETE", path, "").want(t, 204, "")
	g.do("GET", path, "").want(t, 404, "")
}
