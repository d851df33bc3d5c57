package channels

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
)

// resources counts the descriptors and goroutines of this process, which a leak would raise.
func resources(t *testing.T) (fds, goroutines int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries), runtime.NumGoroutine()
}

// A client that never reads must not keep its connection once the supervisor or the gateway has ended it. The
// supervisor floods, so every buffer on the way is full then, and no reader notices the end.
func TestSplice_ClientThatNeverReads(t *testing.T) {
	const clients = 3
	for name, end := range map[string]func(s *testServer, conns []net.Conn){
		"supervisor closes": func(_ *testServer, conns []net.Conn) {
			for _, c := range conns {
				_ = c.Close()
			}
		},
		"supervisor half-closes": func(_ *testServer, conns []net.Conn) {
			for _, c := range conns {
				_ = c.(*net.UnixConn).CloseWrite()
			}
		},
		"supervisor dies": func(s *testServer, conns []net.Conn) {
			_ = s.kernels[idA].server.Close()
			for _, c := range conns {
				_ = c.Close()
			}
		},
		"connections revoked": func(s *testServer, _ []net.Conn) { s.registry.Revoke(idA, errors.New("revoked")) },
		"registry drained":    func(s *testServer, _ []net.Conn) { s.registry.Drain(context.Background()) },
		"registry drained at once": func(s *testServer, _ []net.Conn) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			s.registry.Drain(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			var mu sync.Mutex
			var conns []net.Conn
			s.supervise(idA, func(conn net.Conn, _ io.Reader) {
				mu.Lock()
				conns = append(conns, conn)
				mu.Unlock()
				flood := make([]byte, 64<<10)
				for {
					if _, err := conn.Write(flood); err != nil {
						return
					}
				}
			})
			fds, goroutines := resources(t)
			own := make([]*net.TCPConn, clients)
			for i := range own {
				own[i], _ = s.dial(idA)
			}
			s.waitStalled(clients)
			began := time.Now()
			mu.Lock()
			held := append([]net.Conn(nil), conns...)
			mu.Unlock()
			end(s, held)
			s.registry.wg.Wait()
			if took := time.Since(began); took > stallTime*2+FlushTime*2 {
				t.Errorf("it took %v", took)
			}
			if took := time.Since(began); took < FlushTime/2 && name == "connections revoked" {
				t.Errorf("after %v no client had the time to read", took)
			}
			for _, c := range own {
				_ = c.Close()
			}
			for _, c := range held {
				_ = c.Close()
			}
			poll.Until(t, "descriptors and goroutines are as before", func() bool {
				f, n := resources(t)
				return f <= fds && n <= goroutines
			})
		})
	}
}

// waitStalled waits until n connections carry nothing any more.
func (s *testServer) waitStalled(n int) {
	s.t.Helper()
	poll.Until(s.t, "all connections are registered", func() bool {
		open, _, _ := s.registry.Traffic()
		return open == n
	})
	// The flood's writers block once all buffers are full. The queues of the server's sockets then stay the same.
	var last string
	var since time.Time
	poll.Until(s.t, "nothing moves any more", func() bool {
		now := s.queues()
		if now != last {
			last, since = now, time.Now()
		}
		return now != "" && time.Since(since) > 200*time.Millisecond
	})
}

// queues returns the lengths of the queues of the server's own TCP sockets, as text.
func (s *testServer) queues() string {
	s.t.Helper()
	b, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		s.t.Fatal(err)
	}
	port := fmt.Sprintf(":%04X", s.http.Listener.Addr().(*net.TCPAddr).Port)
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

// A slow client keeps its connection as long as the supervisor stays.
func TestSplice_SlowClientGetsEverything(t *testing.T) {
	s := startServer(t)
	const size = 8 << 20
	s.supervise(idA, func(conn net.Conn, early io.Reader) {
		_, _ = conn.Write(make([]byte, size))
		_, _ = io.Copy(io.Discard, early) // stays until the client leaves
	})
	conn, br := s.dial(idA)
	s.waitStalled(1)
	<-time.After(2*stallTime + 500*time.Millisecond) // long enough for two checks
	if n, err := io.CopyN(io.Discard, br, size); err != nil {
		t.Errorf("got %d of %d bytes: %v", n, size, err)
	}
	_ = conn.Close()
	s.registry.wg.Wait()
}

// Bytes that were read before the end are still delivered, within FlushTime.
func TestSplice_FlushesAtTheEnd(t *testing.T) {
	s := startServer(t)
	const size = 3 << 20
	s.supervise(idA, func(conn net.Conn, _ io.Reader) {
		_, _ = conn.Write(make([]byte, size))
	})
	_, br := s.dial(idA)
	if n, err := io.Copy(io.Discard, br); err != nil || n != size {
		t.Errorf("got %d of %d bytes: %v", n, size, err)
	}
}

// A client that is still sending when the supervisor ends must get all that the supervisor had sent, such as a close
// frame. Closing a socket with unread bytes would reset the connection, and the client's system would discard all of
// it.
func TestSplice_FlushesToAClientThatSends(t *testing.T) {
	s := startServer(t)
	const size = 150 << 10
	s.supervise(idA, func(conn net.Conn, early io.Reader) {
		_, _ = io.CopyN(io.Discard, early, 1000)
		_, _ = conn.Write(make([]byte, size))
	})
	conn, br := s.dial(idA)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			if _, err := conn.Write(make([]byte, 1000)); err != nil {
				return
			}
		}
	})
	<-time.After(FlushTime / 4) // it begins to read after the end
	if n, err := io.Copy(io.Discard, br); err != nil || n != size {
		t.Errorf("got %d of %d bytes: %v", n, size, err)
	}
	_ = conn.Close()
	wg.Wait()
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
			return func() { _ = s.Run(context.Background()) }
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

// broken is a connection whose first read panics.
type broken struct {
	net.Conn
	reads atomic.Int64
}

func (b *broken) Read([]byte) (int, error) {
	if b.reads.Add(1) == 1 {
		panic("bytes of a hostile client")
	}
	return 0, io.EOF
}

// A panic in a copier ends its connection, on both sides, and nothing else.
func TestSplice_Panic(t *testing.T) {
	client, near := net.Pipe()
	supervisor, far := net.Pipe()
	defer near.Close() //nolint:errcheck // of a pipe
	defer far.Close()  //nolint:errcheck // of a pipe
	err := newSplice(&broken{Conn: client}, supervisor, nil, nil).Run(t.Context())
	var caught *goroutines.PanicError
	if !errors.As(err, &caught) {
		t.Errorf("it has ended with %v", err)
	}
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the supervisor's side: %v", err)
	}
}
