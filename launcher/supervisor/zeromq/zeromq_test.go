package zeromq

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
	"strings"
	"sync"
	"testing"
	"time"
)

// testLimit is how long a test waits for another process.
const testLimit = 20 * time.Second

func mustDial(t *testing.T, endpoint string, kind Kind, limits Limits) Socket {
	t.Helper()
	s, err := Dial(context.Background(), endpoint, kind, []byte("me"), limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestDial_EndsInTime(t *testing.T) {
	t.Run("greeting byte by byte", func(t *testing.T) {
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
		_, err := Dial(t.Context(), endpoint, Dealer, nil, Limits{Handshake: 200 * time.Millisecond})
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
			io.Copy(io.Discard, c) //nolint:errcheck // until our side closes it
		})
		if _, err := Dial(ctx, endpoint, Dealer, nil, Limits{}); !errors.Is(err, reason) {
			t.Errorf("got %v, want %v", err, reason)
		}
	})
	t.Run("no listener", func(t *testing.T) {
		_, err := Dial(t.Context(), "ipc://"+filepath.Join(t.TempDir(), "no"), Dealer, nil, Limits{})
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v, want not exist", err)
		}
	})
	t.Run("bad arguments", func(t *testing.T) {
		for _, endpoint := range []string{"", "tcp://", "udp://127.0.0.1:1", "127.0.0.1:1"} {
			if _, err := Dial(t.Context(), endpoint, Dealer, nil, Limits{}); err == nil {
				t.Errorf("endpoint %q accepted", endpoint)
			}
		}
		for _, id := range [][]byte{{0, 1}, make([]byte, 256)} {
			if _, err := Dial(t.Context(), "tcp://127.0.0.1:1", Dealer, id, Limits{}); err == nil ||
				!strings.Contains(err.Error(), "identity") {
				t.Errorf("identity %q: got %v", id, err)
			}
		}
		if _, err := Dial(t.Context(), "tcp://127.0.0.1:1", 7, nil, Limits{}); err == nil ||
			!strings.Contains(err.Error(), "unknown kind") {
			t.Errorf("unknown kind: got %v", err)
		}
	})
}

// TestSocket_Send checks the bytes of messages, and that each message needs one write.
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
	s := mustDial(t, endpoint, Dealer, Limits{})
	count := &countedConn{Conn: s.(*socket).conn.Conn}
	s.(*socket).conn.Conn = count
	for i, m := range messages {
		count.writes = 0
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
		// countedConn is not a TCP connection, so a vector takes several writes. Messages up to coalesceLimit use no
		// vector.
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
	mustDial(t, endpoint, Sub, Limits{})
	if err := <-done; err != nil || !bytes.Equal(got, []byte{0, 1, 1}) {
		t.Errorf("got %v, %v, want a message with one byte 1", got, err)
	}
}

// TestSocket_PeerDoesNotRead would catch a Send that never returns, and one that gives up on a slow peer.
func TestSocket_PeerDoesNotRead(t *testing.T) {
	t.Run("never reads", func(t *testing.T) {
		zmqGoroutines(t)
		endpoint := zmqPeer(t, func(c net.Conn) {
			zmqShake(c, "ROUTER")
			c.Write(zmqFrame(0, []byte("up"))) //nolint:errcheck // seen by the test
		})
		s := mustDial(t, endpoint, Dealer, Limits{Write: 100 * time.Millisecond})
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
			t.Error("Recv succeeds after half a message was sent")
		}
	})
	t.Run("reads slowly", func(t *testing.T) {
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
		s := mustDial(t, endpoint, Dealer, Limits{Write: time.Second})
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
	t.Run("pings but does not read", func(t *testing.T) {
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
		s := mustDial(t, endpoint, Dealer, Limits{Write: 300 * time.Millisecond})
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
		<-sent //nolint:errcheck // any error ends the sender
		close(fill)
	})
}

// TestSocket_Ping would catch a PONG that is missing, lacks the context, or interrupts a message.
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
			for { // reads whole frames until the pong
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
	s := mustDial(t, endpoint, Dealer, Limits{})
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
	_ = s.Close()
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

// TestZMTPConn_HalfAPong would catch a message or a second PONG that is written into the middle of a PONG.
func TestZMTPConn_HalfAPong(t *testing.T) {
	stuck := &jammedConn{room: 5}
	c := newZMTPConn(stuck, Dealer, Limits{}.withDefaults())
	c.answer([]byte("one"))
	c.answer([]byte("two"))
	stuck.room = 1 << 20
	c.answer([]byte("three"))
	for _, m := range [][]byte{[]byte("small"), make([]byte, coalesceLimit+1)} {
		if err := c.send([][]byte{m}); err != nil {
			t.Fatal(err)
		}
	}
	c.answer([]byte("four"))
	want := "\x04\x08\x04PONGone" + string(zmqFrame(0, []byte("small"))) +
		string(zmqFrame(0, make([]byte, coalesceLimit+1))) + "\x04\x09\x04PONGfour"
	if got := string(stuck.took); got != want {
		t.Errorf("got %.60q, want %.60q", got, want)
	}
	t.Run("before a big message", func(t *testing.T) {
		stuck.room, stuck.took = 5, nil
		c.answer([]byte("five"))
		stuck.room = 1 << 20
		if err := c.send([][]byte{make([]byte, coalesceLimit+1)}); err != nil {
			t.Fatal(err)
		}
		if want := "\x04\x09\x04PONGfive\x02\x00"; !strings.HasPrefix(string(stuck.took), want) {
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
	s := mustDial(t, endpoint, Dealer, Limits{})
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
