package zmtp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const testLimit = 30 * time.Second

// listen binds a socket for a test.
func listen(t *testing.T, network string, o Options) *Socket {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		dir, err := os.MkdirTemp("", "zmtp") // shorter than TempDir: a socket path has at most 107 bytes
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		address = filepath.Join(dir, "s")
	}
	s, err := Listen(network, address, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(0) })
	return s
}

// endpoint is the socket's address as libzmq names it.
func endpoint(s *Socket) string {
	if s.Addr().Network() == "unix" {
		return "ipc://" + s.Addr().String()
	}
	return "tcp://" + s.Addr().String()
}

// TestSocket_Libzmq tests our side against the implementation that Jupyter's programs use.
func TestSocket_Libzmq(t *testing.T) {
	python := os.Getenv("EKG_TEST_PYTHON")
	if python == "" {
		t.Skip("EKG_TEST_PYTHON names no interpreter with pyzmq, so libzmq is not tested")
	}
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			xpub := listen(t, network, Options{Type: XPub, Subscribed: func(p *Peer, prefix []byte) {
				p.Send([][]byte{prefix, []byte("welcome")})
			}})
			rep := listen(t, network, Options{Type: Rep})
			router := listen(t, network, Options{Type: Router, Receive: func(p *Peer, frames [][]byte) {
				switch string(frames[0]) {
				case "to":
					p.s.Send(string(frames[1]), [][]byte{[]byte("sent")})
					return
				case "publish":
					xpub.Publish(frames[1:], nil)
				}
				p.Send(frames)
			}})
			ctx, cancel := context.WithTimeout(t.Context(), 2*testLimit)
			defer cancel()
			out, err := exec.CommandContext(ctx, python, "testdata/peers.py", endpoint(router), endpoint(xpub),
				endpoint(rep)).CombinedOutput()
			if err != nil || string(out) != "done\n" {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// peer is a test's end of a connection. It writes every byte itself.
type peer struct {
	t *testing.T
	net.Conn
	r *reader
}

func dial(t *testing.T, s *Socket) *peer {
	t.Helper()
	c, err := net.Dial(s.Addr().Network(), s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(testLimit))
	return &peer{t, c, &reader{r: bufio.NewReader(c), most: maxMessage, arriving: new(atomic.Int64)}}
}

// shake does the peer's half of the handshake.
func (p *peer) shake(kind Type) *peer {
	p.t.Helper()
	if _, err := p.Write(hello(kind)); err != nil {
		p.t.Fatal(err)
	}
	if err := p.r.greeting(); err != nil {
		p.t.Fatal(err)
	}
	flags, size, err := p.r.header()
	if err == nil && flags == flagCommand {
		_, err = p.r.frame(size)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.r.handled()
	return p
}

func (p *peer) send(frames ...string) {
	p.t.Helper()
	var all [][]byte
	for _, f := range frames {
		all = append(all, []byte(f))
	}
	b := appendFrames(nil, all, 0)
	if _, err := b.WriteTo(p.Conn); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) receive() []string {
	p.t.Helper()
	frames, _, err := p.r.next()
	if err != nil {
		p.t.Fatal(err)
	}
	p.r.handled()
	var all []string
	for _, f := range frames {
		all = append(all, string(f))
	}
	return all
}

// TestSocket_SilentPeer: a connection that says nothing, or not all of its handshake, is closed in time. Meanwhile
// others are served. go-zeromq's server accepts no second one before.
func TestSocket_SilentPeer(t *testing.T) {
	s := listen(t, "tcp", Options{Type: Rep, handshake: 300 * time.Millisecond})
	begun := time.Now()
	var silent []*peer
	for _, n := range []int{0, 1, greetingSize, greetingSize + 3} {
		p := dial(t, s)
		if _, err := p.Write(hello("REQ")[:n]); err != nil {
			t.Fatal(err)
		}
		silent = append(silent, p)
	}
	beating := dial(t, s).shake("REQ")
	beating.send("", "ping")
	if got := beating.receive(); len(got) != 2 || got[1] != "ping" {
		t.Errorf("got %q", got)
	}
	for i, p := range silent {
		if _, err := io.Copy(io.Discard, p); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("peer %d: %v", i, err)
		}
	}
	if took := time.Since(begun); took < 300*time.Millisecond {
		t.Errorf("they were closed after %v", took)
	}
	beating.send("", "still")
	if got := beating.receive(); got[1] != "still" {
		t.Errorf("got %q", got)
	}
}

// TestSocket_StalledSubscriber: a subscriber that does not read delays no other. It loses output with one announcement,
// and nothing else.
func TestSocket_StalledSubscriber(t *testing.T) {
	subscribed := make(chan struct{}, 2)
	s := listen(t, "tcp", Options{Type: XPub, Subscribed: func(*Peer, []byte) { subscribed <- struct{}{} }})
	stalled, reading := dial(t, s).shake("SUB"), dial(t, s).shake("SUB")
	for _, p := range []*peer{stalled, reading} {
		p.send("\x01")
		<-subscribed
	}
	const size, outputs = 1 << 20, 3 * Behind >> 20
	output := bytes.Repeat([]byte("o"), size)
	left := func() [][]byte { return [][]byte{[]byte("left")} }
	go func() {
		for i := range outputs {
			s.Publish([][]byte{[]byte("output"), output}, left)
			s.Publish([][]byte{[]byte("status"), fmt.Append(nil, i)}, nil)
			if i%16 == 15 { // the one that reads must not fall behind in this test: a loopback is slow under load
				s.Publish([][]byte{[]byte("wait")}, nil)
				<-subscribed
			}
		}
		s.Publish([][]byte{[]byte("end")}, nil)
	}()
	count := func(p *peer, each func(kind string)) map[string]int {
		n := map[string]int{}
		for n["end"] == 0 {
			got := p.receive()
			n[got[0]]++
			each(got[0])
		}
		return n
	}
	n := count(reading, func(kind string) {
		if kind == "wait" {
			subscribed <- struct{}{}
		}
	})
	if n["output"] != outputs || n["status"] != outputs || n["left"] != 0 {
		t.Errorf("beside a stalled one, a subscriber gets %v, of %d", n, outputs)
	}
	n = count(stalled, func(string) {})
	if n["output"] == 0 || n["output"] >= outputs || n["status"] != outputs || n["left"] != 1 {
		t.Errorf("a stalled subscriber gets %v, of %d", n, outputs)
	}
}

// TestSocket_Unread: a peer that does not read its answers is not read either, and closed if it does not stop.
func TestSocket_Unread(t *testing.T) {
	received := make(chan struct{}, 1000)
	big := make([]byte, 8<<20)
	s := listen(t, "tcp", Options{Type: Router, Receive: func(p *Peer, _ [][]byte) {
		p.Send([][]byte{big})
		received <- struct{}{}
	}})
	p := dial(t, s).shake("DEALER")
	for range 20 {
		p.send("more")
	}
	for range Behind / len(big) {
		<-received
	}
	select {
	case <-received: // one or two more, which the system's buffers hold
		t.Log("more than Behind")
	case <-time.After(200 * time.Millisecond):
	}
	if n := len(received); n > 3 {
		t.Errorf("%d messages more were read", n)
	}
	for range 20 {
		if got := p.receive(); len(got[0]) != len(big) {
			t.Fatalf("an answer of %d bytes", len(got[0]))
		}
	}
}

// TestSocket_Close: what waits is sent before the end, also to a peer whose message nobody has read. A peer that does
// not read holds the end only as long as it may.
func TestSocket_Close(t *testing.T) {
	received := make(chan *Peer, 2)
	s := listen(t, "tcp", Options{Type: Router, Receive: func(p *Peer, _ [][]byte) { received <- p }})
	p := dial(t, s).shake("DEALER")
	p.send("ask")
	last := bytes.Repeat([]byte("l"), 4<<20)
	(<-received).Send([][]byte{last})
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.Close(testLimit)
	}()
	<-s.done
	p.send("not read")
	if got := p.receive(); len(got[0]) != len(last) {
		t.Errorf("the last message has %d bytes", len(got[0]))
	}
	if _, _, err := p.r.next(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	_ = p.Close()
	<-closed
	select {
	case <-received:
		t.Error("a message is handled after the end")
	default:
	}

	s = listen(t, "tcp", Options{Type: Router, Receive: func(p *Peer, _ [][]byte) { received <- p }})
	p = dial(t, s).shake("DEALER")
	p.send("ask")
	(<-received).Send([][]byte{bytes.Repeat(last, 8)})
	begun := time.Now()
	s.Close(50 * time.Millisecond)
	if took := time.Since(begun); took > testLimit/2 {
		t.Errorf("Close takes %v", took)
	}
}

// TestListen_Unix: a socket that a killed program has left is replaced. One that is in use is not.
func TestListen_Unix(t *testing.T) {
	s := listen(t, "unix", Options{Type: Rep})
	path := s.Addr().String()
	if _, err := Listen("unix", path, Options{Type: Rep}); err == nil {
		t.Error("two listen on one socket")
	}
	s.listener.(*net.UnixListener).SetUnlinkOnClose(false)
	s.Close(0)
	again, err := Listen("unix", path, Options{Type: Rep})
	if err != nil {
		t.Fatal(err)
	}
	again.Close(0)
}

// FuzzPeer: whatever a peer sends, its socket neither panics nor takes more memory than what has arrived allows.
func FuzzPeer(f *testing.F) {
	subscribe := append(hello("SUB"), 0, 2, 1, 'a')
	f.Add(byte(0), append(hello("DEALER"), 1, 1, 'a', 0, 1, 'b'))
	f.Add(byte(1), subscribe)
	f.Add(byte(1), append(subscribe, 0, 2, 0, 'a'))
	f.Add(byte(2), append(hello("REQ"), 1, 0, 0, 2, 'h', 'i'))
	f.Add(byte(0), append(hello("DEALER"), append([]byte{flagCommand, 8}, "\x04PING\x00\x01x"...)...))
	f.Add(byte(0), append(hello("DEALER"), binary.BigEndian.AppendUint64([]byte{flagLong}, maxMessage)...))
	f.Add(byte(0), hello("DEALER")[:greetingSize+9])
	f.Fuzz(func(t *testing.T, kind byte, data []byte) {
		o := Options{Type: []Type{Router, XPub, Rep}[kind%3], Receive: func(p *Peer, frames [][]byte) { p.Send(frames) }}
		s := &Socket{o: o, done: make(chan struct{}), peers: map[*Peer]bool{}, newest: map[string]*Peer{}}
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Write(data)
			_ = theirs.Close()
		}()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		s.add(ours)
		s.running.Wait()
		if n := s.arriving.Load(); n != 0 {
			t.Errorf("%d bytes are still counted", n)
		}
		if len(s.newest) > 0 || len(s.peers) > 0 {
			t.Error("a peer that has ended is still known")
		}
	})
}

// TestSocket_Commands: a PING is answered between messages. Within a message it does not divide the message. A peer
// that breaks the protocol is closed.
func TestSocket_Commands(t *testing.T) {
	s := listen(t, "tcp", Options{Type: Router, Receive: func(p *Peer, frames [][]byte) { p.Send(frames) }})
	ping := append([]byte{flagCommand, 8}, "\x04PING\x00\x01x"...)
	p := dial(t, s).shake("DEALER")
	for _, b := range [][]byte{{flagMore, 1, 'a'}, ping, {0, 1, 'b'}, ping} {
		if _, err := p.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.receive(); len(got) != 2 || got[0] != "a" || got[1] != "b" {
		t.Errorf("got %q", got)
	}
	if _, command, err := p.r.next(); err != nil || string(command) != "\x04PONGx" {
		t.Errorf("got %q, %v", command, err)
	}
	for name, b := range map[string][]byte{
		"flags":             {0x80, 0},
		"a command divided": {flagCommand | flagMore, 1, 0},
		"a long context":    append([]byte{flagCommand, 7 + 17}, "\x04PING\x00\x01xxxxxxxxxxxxxxxxx"...),
		"a length":          {flagLong, 0xff, 0, 0, 0, 0, 0, 0, 0},
	} {
		p := dial(t, s).shake("DEALER")
		if _, err := p.Write(b); err != nil {
			t.Fatal(err)
		}
		if frames, _, err := p.r.next(); err == nil {
			t.Errorf("%s: got %q", name, frames)
		}
	}
}
