package supervisor

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// The other end of these tests is written out byte by byte, so that it can be as wrong as a kernel can make it.

// zmqPeer listens as a kernel would, on loopback, and gives the one connection it gets to play. It waits for play to
// end, with the connection closed under it, when the test ends.
func zmqPeer(t *testing.T, play func(net.Conn)) (endpoint string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conn net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		mu.Lock()
		conn = c
		mu.Unlock()
		play(c)
	}()
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		if conn != nil {
			conn.Close()
		}
		mu.Unlock()
		<-done
	})
	return "tcp://" + l.Addr().String()
}

func zmqGreeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[9], g[10], g[11] = 0xff, 0x7f, 3, 1
	copy(g[12:], "NULL")
	return g
}

func zmqFrame(flags byte, body []byte) []byte {
	if len(body) > 255 {
		return append(binary.BigEndian.AppendUint64([]byte{flags | flagLong}, uint64(len(body))), body...)
	}
	return append([]byte{flags, byte(len(body))}, body...)
}

// zmqLong is the header of a frame that claims a length.
func zmqLong(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | flagLong}, size)
}

func zmqProperty(name, value string) []byte {
	p := append([]byte{byte(len(name))}, name...)
	return append(binary.BigEndian.AppendUint32(p, uint32(len(value))), value...)
}

func zmqCommand(name string, body []byte) []byte {
	return zmqFrame(flagCommand, append(append([]byte{byte(len(name))}, name...), body...))
}

func zmqReady(typ string) []byte {
	return zmqCommand("READY", append(zmqProperty("Socket-Type", typ), zmqProperty("Identity", "")...))
}

// zmqShake does the peer's part of the handshake, and returns what our side sent as its READY.
func zmqShake(c net.Conn, typ string) []byte {
	if _, err := c.Write(append(zmqGreeting(), zmqReady(typ)...)); err != nil {
		return nil
	}
	head := make([]byte, greetingSize+2)
	if _, err := io.ReadFull(c, head); err != nil {
		return nil
	}
	body := make([]byte, head[greetingSize+1])
	if _, err := io.ReadFull(c, body); err != nil {
		return nil
	}
	return body
}

// zmqGoroutines fails the test if it ends with more goroutines than it began with.
func zmqGoroutines(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() { // registered first, so it runs after the peer is gone
		deadline := time.Now().Add(5 * time.Second)
		for runtime.NumGoroutine() > before {
			if time.Now().After(deadline) {
				buf := make([]byte, 1<<16)
				t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
				return
			}
			runtime.Gosched()
		}
	})
}

func mustDial(t *testing.T, endpoint string, kind socketKind, limits socketLimits) socket {
	t.Helper()
	s, err := dialSocket(context.Background(), endpoint, kind, []byte("me"), limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// allocated returns how many bytes f allocated, by whatever goroutine.
func allocated(f func()) uint64 {
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	f()
	runtime.ReadMemStats(&b)
	return b.TotalAlloc - a.TotalAlloc
}

// TestDialSocket_Hostile would catch a handshake that never ends, panics, or believes a length.
func TestDialSocket_Hostile(t *testing.T) {
	greet := func(rest ...[]byte) []byte { return append(zmqGreeting(), bytes.Join(rest, nil)...) }
	ready := func(body []byte) []byte { return greet(zmqCommand("READY", body)) }
	mechanism := zmqGreeting()
	copy(mechanism[12:], "CURVE")
	old := zmqGreeting()
	old[10] = 1
	tests := []struct {
		name string
		send []byte
		want string
	}{
		{"no greeting", nil, "no complete handshake"},
		{"half a greeting", zmqGreeting()[:32], "no complete handshake"},
		{"http", []byte("HTTP/1.1 400 Bad Request\r\n\r\n" + strings.Repeat("x", 64)), "greeting"},
		{"garbage greeting", bytes.Repeat([]byte{0xa5}, 4096), "greeting"},
		{"zmtp 1", old, "version"},
		{"other mechanism", mechanism, "mechanism"},
		{"no ready", greet(), "no complete handshake"},
		{"ready that claims 2^62 bytes", greet(zmqLong(flagCommand, 1<<62)), "frame of 4611686018427387904 bytes"},
		{"ready that claims 2^64-1 bytes", greet(zmqLong(flagCommand, 1<<64-1)), "frame of 18446744073709551615 bytes"},
		{"ready that claims 65 KiB", greet(zmqLong(flagCommand, 65<<10)), "at most 65536 allowed"},
		{"ready of 1 MiB", ready(make([]byte, 1<<20)), "at most 65536 allowed"},
		{"ready of zeros", ready(make([]byte, 100)), "broken properties"},
		{"ready cut off in a name", ready([]byte{200, 'a'}), "broken properties"},
		{"ready cut off in a length", ready([]byte{1, 'a', 0, 0}), "broken properties"},
		{"ready cut off in a value", ready([]byte("\x01a\xff\xff\xff\xffx")), "broken properties"},
		{"ready with a strange name", ready(zmqProperty("\u017focket-Type", "ROUTER")), "broken properties"},
		{"ready without a socket type", ready(zmqProperty("Identity", "x")), `type ""`},
		{"ready with an unknown socket type", ready(zmqProperty("socket-type", "BANANA")), `type "BANANA"`},
		{"ready of the wrong socket type", ready(zmqProperty("Socket-Type", "PUB")), `type "PUB"`},
		{"ready with two socket types", ready(bytes.Repeat(zmqProperty("Socket-Type", "ROUTER"), 2)), "two socket types"},
		{"empty command", greet([]byte{flagCommand, 0}), "without a name"},
		{"command shorter than its name", greet([]byte{flagCommand, 2, 255, 'R'}), "without a name"},
		{"error", greet(zmqCommand("ERROR", []byte("\x04nope"))), `refuses the connection: "nope"`},
		{"other command", greet(zmqCommand("PING", []byte{0, 0})), "in place of READY"},
		{"message before ready", greet(zmqFrame(0, []byte("hi"))), "before READY"},
		{"command in several frames", greet([]byte{flagCommand | flagMore, 6}), "several frames"},
		{"reserved flags", greet([]byte{0x84, 6}), "flags"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			zmqGoroutines(t)
			endpoint := zmqPeer(t, func(c net.Conn) {
				c.Write(tt.send)       //nolint:errcheck // our side may have hung up already, which is right
				io.Copy(io.Discard, c) //nolint:errcheck // until our side hangs up
			})
			var err error
			grown := allocated(func() {
				var s socket
				s, err = dialSocket(t.Context(), endpoint, dealer, nil, socketLimits{Handshake: 200 * time.Millisecond})
				if err == nil {
					s.Close()
				}
			})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want one with %q", err, tt.want)
			}
			if timeout := errors.Is(err, context.DeadlineExceeded); timeout == errors.Is(err, errZMTP) {
				t.Errorf("got error %v, want errZMTP in it, or a deadline", err)
			}
			if grown > 4<<20 {
				t.Errorf("%d bytes allocated", grown)
			}
		})
	}
}

func TestDialSocket_EndsInTime(t *testing.T) {
	t.Run("greeting in drips", func(t *testing.T) {
		zmqGoroutines(t)
		endpoint := zmqPeer(t, func(c net.Conn) {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for _, b := range append(zmqGreeting(), zmqReady("ROUTER")...) {
				<-tick.C
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
			}
		})
		start := time.Now()
		_, err := dialSocket(t.Context(), endpoint, dealer, nil, socketLimits{Handshake: 200 * time.Millisecond})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a deadline", err)
		}
		if d := time.Since(start); d > 1500*time.Millisecond {
			t.Errorf("took %v", d)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		zmqGoroutines(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("kernel is gone")
		endpoint := zmqPeer(t, func(c net.Conn) {
			cancel(reason)
			io.Copy(io.Discard, c) //nolint:errcheck // until our side hangs up
		})
		if _, err := dialSocket(ctx, endpoint, dealer, nil, socketLimits{}); !errors.Is(err, reason) {
			t.Errorf("got %v, want %v", err, reason)
		}
	})
	t.Run("nobody listens", func(t *testing.T) {
		if _, err := dialSocket(t.Context(), "ipc://"+filepath.Join(t.TempDir(), "no"), dealer, nil, socketLimits{}); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v, want not exist", err)
		}
	})
	t.Run("bad arguments", func(t *testing.T) {
		for _, endpoint := range []string{"", "tcp://", "udp://127.0.0.1:1", "127.0.0.1:1"} {
			if _, err := dialSocket(t.Context(), endpoint, dealer, nil, socketLimits{}); err == nil {
				t.Errorf("endpoint %q accepted", endpoint)
			}
		}
		for _, id := range [][]byte{{0, 1}, make([]byte, 256)} {
			if _, err := dialSocket(t.Context(), "tcp://127.0.0.1:1", dealer, id, socketLimits{}); err == nil || !strings.Contains(err.Error(), "identity") {
				t.Errorf("identity %q: got %v", id, err)
			}
		}
		if _, err := dialSocket(t.Context(), "tcp://127.0.0.1:1", 7, nil, socketLimits{}); err == nil || !strings.Contains(err.Error(), "unknown kind") {
			t.Errorf("unknown kind: got %v", err)
		}
	})
}

// TestSocket_HostileTraffic would catch a length that is believed, a message that never ends and commands that cost
// us more than they cost the peer.
func TestSocket_HostileTraffic(t *testing.T) {
	limits := socketLimits{Frame: 1 << 20, Message: 2 << 20, Frames: 1000}
	tests := []struct {
		name   string
		send   []byte
		repeat bool // without end
		want   string
	}{
		{"length 2^62", zmqLong(0, 1<<62), false, "frame of 4611686018427387904 bytes"},
		{"length 2^63", zmqLong(0, 1<<63), false, "frame of 9223372036854775808 bytes"},
		{"length 8 GiB", zmqLong(0, 8<<30), false, "frame of 8589934592 bytes"},
		{"length one over the limit", zmqLong(0, 1<<20+1), false, "at most 1048576"},
		{"message over the limit", bytes.Join([][]byte{zmqFrame(flagMore, make([]byte, 1<<20)), zmqFrame(flagMore, make([]byte, 1<<20)), zmqFrame(0, []byte{1})}, nil), false, "more than 2097152 bytes"},
		{"endless small frames", []byte{flagMore, 1, 'x', flagMore, 0}, true, "more than 1000 frames"},
		{"endless commands", zmqCommand("WHAT", []byte("ever")), true, "commands a second"},
		{"endless big commands", zmqCommand("WHAT", make([]byte, 65000)), true, "commands a second"},
		{"endless pings", zmqCommand("PING", []byte{0, 100, 'a'}), true, "commands a second"},
		{"command of 65 KiB", zmqLong(flagCommand, 65<<10), false, "at most 65536 allowed"},
		{"command in a message", append([]byte{flagMore, 1, 'x'}, zmqCommand("PING", []byte{0, 0})...), false, "within a message"},
		{"command without a name", []byte{flagCommand, 1, 9}, false, "without a name"},
		{"ping with a long context", zmqCommand("PING", make([]byte, 2+17)), false, "PING of"},
		{"ping without a ttl", zmqCommand("PING", []byte{0}), false, "PING of"},
		{"reserved flags", []byte{0x08, 1, 'x'}, false, "flags 0x08"},
		{"closed between messages", nil, false, "EOF"},
		{"closed in a header", []byte{flagLong, 0, 0}, false, "EOF"},
		{"closed in a frame", append(zmqLong(0, 1000), "abc"...), false, "EOF"},
		{"closed in a message", []byte{flagMore, 1, 'x'}, false, "EOF"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			zmqGoroutines(t)
			endpoint := zmqPeer(t, func(c net.Conn) {
				zmqShake(c, "PUB")
				c.Write(zmqFrame(0, []byte("first"))) //nolint:errcheck // seen by the test
				for {
					if _, err := c.Write(tt.send); err != nil {
						return
					}
					if !tt.repeat {
						break
					}
				}
				if tt.want == "EOF" {
					c.(*net.TCPConn).CloseWrite() //nolint:errcheck // seen by the test
				}
				io.Copy(io.Discard, c) //nolint:errcheck // until our side hangs up
			})
			s := mustDial(t, endpoint, sub, limits)
			if m, err := s.Recv(); err != nil || len(m) != 1 || string(m[0]) != "first" {
				t.Fatalf("first message: got %q, %v", m, err)
			}
			var m [][]byte
			var err error
			grown := allocated(func() { m, err = s.Recv() })
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %q, %v, want an error with %q", m, err, tt.want)
			}
			if tt.want != "EOF" && !errors.Is(err, errZMTP) {
				t.Errorf("got %v, want errZMTP in it", err)
			}
			if grown > 40<<20 { // 256 commands of 64 KiB are the most expensive
				t.Errorf("%d bytes allocated", grown)
			}
			if _, again := s.Recv(); again != err {
				t.Errorf("second Recv gives %v, want the first error again", again)
			}
			if err := s.Send([][]byte{{1}}); err == nil {
				t.Error("a dead socket sends")
			}
		})
	}
}

// TestSocket_Send looks at the bytes: what the peer must see of a message, and that it needs one write.
func TestSocket_Send(t *testing.T) {
	big := bytes.Repeat([]byte("big"), 100_000)
	messages := [][][]byte{
		{[]byte("one")},
		{{}, []byte("ping")},
		{[]byte("a"), {}, bytes.Repeat([]byte("b"), 255), bytes.Repeat([]byte("c"), 256), []byte("d")},
		{[]byte("small"), big, []byte("small"), big},
	}
	var want []byte
	for _, m := range messages {
		for i, f := range m {
			flags := byte(flagMore)
			if i == len(m)-1 {
				flags = 0
			}
			want = append(want, zmqFrame(flags, f)...)
		}
	}
	got := make([]byte, len(want))
	var ready []byte
	done := make(chan error, 1)
	endpoint := zmqPeer(t, func(c net.Conn) {
		ready = zmqShake(c, "ROUTER")
		_, err := io.ReadFull(c, got)
		done <- err
	})
	s := mustDial(t, endpoint, dealer, socketLimits{})
	count := &countedConn{Conn: s.(*zmqSocket).conn.Conn}
	s.(*zmqSocket).conn.Conn = count
	for i, m := range messages {
		count.writes = 0
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
		// countedConn is no TCP connection, so a vector arrives in pieces; up to coalesceLimit there is none.
		if i < 3 && count.writes != 1 {
			t.Errorf("message %d took %d writes, want 1", i, count.writes)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the messages' bytes differ: got %.200q, want %.200q", got, want)
	}
	for _, p := range [][]byte{zmqProperty("Socket-Type", "DEALER"), zmqProperty("Identity", "me")} {
		if !bytes.Contains(ready, p) {
			t.Errorf("READY is %q, without %q", ready, p)
		}
	}
	if err := s.Send(nil); err == nil {
		t.Error("a message without frames is sent")
	}
}

type countedConn struct {
	net.Conn
	writes int
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.writes++
	return c.Conn.Write(p)
}

func TestSocket_Subscribes(t *testing.T) {
	got := make([]byte, 3)
	done := make(chan error, 1)
	endpoint := zmqPeer(t, func(c net.Conn) {
		zmqShake(c, "XPUB")
		_, err := io.ReadFull(c, got)
		done <- err
	})
	mustDial(t, endpoint, sub, socketLimits{})
	if err := <-done; err != nil || !bytes.Equal(got, []byte{0, 1, 1}) {
		t.Errorf("got %v, %v, want a message with one byte 1", got, err)
	}
}

// TestSocket_PeerDoesNotRead would catch a Send that waits for ever, and one that gives up on a peer that is only slow.
func TestSocket_PeerDoesNotRead(t *testing.T) {
	t.Run("at all", func(t *testing.T) {
		zmqGoroutines(t)
		endpoint := zmqPeer(t, func(c net.Conn) {
			zmqShake(c, "ROUTER")
			c.Write(zmqFrame(0, []byte("up"))) //nolint:errcheck // seen by the test
		})
		s := mustDial(t, endpoint, dealer, socketLimits{Write: 100 * time.Millisecond})
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		start := time.Now()
		for range 4 {
			wg.Go(func() {
				for {
					if s.Send([][]byte{make([]byte, 1<<20)}) != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("took %v", d)
		}
		if err := s.Send([][]byte{{1}}); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v, want the reason of the first failure", err)
		}
		if _, err := s.Recv(); err == nil {
			t.Error("Recv goes on after half a message was sent")
		}
	})
	t.Run("but slowly", func(t *testing.T) {
		const size = 8 << 20
		done := make(chan error, 1)
		endpoint := zmqPeer(t, func(c net.Conn) {
			c.(*net.TCPConn).SetReadBuffer(64 << 10) //nolint:errcheck // only makes the test quicker
			zmqShake(c, "ROUTER")
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			var err error
			for n := 0; err == nil && n < size+9; {
				<-tick.C
				var m int
				m, err = c.Read(make([]byte, 32<<10))
				n += m
			}
			done <- err
		})
		s := mustDial(t, endpoint, dealer, socketLimits{Write: time.Second})
		start := time.Now()
		if err := s.Send([][]byte{make([]byte, size)}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d < time.Second {
			t.Logf("the peer was not slow enough to prove much: %v", d)
		}
	})
	t.Run("but pings", func(t *testing.T) {
		zmqGoroutines(t)
		ping := zmqCommand("PING", []byte("\x00\x640123456789abcdef"))
		fill := make(chan struct{})
		filled := make(chan struct{})
		endpoint := zmqPeer(t, func(c net.Conn) {
			zmqShake(c, "ROUTER")
			<-filled
			c.Write(append(ping, zmqFrame(0, []byte("after"))...)) //nolint:errcheck // seen by the test
			<-fill
		})
		s := mustDial(t, endpoint, dealer, socketLimits{Write: 300 * time.Millisecond})
		sent := make(chan error, 1)
		go func() {
			for {
				if err := s.Send([][]byte{make([]byte, 1<<20)}); err != nil {
					sent <- err
					return
				}
				select {
				case <-filled:
				default:
					close(filled)
				}
			}
		}()
		if m, err := s.Recv(); err == nil && string(m[0]) != "after" {
			t.Errorf("got %q, want the message behind the ping", m)
		}
		<-sent
		close(fill)
	})
}

// TestSocket_Ping would catch a PONG that is missing, that lacks the context, or that falls into a message.
func TestSocket_Ping(t *testing.T) {
	const pings = 50
	got := make(chan string, pings)
	endpoint := zmqPeer(t, func(c net.Conn) {
		defer close(got)
		zmqShake(c, "ROUTER")
		for i := range pings {
			if _, err := c.Write(zmqCommand("PING", fmt.Appendf([]byte{0, 1}, "c%02d", i))); err != nil {
				return
			}
			for { // whole frames, whatever is sent beside them, until the pong
				head := make([]byte, 2)
				if _, err := io.ReadFull(c, head); err != nil {
					return
				}
				size := uint64(head[1])
				if head[0]&flagLong != 0 {
					rest := make([]byte, 7)
					if _, err := io.ReadFull(c, rest); err != nil {
						return
					}
					size = binary.BigEndian.Uint64(append(head[1:2:2], rest...))
				}
				body := make([]byte, size)
				if _, err := io.ReadFull(c, body); err != nil {
					return
				}
				if head[0]&flagCommand != 0 {
					got <- string(body)
					break
				}
			}
		}
		c.Write(zmqFrame(0, []byte("end"))) //nolint:errcheck // seen by the test
	})
	s := mustDial(t, endpoint, dealer, socketLimits{})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, size := range []int{10, 1000, 100_000} {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if s.Send([][]byte{make([]byte, size), []byte("x")}) != nil {
					return
				}
			}
		})
	}
	m, err := s.Recv()
	if err != nil || string(m[0]) != "end" {
		t.Errorf("got %q, %v, want the message after all pings", m, err)
	}
	close(stop)
	s.Close()
	wg.Wait()
	n := 0
	for body := range got {
		if want := fmt.Sprintf("\x04PONGc%02d", n); body != want {
			t.Errorf("got %q, want %q", body, want)
		}
		n++
	}
	if n != pings {
		t.Errorf("%d pongs, want %d", n, pings)
	}
}

func TestSocket_Close(t *testing.T) {
	zmqGoroutines(t)
	endpoint := zmqPeer(t, func(c net.Conn) {
		zmqShake(c, "ROUTER")
		c.Read(make([]byte, 1)) //nolint:errcheck // keeps the connection until the test ends
	})
	s := mustDial(t, endpoint, dealer, socketLimits{})
	ended := make(chan error, 2)
	go func() {
		_, err := s.Recv()
		ended <- err
	}()
	go func() {
		for {
			if err := s.Send([][]byte{make([]byte, 1<<20)}); err != nil {
				ended <- err
				return
			}
		}
	}()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	for range 2 {
		select {
		case err := <-ended:
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("got %v, want closed", err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("Close does not unblock")
		}
	}
}
