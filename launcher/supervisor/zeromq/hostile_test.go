package zeromq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"
)

// allocated returns how many bytes all goroutines allocated while f ran.
func allocated(f func()) uint64 {
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	f()
	runtime.ReadMemStats(&b)
	return b.TotalAlloc - a.TotalAlloc
}

// TestDial_Hostile would catch a handshake that never ends, panics, or trusts a length.
func TestDial_Hostile(t *testing.T) {
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
		{"error", greet(zmqCommand("ERROR", []byte("\x04nope"))), `rejects the connection: "nope"`},
		{"other command", greet(zmqCommand("PING", []byte{0, 0})), "instead of READY"},
		{"message before ready", greet(zmqFrame(0, []byte("hi"))), "before READY"},
		{"command in several frames", greet([]byte{flagCommand | flagMore, 6}), "several frames"},
		{"reserved flags", greet([]byte{0x84, 6}), "flags"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			zmqGoroutines(t)
			endpoint := zmqPeer(t, func(c net.Conn) {
				c.Write(tt.send)       //nolint:errcheck // our side may have closed it already, which is right
				io.Copy(io.Discard, c) //nolint:errcheck // until our side closes it
			})
			var err error
			grown := allocated(func() {
				var s Socket
				s, err = Dial(t.Context(), endpoint, Dealer, nil, Limits{Handshake: 200 * time.Millisecond})
				if err == nil {
					_ = s.Close()
				}
			})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want one with %q", err, tt.want)
			}
			if timeout := errors.Is(err, context.DeadlineExceeded); timeout == errors.Is(err, ErrProtocol) {
				t.Errorf("got error %v, want ErrProtocol in it, or a deadline", err)
			}
			if grown > 4<<20 {
				t.Errorf("%d bytes allocated", grown)
			}
		})
	}
}

// TestSocket_HostileTraffic: no length is trusted, and no command costs us more than the peer.
func TestSocket_HostileTraffic(t *testing.T) {
	limits := Limits{Frame: 1 << 20, Message: 2 << 20, Frames: 1000}
	tests := []struct {
		name   string
		send   []byte
		repeat bool // until the connection breaks
		want   string
	}{
		{"length 2^62", zmqLong(0, 1<<62), false, "frame of 4611686018427387904 bytes"},
		{"length 2^63", zmqLong(0, 1<<63), false, "frame of 9223372036854775808 bytes"},
		{"endless commands", zmqCommand("WHAT", []byte("ever")), true, "commands a second"},
		{"endless big commands", zmqCommand("WHAT", make([]byte, 65000)), true, "commands a second"},
		{"endless pings", zmqCommand("PING", []byte{0, 100, 'a'}), true, "commands a second"},
		{"command of 65 KiB", zmqLong(flagCommand, 65<<10), false, "at most 65536 allowed"},
		{"endless commands in a message", append([]byte{flagMore, 1, 'x'},
			bytes.Repeat(zmqCommand("WHAT", nil), 2*commandBurst)...), false, "commands a second"},
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
				io.Copy(io.Discard, c) //nolint:errcheck // until our side closes it
			})
			s := mustDial(t, endpoint, Sub, limits)
			if m, err := s.Recv(); err != nil || len(m) != 1 || string(m[0]) != "first" {
				t.Fatalf("first message: got %q, %v", m, err)
			}
			var m [][]byte
			var err error
			grown := allocated(func() { m, err = s.Recv() })
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %q, %v, want an error with %q", m, err, tt.want)
			}
			if tt.want != "EOF" && !errors.Is(err, ErrProtocol) {
				t.Errorf("got %v, want ErrProtocol in it", err)
			}
			if grown > aheadLimit+40<<20 { // read ahead, and 256 commands of 64 KiB
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

// TestSocket_TooLarge: a message beyond the limits is discarded as it arrives. The frames before the excess are
// returned with the message's size, and the next message is whole.
func TestSocket_TooLarge(t *testing.T) {
	limits := Limits{Frame: 1 << 20, Message: 2 << 20, Frames: 1000}
	mib := make([]byte, 1<<20)
	head := bytes.Join([][]byte{zmqFrame(flagMore, []byte("topic")), zmqFrame(flagMore, []byte("header"))}, nil)
	small := bytes.Repeat(zmqFrame(flagMore, []byte("x")), 2000)
	tests := []struct {
		name   string
		send   [][]byte
		first  int // frames that are returned
		bytes  int64
		frames int
	}{
		{"a frame", [][]byte{head, zmqLong(0, 8<<20), bytes.Repeat(mib, 8)}, 2, 8<<20 + 11, 3},
		{"a frame one over the limit", [][]byte{head, zmqLong(0, 1<<20+1), mib, {1}}, 2, 1<<20 + 12, 3},
		{"the first frame", [][]byte{zmqLong(0, 1<<20+1), mib, {1}}, 0, 1<<20 + 1, 1},
		{"a frame with others behind it", [][]byte{head, zmqLong(flagMore, 2<<20), mib, mib, zmqFrame(flagMore, mib),
			zmqFrame(0, []byte("end"))}, 2, 3<<20 + 14, 5},
		{"all frames together", [][]byte{head, zmqFrame(flagMore, mib), zmqFrame(flagMore, mib), zmqFrame(0, mib)},
			3, 3<<20 + 11, 5},
		{"too many frames", [][]byte{small, zmqFrame(0, nil)}, 1000, 2000, 2001},
	}
	for _, kind := range []Kind{Dealer, Sub} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s to kind %d", tt.name, kind), func(t *testing.T) {
				zmqGoroutines(t)
				endpoint := zmqPeer(t, func(c net.Conn) {
					zmqShake(c, map[Kind]string{Dealer: "ROUTER", Sub: "PUB"}[kind])
					for _, b := range append(tt.send, zmqFrame(0, []byte("next"))) {
						if _, err := c.Write(b); err != nil {
							t.Error(err)
						}
					}
					io.Copy(io.Discard, c) //nolint:errcheck // until our side closes it
				})
				s := mustDial(t, endpoint, kind, limits)
				var m [][]byte
				var err error
				grown := allocated(func() { m, err = s.Recv() })
				var large *TooLargeError
				if !errors.As(err, &large) || large.Bytes != tt.bytes || large.Frames != tt.frames || len(m) != tt.first {
					t.Fatalf("got %d frames, %v", len(m), err)
				}
				if grown > 8<<20 {
					t.Errorf("%d bytes allocated", grown)
				}
				if m, err := s.Recv(); err != nil || len(m) != 1 || string(m[0]) != "next" {
					t.Errorf("the next message: got %q, %v", m, err)
				}
			})
		}
	}
}

// TestSocket_EndlessMessage: a message without an end costs no memory, and Close ends the wait for its end.
func TestSocket_EndlessMessage(t *testing.T) {
	zmqGoroutines(t)
	sent := make(chan struct{})
	endpoint := zmqPeer(t, func(c net.Conn) {
		zmqShake(c, "PUB")
		piece := bytes.Repeat([]byte{flagMore, 1, 'x', flagMore, 0}, 10_000)
		for n := 0; ; n++ {
			if _, err := c.Write(piece); err != nil {
				return
			}
			if n == 1500 {
				close(sent)
			}
		}
	})
	s := mustDial(t, endpoint, Sub, Limits{Frames: 1000})
	ended := make(chan error)
	before := inUse()
	go func() {
		_, err := s.Recv()
		ended <- err
	}()
	<-sent
	if grown := inUse() - before; grown > aheadLimit+16<<20 {
		t.Errorf("%d bytes in use", grown)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// inUse returns the bytes of live objects.
func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
