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

// jammedConn takes as many bytes as room says, then none before any deadline.
type jammedConn struct {
	net.Conn
	room int
	took []byte
}

func (c *jammedConn) SetWriteDeadline(time.Time) error { return nil }

func (c *jammedConn) Write(p []byte) (int, error) {
	n := min(c.room, len(p))
	c.room -= n
	c.took = append(c.took, p[:n]...)
	if n < len(p) {
		return n, os.ErrDeadlineExceeded
	}
	return n, nil
}

// TestZMTPConn_HalfAPong would catch a message that is written into the middle of a PONG, or a second PONG that is.
func TestZMTPConn_HalfAPong(t *testing.T) {
	stuck := &jammedConn{room: 5}
	c := newZMTPConn(stuck, dealer, socketLimits{}.withDefaults())
	c.answer([]byte("one"))
	c.answer([]byte("two"))
	stuck.room = 1 << 20
	c.answer([]byte("three"))
	for _, m := range [][]byte{[]byte("small"), make([]byte, coalesceLimit+1)} {
		if err := c.batch(func() error {
			_, err := c.Write(m)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	c.answer([]byte("four"))
	want := "\x04\x08\x04PONGone" + "small" + strings.Repeat("\x00", coalesceLimit+1) + "\x04\x09\x04PONGfour"
	if got := string(stuck.took); got != want {
		t.Errorf("got %.60q, want %.60q", got, want)
	}
	t.Run("before a big message", func(t *testing.T) {
		stuck.room, stuck.took = 5, nil
		c.answer([]byte("five"))
		stuck.room = 1 << 20
		if err := c.batch(func() error {
			_, err := c.Write(make([]byte, coalesceLimit+1))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if want := "\x04\x09\x04PONGfive\x00"; !strings.HasPrefix(string(stuck.took), want) {
			t.Errorf("got %.60q, want %.60q first", stuck.took, want)
		}
	})
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
