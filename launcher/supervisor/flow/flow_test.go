package flow

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/internal/sendqueue"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/vanish"
)

// TestHijacker_ReadingIsProgress: bytes from a peer are progress. Otherwise a quiet connection would be ended although
// its peer answers every ping.
func TestHijacker_ReadingIsProgress(t *testing.T) {
	const text = "from the peer"
	type seen struct {
		text     string
		deadline time.Time
		err      error
	}
	got := make(chan seen, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := &Hijacker{ResponseWriter: w, Owed: func() int64 { return 0 }}
		ws, err := new(websocket.Upgrader).Upgrade(h, r, nil)
		if err != nil {
			got <- seen{err: err}
			return
		}
		defer func() { _ = ws.Close() }()
		h.Conn.progress.Store(-int64(time.Hour))
		_, b, err := ws.ReadMessage()
		got <- seen{string(b), h.Conn.Deadline(), err}
	}))
	defer server.Close()
	ws, _, err := websocket.DefaultDialer.DialContext(t.Context(), strings.Replace(server.URL, "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ws.Close() }()
	if err := ws.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		t.Fatal(err)
	}
	s := <-got
	if s.err != nil || s.text != text || time.Until(s.deadline) < sendqueue.Patience/2 {
		t.Errorf("got %q, %v; the peer counts as gone at %v", s.text, s.err, s.deadline)
	}
}

// TestConn_Deadline: the deadline must not overflow, however much a peer has not acknowledged.
func TestConn_Deadline(t *testing.T) {
	for _, owed := range []int64{0, 1 << 20, 1 << 34, 1 << 45} {
		f := NewConn(nil, func() int64 { return owed })
		if left := time.Until(f.Deadline()); left < sendqueue.Patience-time.Second {
			t.Errorf("with %d bytes unacknowledged a peer is given %v", owed, left)
		}
	}
}

// TestConn_BusyMachine: a write that takes long on a busy machine is no progress of the peer while the buffers have
// room. Otherwise each ping to a silent peer could keep its connection for longer.
func TestConn_BusyMachine(t *testing.T) {
	for _, tt := range []struct {
		owed     int64
		progress bool
	}{{0, false}, {alwaysFits, false}, {alwaysFits + 1, true}} {
		f := NewConn(slowConn{}, func() int64 { return tt.owed })
		before := f.progress.Load()
		if _, err := f.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		if got := f.progress.Load() != before; got != tt.progress {
			t.Errorf("with %d bytes unacknowledged, a slow write is progress: %v", tt.owed, got)
		}
	}
}

// slowConn is a connection on a busy machine.
type slowConn struct{ sinkConn }

func (slowConn) Write(p []byte) (int, error) {
	<-time.After(2 * blocked)
	return len(p), nil
}

// TestConn_WriteFrame checks the bytes of frames of all lengths and parts, corked and not, with control frames of the
// library among them.
func TestConn_WriteFrame(t *testing.T) {
	sizes := [][]int{{0}, {125}, {126}, {65535}, {65536}, {300, 0, 20_000, 5}, {1 << 20}, {10, 3 << 20, 7}}
	for _, corked := range []bool{false, true} {
		wrote := make(chan error, 1)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h := &Hijacker{ResponseWriter: w, Owed: func() int64 { return 0 }}
			ws, err := new(websocket.Upgrader).Upgrade(h, r, nil)
			if err != nil {
				wrote <- err
				return
			}
			defer func() { _ = ws.Close() }()
			wrote <- writeFrames(ws, h.Conn, sizes, corked)
			_, _, _ = ws.ReadMessage() // until the peer has closed, too
		}))
		ws, _, err := websocket.DefaultDialer.DialContext(t.Context(), strings.Replace(server.URL, "http", "ws", 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, parts := range sizes {
			kind, got, err := ws.ReadMessage()
			if want := bytes.Join(content(i, parts), nil); err != nil || kind != websocket.BinaryMessage ||
				!bytes.Equal(got, want) {
				t.Fatalf("message %d: kind %d, %d bytes, want %d, %v", i, kind, len(got), len(want), err)
			}
		}
		if _, _, err := ws.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
			t.Errorf("corked %v: %v", corked, err)
		}
		if err := <-wrote; err != nil {
			t.Errorf("corked %v: %v", corked, err)
		}
		_ = ws.Close()
		server.Close()
	}
}

// writeFrames writes messages of the given parts, pings between them, and a close frame.
func writeFrames(ws *websocket.Conn, f *Conn, sizes [][]int, corked bool) error {
	for i, parts := range sizes {
		if corked && i%3 == 0 {
			f.Cork()
		}
		if err := f.WriteFrame(Binary, content(i, parts)...); err != nil {
			return err
		}
		if err := f.WriteFrame(Ping, []byte("hi")); err != nil {
			return err
		}
	}
	closing := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	if corked { // the library has answered invalid frames
		if err := ws.WriteControl(websocket.CloseMessage, closing, time.Now().Add(time.Minute)); err != nil {
			return err
		}
	} else if err := f.WriteFrame(Close, closing); err != nil {
		return err
	}
	for _, opcode := range []byte{Text, Ping, Close} {
		if err := f.WriteFrame(opcode, []byte("late")); !errors.Is(err, ErrClosing) {
			return fmt.Errorf("a frame behind the close frame: %w", err)
		}
	}
	if _, err := f.Write([]byte("late")); !errors.Is(err, ErrClosing) {
		return fmt.Errorf("bytes of the library behind the close frame: %w", err)
	}
	if err := f.Flush(); err != nil {
		return err
	}
	if f.buf != nil || f.lent != nil {
		return errors.New("a flushed connection holds a buffer")
	}
	return nil
}

// content returns the parts of message i. Many of its bytes are those of a close frame.
func content(i int, sizes []int) (parts [][]byte) {
	for _, size := range sizes {
		parts = append(parts, bytes.Repeat([]byte{0x88, byte('a' + i)}, size)[:size])
	}
	return parts
}

// TestConn_Allocations: small messages are gathered without an allocation.
func TestConn_Allocations(t *testing.T) {
	f := NewConn(sinkConn{}, func() int64 { return 0 })
	payload := make([]byte, 700)
	allocs := testing.AllocsPerRun(200, func() {
		f.Cork()
		for range 1000 {
			if err := f.WriteFrame(Text, payload); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Flush(); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 50 { // the race detector makes pools forget
		t.Errorf("%v allocations for 1000 messages", allocs)
	}
}

// sinkConn takes everything.
type sinkConn struct{ net.Conn }

func (sinkConn) Write(p []byte) (int, error)      { return len(p), nil }
func (sinkConn) SetWriteDeadline(time.Time) error { return nil }

// TestConn_GatherKeepsNothing: a buffer that has grown in Gather is not kept, also if the connection stays corked.
func TestConn_GatherKeepsNothing(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _, _ = near.Close(), far.Close() }()
	go func() { _, _ = io.Copy(io.Discard, far) }()
	for _, size := range []int{gatherBytes / 2, 2 << 20, 5 << 20} {
		f := NewConn(near, func() int64 { return 0 })
		f.Cork()
		err := f.Gather(4<<20, func() error {
			for range size / 4096 {
				if _, err := f.Write(make([]byte, 4096)); err != nil {
					return err
				}
			}
			return nil
		}, func() {})
		if err != nil || cap(f.buf) > gatherBytes+gatherPart {
			t.Errorf("%d bytes leave a buffer of %d, %v", size, cap(f.buf), err)
		}
		if err := f.Flush(); err != nil {
			t.Error(err)
		}
	}
}

// TestConn_Gone: a client that has used its connection may answer nothing for as long as its host is there. All others
// must answer.
func TestConn_Gone(t *testing.T) {
	long := func(f *Conn) { f.progress.Store(int64(time.Since(epoch) - time.Hour)) }
	for name, tt := range map[string]struct {
		make func(t *testing.T) *Conn
		gone bool
	}{
		"a client that only answers pings": {func(*testing.T) *Conn { return NewConn(nil, func() int64 { return 0 }) }, true},
		"a gateway that watches its client": {func(*testing.T) *Conn {
			f := NewConn(nil, func() int64 { return 0 })
			f.watched = true
			return f
		}, false},
		"a client that reads nothing": {func(t *testing.T) *Conn {
			f, _, _ := takenOver(t, "")
			f.used = func() bool { return true }
			put(t, f)
			poll.Until(t, "its host has it", func() bool { f.Look(); return f.queued.Load() == 0 })
			return f
		}, false},
		"a client whose host is gone": {func(t *testing.T) *Conn {
			f, client, _ := takenOver(t, "")
			f.used = func() bool { return true }
			vanish.Host(t, client)
			put(t, f)
			f.Look()
			return f
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := tt.make(t)
			for _, used := range []bool{true, false} {
				f.used = func() bool { return used }
				long(f)
				if got := f.Gone(); got != (tt.gone || !used) {
					t.Errorf("used: %v, gone: %v", used, got)
				}
			}
		})
	}
}

// put writes something small.
func put(t *testing.T, f *Conn) {
	t.Helper()
	if err := f.WriteFrame(Ping, []byte("ping")); err != nil {
		t.Fatal(err)
	}
}

// TestConn_WriteLooks: a write that waits goes on as long as its client's host takes bytes, and nothing is lost or sent
// twice.
func TestConn_WriteLooks(t *testing.T) {
	f, client, _ := takenOver(t, "")
	f.used = func() bool { return true }
	f.Conn = &waitingConn{Conn: f.Conn, takes: []int{3, 0, 7, 2}}
	const first, second = "the first piece ", "and the second"
	for _, pieces := range [][2]string{{first, second}, {first, ""}, {"", second}} {
		n, err := f.writeOnce([]byte(pieces[0]), []byte(pieces[1]))
		want := pieces[0] + pieces[1]
		got := make([]byte, len(want))
		if _, rerr := io.ReadFull(client, got); rerr != nil || err != nil || n != len(want) || string(got) != want {
			t.Errorf("%d of %d bytes are written, %v, %v; %q came", n, len(want), err, rerr, got)
		}
		f.Conn.(*waitingConn).takes = []int{5, 12}
	}
	vanish.Host(t, client)
	put(t, f)
	f.Look()
	f.progress.Store(int64(time.Since(epoch) - time.Hour))
	f.Conn.(*waitingConn).takes = []int{0, 1, 1, 1}
	if _, err := f.writeOnce([]byte(first), []byte(second)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a write to a client whose host is gone ends with %v", err)
	}
}

// waitingConn is a connection on which writes wait for too long. Each takes a number of bytes.
type waitingConn struct {
	net.Conn
	takes []int
}

func (c *waitingConn) Write(p []byte) (int, error) {
	if len(c.takes) == 0 || c.takes[0] > len(p) {
		return c.Conn.Write(p)
	}
	n, err := c.Conn.Write(p[:c.takes[0]])
	c.takes = c.takes[1:]
	return n, errors.Join(err, os.ErrDeadlineExceeded)
}
