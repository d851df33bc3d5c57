package zeromq

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"
	"weak"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// streamConn is a connection whose peer has sent a stream and closed its side. Each read returns one piece of it.
type streamConn struct {
	net.Conn
	stream []byte
	piece  int // bytes of a read
	wrote  []byte
}

func (c *streamConn) Read(p []byte) (int, error) {
	if len(c.stream) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.stream[:min(len(c.stream), c.piece)])
	c.stream = c.stream[n:]
	return n, nil
}

func (c *streamConn) Write(p []byte) (int, error) {
	c.wrote = append(c.wrote, p...)
	return len(p), nil
}

func (c *streamConn) SetWriteDeadline(time.Time) error { return nil }
func (c *streamConn) Close() error                     { return nil }

func readerOf(conn net.Conn, limits Limits) *reader {
	return newReader(&zmtpConn{Conn: conn, limits: limits.withDefaults()}, nil)
}

// withoutCommands returns the frames of a valid stream that are not commands.
func withoutCommands(stream []byte) (data []byte) {
	for len(stream) > 0 {
		n := 2 + int(stream[1])
		if stream[0]&flagLong != 0 {
			n = headerMost + int(binary.BigEndian.Uint64(stream[1:]))
		}
		if stream[0]&flagCommand == 0 {
			data = append(data, stream[:n]...)
		}
		stream = stream[n:]
	}
	return data
}

// TestReader_CommandInMessage: libzmq sends heartbeats between the frames of a message. They are answered, and the
// message is whole, or as large as it is.
func TestReader_CommandInMessage(t *testing.T) {
	ping := zmqCommand("PING", []byte{0, 1, 'x'})
	long := bytes.Repeat([]byte("y"), 2*ownFrame)
	conn := &streamConn{piece: 100, stream: slices.Concat(
		zmqFrame(flagMore, []byte("a")), ping, zmqFrame(flagMore, long), ping, ping, zmqFrame(0, []byte("b")),
		zmqFrame(flagMore, []byte("c")), zmqFrame(flagMore, make([]byte, 1<<16+1)), ping, zmqFrame(0, []byte("d")))}
	r := readerOf(conn, Limits{Frame: 1 << 16, Message: 1 << 17, Frames: 20})
	m, err := r.next()
	if err != nil || !slices.EqualFunc(m.frames, [][]byte{[]byte("a"), long, []byte("b")}, bytes.Equal) {
		t.Fatalf("%d frames, %v", len(m.frames), err)
	}
	m, err = r.next()
	if err != nil || m.large == nil || m.large.Frames != 3 || m.large.Bytes != 1<<16+3 {
		t.Fatalf("%+v, %v", m.large, err)
	}
	if n := bytes.Count(conn.wrote, []byte("\x04PONGx")); n != 4 {
		t.Errorf("%d pongs", n)
	}
}

// FuzzReader compares our reader with the library's where both must agree: at messages, and at the size of messages
// that are too large for us. The library is given only what our reader accepts, since it would allocate any length that
// a frame claims. It is given no commands, because it does not take them within a message.
func FuzzReader(f *testing.F) {
	long := zmqFrame(0, bytes.Repeat([]byte("long"), 5000))
	f.Add([]byte{}, byte(0))
	f.Add(zmqFrame(0, []byte("one")), byte(0))
	f.Add(slices.Concat(zmqFrame(flagMore, []byte("a")), zmqFrame(flagMore, nil), long, long), byte(200))
	f.Add(slices.Concat(zmqCommand("PING", []byte{0, 1, 'x'}), zmqFrame(0, nil), zmqCommand("WHAT", nil)), byte(2))
	f.Add(slices.Concat(bytes.Repeat(zmqFrame(flagMore, []byte("x")), 30), zmqFrame(0, nil), long), byte(30))
	f.Add(slices.Concat(zmqFrame(flagMore, nil), zmqFrame(0, make([]byte, 1<<16+1)), zmqFrame(0, []byte("y"))), byte(255))
	f.Add(slices.Concat(zmqFrame(flagMore, []byte("x")), zmqCommand("PING", []byte{0, 1})), byte(7))
	f.Add(append([]byte{flagLong | flagMore, 0, 0, 0, 0, 0, 0, 0, 2}, "ab\x00\x01c"...), byte(3))
	f.Add(slices.Concat(zmqFrame(flagMore, long), zmqCommand("PING", []byte{0, 1}), zmqFrame(0, long)), byte(7))
	f.Add(slices.Concat(zmqFrame(flagMore, make([]byte, 1<<16+1)), zmqCommand("PING", []byte{0, 1}), long), byte(99))
	f.Fuzz(func(t *testing.T, stream []byte, piece byte) {
		conn := &streamConn{stream: stream, piece: 1 + int(piece)*int(piece)}
		r := readerOf(conn, Limits{Frame: 1 << 16, Message: 1 << 17, Frames: 20})
		var got []message
		accepted := 0
		for {
			m, err := r.next()
			if err != nil {
				break
			}
			got = append(got, m)
			accepted = len(stream) - len(conn.stream) - (r.w - r.r)
		}
		library := &streamConn{stream: slices.Concat(zmqGreeting(), zmqReady("ROUTER"), withoutCommands(stream[:accepted])),
			piece: 1 << 20}
		lib, err := zmq4.Open(library, null.Security(), zmq4.Dealer, nil, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range got {
			want, err := lib.RecvMsg()
			if err != nil {
				t.Fatalf("message %d: the library returns %v, we %d frames", i, err, len(m.frames))
			}
			if m.large != nil {
				size := int64(0)
				for _, f := range want.Frames {
					size += int64(len(f))
				}
				if m.large.Frames != len(want.Frames) || m.large.Bytes != size {
					t.Fatalf("message %d: %v, the library returns %d bytes in %d", i, m.large, size, len(want.Frames))
				}
				want.Frames = want.Frames[:len(m.frames)]
			}
			if !slices.EqualFunc(m.frames, want.Frames, bytes.Equal) {
				t.Fatalf("message %d: we return %.200q, the library %.200q", i, m.frames, want.Frames)
			}
		}
	})
}

// TestReader_Keeps: what was returned does not change, whatever is read afterwards.
func TestReader_Keeps(t *testing.T) {
	var stream []byte
	var sizes []int
	for i := range 3000 {
		size := []int{0, 1, 230, 5000, 40_000, 1 << 18}[i*i%6]
		sizes = append(sizes, size)
		stream = append(stream, zmqFrame(flagMore, bytes.Repeat([]byte{byte(i)}, size))...)
		stream = append(stream, zmqFrame(0, []byte{byte(i >> 8)})...)
	}
	for _, piece := range []int{100, 8 << 10, 1 << 20} {
		r := readerOf(&streamConn{stream: stream, piece: piece}, Limits{})
		var got []message
		for {
			m, err := r.next()
			if err != nil {
				break
			}
			got = append(got, m)
		}
		if len(got) != len(sizes) {
			t.Fatalf("%d messages, want %d", len(got), len(sizes))
		}
		for i, m := range got {
			want := [][]byte{bytes.Repeat([]byte{byte(i)}, sizes[i]), {byte(i >> 8)}}
			if !slices.EqualFunc(m.frames, want, bytes.Equal) {
				t.Fatalf("message %d differs in pieces of %d", i, piece)
			}
			for _, f := range m.frames {
				if cap(f) > len(f) && len(f) > 0 {
					t.Fatalf("frame of message %d has room for what is behind it", i)
				}
			}
		}
	}
}

// TestReader_Claim: memory for a frame is allocated when a part of it has arrived.
func TestReader_Claim(t *testing.T) {
	conn := &streamConn{stream: append(zmqLong(0, 200<<20), "only this"...), piece: 100}
	r := readerOf(conn, Limits{})
	var err error
	grown := allocated(func() { _, err = r.next() })
	if !errors.Is(err, io.EOF) || grown > 2*trusted {
		t.Errorf("%d bytes allocated, %v", grown, err)
	}
}

// TestReader_ChunksFollowTheRate: a kernel that says little costs little memory, one that streams few reads.
func TestReader_ChunksFollowTheRate(t *testing.T) {
	one := zmqFrame(0, make([]byte, 700))
	conn := &streamConn{stream: bytes.Repeat(one, 2000), piece: 1 << 20}
	r := readerOf(conn, Limits{})
	for range 1000 {
		if _, err := r.next(); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.chunk) != chunkMost {
		t.Errorf("a chunk has %d bytes while a kernel streams", len(r.chunk))
	}
	for conn.piece = len(one); len(conn.stream) > 0; {
		if _, err := r.next(); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.chunk) != chunkLeast {
		t.Errorf("a chunk has %d bytes when messages come one by one", len(r.chunk))
	}
}

// TestReader_Allocations: small frames are parts of a chunk, and a large one is read into its own memory.
func TestReader_Allocations(t *testing.T) {
	const total = 8 << 20 // bytes of messages
	for _, tt := range []struct {
		content int
		allocs  float64 // of a message
		bytes   float64 // that are allocated, for each byte of a message
	}{{200, 0.1, 2.5}, {10_000, 0.2, 1.4}, {1_000_000, 3.5, 1.2}} {
		var one []byte
		frames := jupyterFrames(tt.content)
		for i, f := range frames {
			one = append(one, zmqFrame(flagMore*byte(min(1, len(frames)-1-i)), f)...)
		}
		n := total / len(one)
		stream := bytes.Repeat(one, n)
		allocs, size := math.Inf(1), math.Inf(1)
		for range 10 { // other goroutines of the process are counted too; the least is the reader's
			r := readerOf(&streamConn{stream: stream, piece: 1 << 20}, Limits{})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range n {
				if _, err := r.next(); err != nil {
					t.Fatal(err)
				}
			}
			runtime.ReadMemStats(&after)
			allocs = min(allocs, float64(after.Mallocs-before.Mallocs)/float64(n))
			size = min(size, float64(after.TotalAlloc-before.TotalAlloc)/float64(n*len(one)))
		}
		if allocs > tt.allocs {
			t.Errorf("%.2f allocations a message with %d bytes, want at most %.2f", allocs, tt.content, tt.allocs)
		}
		if size > tt.bytes {
			t.Errorf("%.2f bytes allocated for each of a message with %d, want at most %.2f", size, tt.content, tt.bytes)
		}
	}
}

// TestReader_LargeIsFreed: neither the reader nor a message before it keeps the memory of a large message that its
// receiver has dropped.
func TestReader_LargeIsFreed(t *testing.T) {
	for _, tt := range []struct{ before, frames int }{
		{0, 2},
		{0, slabSize + 1},
		{slabSize - 10, 30}, // the frames would need what is left of a slab, and another one
	} {
		stream := bytes.Repeat(zmqFrame(0, []byte("small")), tt.before)
		for n := range tt.frames {
			stream = append(stream, zmqFrame(flagMore*byte(min(1, tt.frames-1-n)), make([]byte, 2*ownFrame))...)
		}
		r := readerOf(&streamConn{stream: stream, piece: ownFrame}, Limits{})
		var kept []message
		for range tt.before {
			m, err := r.next()
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, m)
		}
		m, err := r.next()
		if err != nil || len(m.frames) != tt.frames {
			t.Fatalf("%d frames, %v", len(m.frames), err)
		}
		var large []weak.Pointer[byte]
		for _, f := range m.frames {
			large = append(large, weak.Make(&f[0]))
		}
		m = message{}
		runtime.GC()
		// The last chunk is still in use, and may be a part of one frame.
		left := 0
		for _, f := range large {
			if f.Value() != nil {
				left++
			}
		}
		if left > 1 {
			t.Errorf("%d small messages before one of %d frames: %d frames are still in memory", tt.before, tt.frames, left)
		}
		runtime.KeepAlive(r)
		runtime.KeepAlive(kept)
	}
}
