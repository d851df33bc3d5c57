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
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/launcher"
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

func (g *testGateway) tryChannels(id, query string, change ...func(*http.Request)) (*net.TCPConn, *http.Response, *bufio.Reader) {
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
	g.fake.add(idA, "python3", launcher.Idle).upgradeWith(func(w http.ResponseWriter, r *http.Request) {
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
				_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1012, "why"), time.Now().Add(time.Second))
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

// What either side sends right behind its part of the handshake lies in readers that the copier takes over.
func TestChannels_EarlyBytes(t *testing.T) {
	g := startGateway(t, nil)
	got := make(chan string, 1)
	g.fake.add(idA, "python3", launcher.Idle).upgradeWith(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfrom the supervisor"))
		b := make([]byte, len("from the client"))
		_, _ = io.ReadFull(rw, b) // the comparison below tells
		got <- string(b)
	})
	conn, err := net.Dial("tcp", g.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	fmt.Fprintf(conn, "GET /api/kernels/%s/channels?token=%s HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\n"+
		"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\nfrom the client", idA, testToken)
	if b, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(b), "\r\n\r\nfrom the supervisor") {
		t.Errorf("the client got %q, %v", b, err)
	}
	if text := <-got; text != "from the client" {
		t.Errorf("the supervisor got %q", text)
	}
}

func TestChannels_Refuses(t *testing.T) {
	g := startGateway(t, nil)
	super := g.fake.add(idA, "python3", launcher.Idle)
	path := "/api/kernels/" + idA + "/channels"
	g.do("GET", path, "").want(t, 400, "")
	g.do("HEAD", path, "", asUpgrade).want(t, 400, "")
	g.do("POST", path, "", asUpgrade).want(t, 405, "")
	g.do("GET", path, "body", asUpgrade).want(t, 400, "")
	if super.sent() != "" {
		t.Errorf("the supervisor was asked: %s", super.sent())
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
			fmt.Fprint(w, `{"reason": "Service Unavailable", "message": "too many sessions"}`)
		}, 503, "too many sessions"},
		{func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Set-Cookie", "evil=1")
			w.WriteHeader(400)
			fmt.Fprint(w, `{"reason": "Bad Request", "message": "bad key"}`)
		}, 400, "bad key"},
	} {
		super.upgradeWith(c.answer)
		r := g.do("GET", path, "", asUpgrade).want(t, c.status, c.text)
		if r.Header.Get("Set-Cookie") != "" {
			t.Error("a cookie came through")
		}
	}
}

// resources counts what a leak would show in: descriptors and goroutines of this process.
func resources(t *testing.T) (fds, goroutines int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries), runtime.NumGoroutine()
}

// A client that never reads must not keep its connection once the other side, or the gateway, is done with it. The
// supervisor floods, so every buffer on the way is full when it happens; nobody is left who would notice by reading.
func TestChannels_ClientThatNeverReads(t *testing.T) {
	const clients = 3
	for name, end := range map[string]func(g *testGateway, super *fakeSupervisor, conns []net.Conn){
		"supervisor closes": func(_ *testGateway, _ *fakeSupervisor, conns []net.Conn) {
			for _, c := range conns {
				_ = c.Close()
			}
		},
		"supervisor half-closes": func(_ *testGateway, _ *fakeSupervisor, conns []net.Conn) {
			for _, c := range conns {
				_ = c.(*net.UnixConn).CloseWrite()
			}
		},
		"supervisor dies":    func(_ *testGateway, super *fakeSupervisor, conns []net.Conn) { super.close(); abort(conns) },
		"connection revoked": func(g *testGateway, _ *fakeSupervisor, _ []net.Conn) { g.conns.revoke(idA, errors.New("revoked")) },
		"kernel deleted": func(g *testGateway, _ *fakeSupervisor, _ []net.Conn) {
			g.do("DELETE", "/api/kernels/"+idA, "").want(g.t, 204, "")
		},
		"gateway drained": func(g *testGateway, _ *fakeSupervisor, _ []net.Conn) { g.Drain(context.Background()) },
		"gateway drained at once": func(g *testGateway, _ *fakeSupervisor, _ []net.Conn) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			g.Drain(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := startGateway(t, nil)
			super := g.fake.add(idA, "python3", launcher.Idle)
			var mu sync.Mutex
			var conns []net.Conn
			super.channels = func(conn net.Conn, _ io.Reader) {
				mu.Lock()
				conns = append(conns, conn)
				mu.Unlock()
				flood := make([]byte, 64<<10)
				for {
					if _, err := conn.Write(flood); err != nil {
						return
					}
				}
			}
			fds, goroutines := resources(t)
			own := make([]*net.TCPConn, clients)
			for i := range own {
				own[i], _ = g.dialChannels(idA, "")
			}
			g.waitStalled(clients)
			began := time.Now()
			mu.Lock()
			held := append([]net.Conn(nil), conns...)
			mu.Unlock()
			end(g, super, held)
			g.conns.wg.Wait()
			if took := time.Since(began); took > stallTime*2+flushTime*2 {
				t.Errorf("it took %v", took)
			}
			if took := time.Since(began); took < flushTime/2 && name == "connection revoked" {
				t.Errorf("after %v nobody had the time to read", took)
			}
			for _, c := range own {
				_ = c.Close()
			}
			abort(held)
			g.transport.CloseIdleConnections()
			g.http.Client().CloseIdleConnections()
			eventually(t, "descriptors and goroutines are as before", func() bool {
				f, n := resources(t)
				return f <= fds && n <= goroutines
			})
		})
	}
}

func abort(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// waitStalled waits until n connections carry nothing any more.
func (g *testGateway) waitStalled(n int) {
	g.t.Helper()
	eventually(g.t, "all connections are registered", func() bool {
		g.conns.mu.Lock()
		defer g.conns.mu.Unlock()
		return len(g.conns.byKernel[idA]) == n
	})
	// The flood's writers block once all buffers are full; what the system holds for the gateway's sockets then stays
	// the same.
	var last string
	var since time.Time
	eventually(g.t, "nothing moves any more", func() bool {
		now := g.queues()
		if now != last {
			last, since = now, time.Now()
		}
		return now != "" && time.Since(since) > 200*time.Millisecond
	})
}

// queues returns what the system holds for the gateway's own TCP sockets, as text.
func (g *testGateway) queues() string {
	g.t.Helper()
	b, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		g.t.Fatal(err)
	}
	port := fmt.Sprintf(":%04X", g.http.Listener.Addr().(*net.TCPAddr).Port)
	var out strings.Builder
	for line := range strings.SplitSeq(string(b), "\n") {
		// Local address, remote address, state, send and receive queue.
		f := strings.Fields(line)
		if len(f) > 4 && f[3] == "01" && (strings.HasSuffix(f[1], port) || strings.HasSuffix(f[2], port)) {
			out.WriteString(f[1] + f[2] + f[4] + ";")
		}
	}
	return out.String()
}

// A slow client is no dead one: as long as the supervisor stays, it may take its time.
func TestChannels_SlowClientGetsEverything(t *testing.T) {
	g := startGateway(t, nil)
	const size = 8 << 20
	g.fake.add(idA, "python3", launcher.Idle).channels = func(conn net.Conn, early io.Reader) {
		_, _ = conn.Write(make([]byte, size))
		_, _ = io.Copy(io.Discard, early) // stays until the client leaves
	}
	conn, br := g.dialChannels(idA, "")
	g.waitStalled(1)
	<-time.After(2*stallTime + 500*time.Millisecond) // it is looked at twice meanwhile
	if n, err := io.CopyN(io.Discard, br, size); err != nil {
		t.Errorf("got %d of %d bytes: %v", n, size, err)
	}
	_ = conn.Close()
	g.conns.wg.Wait()
}

// What was read before the end is still delivered, within flushTime.
func TestChannels_FlushesAtTheEnd(t *testing.T) {
	g := startGateway(t, nil)
	const size = 3 << 20
	g.fake.add(idA, "python3", launcher.Idle).channels = func(conn net.Conn, _ io.Reader) {
		_, _ = conn.Write(make([]byte, size))
	}
	_, br := g.dialChannels(idA, "")
	if n, err := io.Copy(io.Discard, br); err != nil || n != size {
		t.Errorf("got %d of %d bytes: %v", n, size, err)
	}
}

// A client that is still sending when the supervisor ends must get what the supervisor had said, a close frame for one.
// Closing a socket with unread bytes would reset the connection, and the client's system would throw all of it away.
func TestChannels_FlushesToAClientThatSends(t *testing.T) {
	g := startGateway(t, nil)
	const size = 150 << 10
	g.fake.add(idA, "python3", launcher.Idle).channels = func(conn net.Conn, early io.Reader) {
		_, _ = io.CopyN(io.Discard, early, 1000)
		_, _ = conn.Write(make([]byte, size))
	}
	conn, br := g.dialChannels(idA, "")
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			if _, err := conn.Write(make([]byte, 1000)); err != nil {
				return
			}
		}
	})
	<-time.After(flushTime / 4) // it begins to read when all is over
	if n, err := io.Copy(io.Discard, br); err != nil || n != size {
		t.Errorf("got %d of %d bytes: %v", n, size, err)
	}
	_ = conn.Close()
	wg.Wait()
}

func TestChannels_Drain(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.add(idA, "python3", launcher.Idle)
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

// A connection that is revoked during its handshake must not come into being behind the back of who revoked it.
func TestChannels_RevokedDuringTheHandshake(t *testing.T) {
	g := startGateway(t, nil)
	asked, release := make(chan struct{}), make(chan struct{})
	g.fake.add(idA, "python3", launcher.Idle).upgradeWith(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		select {
		case <-r.Context().Done():
		case <-release:
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() { g.do("GET", "/api/kernels/"+idA+"/channels", "", asUpgrade).want(t, 503, "") })
	<-asked
	g.conns.revoke(idA, errors.New("revoked"))
	wg.Wait()
	close(release)
	g.conns.wg.Wait()
}

// tcpPair returns two ends of a connection over loopback.
func tcpPair(b *testing.B) (net.Conn, net.Conn) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	x, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	y, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _, _ = x.Close(), y.Close() })
	return x, y
}

// unixPair returns two ends of a connection over a unix socket.
func unixPair(b *testing.B) (net.Conn, net.Conn) {
	b.Helper()
	l, err := net.Listen("unix", b.TempDir()+"/s")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	x, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	y, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _, _ = x.Close(), y.Close() })
	return x, y
}

// BenchmarkSplice compares the copier with no hop at all and with io.Copy, which uses splice(2) between these sockets:
// throughput of large writes, and round trips of one small message.
func BenchmarkSplice(b *testing.B) {
	join := map[string]func(client, super net.Conn) func(){
		"splice": func(client, super net.Conn) func() {
			s := newSplice(client, super, nil, nil)
			return func() { _ = s.run(context.Background()) }
		},
		"io.Copy": func(client, super net.Conn) func() {
			return func() {
				var wg sync.WaitGroup
				wg.Go(func() { _, _ = io.Copy(client, super); closeWrite(client) })
				wg.Go(func() { _, _ = io.Copy(super, client); closeWrite(super) })
				wg.Wait()
			}
		},
		"direct": nil,
	}
	for name, hop := range join {
		ends := func(b *testing.B) (client, super net.Conn, stop func()) {
			client, far := tcpPair(b)
			if hop == nil {
				return client, far, func() {}
			}
			near, super := unixPair(b)
			var wg sync.WaitGroup
			wg.Go(hop(far, near))
			return client, super, func() { _, _ = client.Close(), super.Close(); wg.Wait() }
		}
		b.Run(name+"/throughput", func(b *testing.B) {
			client, super, stop := ends(b)
			defer stop()
			const piece = 64 << 10
			buf := make([]byte, piece)
			b.SetBytes(piece)
			b.ReportAllocs()
			var wg sync.WaitGroup
			wg.Go(func() {
				for range b.N {
					if _, err := super.Write(buf); err != nil {
						b.Error(err)
						return
					}
				}
			})
			if _, err := io.CopyN(io.Discard, struct{ io.Reader }{client}, int64(b.N)*piece); err != nil {
				b.Error(err)
			}
			wg.Wait()
		})
		b.Run(name+"/roundtrip", func(b *testing.B) {
			client, super, stop := ends(b)
			defer stop()
			b.ReportAllocs()
			var wg sync.WaitGroup
			wg.Go(func() {
				buf := make([]byte, 500)
				for range b.N {
					if _, err := io.ReadFull(super, buf); err != nil {
						b.Error(err)
						return
					}
					if _, err := super.Write(buf); err != nil {
						b.Error(err)
						return
					}
				}
			})
			buf := make([]byte, 500)
			for range b.N {
				if _, err := client.Write(buf); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(client, buf); err != nil {
					b.Fatal(err)
				}
			}
			wg.Wait()
		})
	}
}
