package connection

import (
	"bufio"
	"bytes"
	"compress/flate"
	crand "crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
)

// line is a network connection of a client that reads at most rate bytes in a second, and counts them.
type line struct {
	net.Conn
	rate int // 0: unlimited
	read *atomic.Int64
	next time.Time // when the line is free
}

func (l *line) Read(p []byte) (int, error) {
	if l.rate > 0 {
		p = p[:min(len(p), 4<<10)]
	}
	n, err := l.Conn.Read(p)
	l.read.Add(int64(n))
	if l.rate > 0 {
		now := time.Now()
		if l.next.Before(now) {
			l.next = now
		}
		l.next = l.next.Add(time.Duration(n) * time.Second / time.Duration(l.rate))
		time.Sleep(time.Until(l.next)) // the line's speed
	}
	return n, err
}

// compressed dials a connection with compression over a line. It returns the peer and the count of its bytes.
func compressed(t *testing.T, rate int, offer bool, tune func(*Options)) (*served, *atomic.Int64) {
	t.Helper()
	s := serve(t, func(o *Options) {
		o.Compress = true
		if tune != nil {
			tune(o)
		}
	})
	_ = s.peer.Close()
	<-s.done
	o := s.o
	s.Conn = New(o)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.Upgrade(w, r, nil) {
			s.Serve()
		}
		s.done <- s.End()
	}))
	t.Cleanup(srv.Close)
	read := new(atomic.Int64)
	d := websocket.Dialer{EnableCompression: offer, NetDial: func(network, addr string) (net.Conn, error) {
		conn, err := net.Dial(network, addr)
		if err == nil {
			_ = conn.(*net.TCPConn).SetReadBuffer(64 << 10) // what the line itself holds
		}
		return &line{Conn: conn, rate: rate, read: read}, err
	}}
	peer, resp, err := d.Dial("ws"+strings.TrimPrefix(srv.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	got, want := resp.Header.Get("Sec-Websocket-Extensions"), offer && o.Compress
	if got := strings.Contains(got, "permessage-deflate"); got != want {
		t.Errorf("compression was chosen: %v, offered: %v, allowed: %v", got, offer, o.Compress)
	}
	t.Cleanup(func() { _ = peer.Close() })
	s.peer = peer
	return s, read
}

// TestConn_Compressed: a client that offers it gets large messages compressed, and small ones as they are. Without a
// free compressor, large ones come as they are.
func TestConn_Compressed(t *testing.T) {
	s, read := compressed(t, 0, true, nil)
	size := func(n int) int64 {
		before := read.Load()
		s.append(n)
		if _, data, err := s.peer.ReadMessage(); err != nil || len(data) < n {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
		return read.Load() - before
	}
	if got := size(100 << 10); got > 10<<10 {
		t.Errorf("100 KiB took %d bytes", got)
	}
	if got := size(600); got < 600 {
		t.Errorf("600 bytes took %d", got)
	}
	taken := 0
	for ; compressors.take(true); taken++ {
	}
	got := size(100 << 10)
	for range taken {
		compressors.giveBack(true)
	}
	if got < 100<<10 {
		t.Errorf("100 KiB took %d bytes without a compressor", got)
	}
}

// TestConn_NotCompressed: an offer is not enough. An older gateway passes on the offers of all clients.
func TestConn_NotCompressed(t *testing.T) {
	s, read := compressed(t, 0, true, func(o *Options) { o.Compress = false })
	s.append(100 << 10)
	if _, _, err := s.peer.ReadMessage(); err != nil || read.Load() < 100<<10 {
		t.Errorf("100 KiB took %d bytes, %v", read.Load(), err)
	}
}

// frameConn is the network connection of a hijacked request. It takes everything, and counts the writes that are not
// one whole frame.
type frameConn struct {
	http.ResponseWriter
	net.Conn
	whole, pieces int
	head          []byte // the answer to the handshake
}

func (f *frameConn) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return f, bufio.NewReadWriter(bufio.NewReader(f), bufio.NewWriter(f)), nil
}

func (f *frameConn) Write(p []byte) (int, error) {
	size := 0
	switch {
	case bytes.HasPrefix(p, []byte("HTTP/1.1 101 ")):
		f.head = bytes.Clone(p)
		return len(p), nil
	case len(p) >= 10 && p[1] == 127:
		size = 10 + int(binary.BigEndian.Uint64(p[2:]))
	case len(p) >= 4 && p[1] == 126:
		size = 4 + int(binary.BigEndian.Uint16(p[2:]))
	case len(p) >= 2:
		size = 2 + int(p[1])
	}
	if size == len(p) {
		f.whole++
	} else {
		f.pieces++
	}
	return len(p), nil
}

// TestConn_WholeFrames: each frame of a compressed message is one write, also where compression gains nothing.
// Otherwise the reader's close frame could come between the pieces of a frame.
func TestConn_WholeFrames(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _, _ = near.Close(), far.Close() }()
	f := &frameConn{ResponseWriter: httptest.NewRecorder(), Conn: near}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for name, value := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket",
		"Sec-Websocket-Version": "13", "Sec-Websocket-Key": base64.StdEncoding.EncodeToString(make([]byte, 16)),
		"Sec-Websocket-Extensions": "permessage-deflate"} {
		r.Header.Set(name, value)
	}
	c := New(Options{Compress: true})
	if !c.Upgrade(f, r, nil) || !c.compresses {
		t.Fatal("the connection does not compress")
	}
	random := make([]byte, 1<<20)
	_, _ = crand.Read(random)
	text := bytes.Repeat([]byte("output of a cell\n"), 100_000)
	for _, parts := range [][][]byte{{random}, {text}, {random[:10], random[:9<<10], text, random[:65535], random}} {
		if err := c.writeByLibrary(websocket.BinaryMessage, parts); err != nil {
			t.Fatal(err)
		}
	}
	if f.whole == 0 || f.pieces > 0 {
		t.Errorf("%d writes are whole frames, %d are not", f.whole, f.pieces)
	}
}

// TestSlots: guests leave compressors to the kernel's owner, and there is always one.
func TestSlots(t *testing.T) {
	for processors, want := range map[int][2]int{1: {1, 1}, 2: {1, 2}, 8: {2, 2}} {
		before := runtime.GOMAXPROCS(processors)
		var s slots
		got := [2]int{}
		for i, owner := range []bool{false, true} {
			for s.take(owner) {
				got[i]++
			}
		}
		if got != want {
			t.Errorf("%d processors: guests and owner got %v, want %v", processors, got, want)
		}
		s.giveBack(false)
		if !s.take(true) || s.take(false) {
			t.Errorf("%d processors: a free compressor is not the owner's", processors)
		}
		runtime.GOMAXPROCS(before)
	}
}

// TestConn_SlowPeersAndMemory: what is compressed for peers that do not read is bounded for all of them together. A
// message that has no room is sent as it is.
func TestConn_SlowPeersAndMemory(t *testing.T) {
	held := func() int {
		gathered.mu.Lock()
		defer gathered.mu.Unlock()
		return gathered.used
	}
	const (
		peers = gatherTotal/compressGather + 2
		size  = 4 * compressGather // more than a connection's own buffers, also when it is compressed
	)
	random := make([]byte, size/4*3)
	_, _ = crand.Read(random)
	m := jupyter.New(jupyter.IOPub, "stream", "kernel", nil,
		map[string]string{"name": "stdout", "text": base64.StdEncoding.EncodeToString(random)})
	var all []*served
	for i := range peers {
		s, _ := compressed(t, 0, true, func(o *Options) { o.Input = new(Input).Of("", true) })
		s.log.Append(0, m, false)
		poll.Until(t, "it waits for its peer", func() bool {
			compressors.mu.Lock()
			defer compressors.mu.Unlock()
			return s.Conn.owed() >= size && compressors.used == 0 && held() >= min((i+1)*compressGather, gatherTotal)
		})
		all = append(all, s)
	}
	if got := held(); got != gatherTotal {
		t.Errorf("%d bytes count, want %d", got, gatherTotal)
	}
	for _, s := range all {
		if _, data, err := s.peer.ReadMessage(); err != nil || len(data) < size {
			t.Errorf("%d bytes, %v", len(data), err)
		}
	}
	poll.Until(t, "nothing counts", func() bool { return held() == 0 })
}

// TestBudget: guests leave half of the bytes to the kernel's owner.
func TestBudget(t *testing.T) {
	var b budget
	if !b.take(false, gatherTotal/2) || b.take(false, 1) || !b.take(true, gatherTotal/2) || b.take(true, 1) {
		t.Error("the bounds do not hold")
	}
	b.giveBack(false, gatherTotal/2)
	if !b.take(true, 1) || b.take(false, gatherTotal/2) || !b.take(false, gatherTotal/2-1) {
		t.Error("what was given back is not free")
	}
}

// TestConn_SlowPeerAndCompressor: a peer that does not read holds no compressor, neither with a message that is
// gathered nor with a larger one.
func TestConn_SlowPeerAndCompressor(t *testing.T) {
	for _, size := range []int{3 << 20, 2 * compressGather} {
		s, _ := compressed(t, 0, true, nil)
		random := make([]byte, size/4*3)
		_, _ = crand.Read(random)
		m := jupyter.New(jupyter.IOPub, "stream", "kernel", nil,
			map[string]string{"name": "stdout", "text": base64.StdEncoding.EncodeToString(random)})
		s.log.Append(0, m, false)
		poll.Until(t, "it is being sent", func() bool { return s.Conn.owed() >= int64(size) })
		poll.Until(t, "no compressor is in use", func() bool {
			compressors.mu.Lock()
			defer compressors.mu.Unlock()
			return compressors.used == 0
		})
		_, data, err := s.peer.ReadMessage()
		if err != nil || len(data) < size {
			t.Errorf("%d bytes, %v", len(data), err)
		}
	}
}

// TestConn_Bomb: the bound of a message holds for what it is when it is not compressed.
func TestConn_Bomb(t *testing.T) {
	s, _ := compressed(t, 0, true, func(o *Options) {
		o.MaxMessage, o.Input = 1<<20, new(Input).Of("", true)
	})
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(w, zeros{}, 32<<20); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if b.Len() > 512<<10 {
		t.Fatalf("the bomb has %d bytes", b.Len())
	}
	bomb := bytes.TrimSuffix(b.Bytes(), []byte{0, 0, 0xff, 0xff})
	header := []byte{0xc1, 0x80 | 127, 0, 0, 0, 0, byte(len(bomb) >> 24), byte(len(bomb) >> 16), byte(len(bomb) >> 8),
		byte(len(bomb)), 0, 0, 0, 0} // a final compressed text frame, masked with zeros
	if _, err := s.peer.NetConn().Write(append(header, bomb...)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, _, err = s.peer.ReadMessage()
	}
	if !websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
		t.Errorf("closed with %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestMeasure_Compression prints what compression gains on a line, with EKG_MEASURE=1.
func TestMeasure_Compression(t *testing.T) {
	if os.Getenv("EKG_MEASURE") == "" {
		t.Skip("EKG_MEASURE is not set")
	}
	random := rand.New(rand.NewPCG(1, 2))
	picture := make([]byte, 300<<10)
	for i := range picture {
		picture[i] = byte(random.Uint32())
	}
	var table, log strings.Builder
	for i := range 500 {
		fmt.Fprintf(&table, "<tr><th>%d</th><td>%.6f</td><td>%.6f</td><td>2026-01-%02d</td></tr>\n", i, random.Float64(),
			random.Float64(), i%28+1)
		fmt.Fprintf(&log, "epoch %d/500 - loss: %.4f - accuracy: %.4f\n", i, random.Float64(), random.Float64())
	}
	contents := map[string]string{"text": log.String(), "HTML table": table.String(),
		"picture": base64.StdEncoding.EncodeToString(picture)}
	for name, text := range contents {
		for _, mbit := range []int{10, 100, 0} {
			for _, offer := range []bool{false, true} {
				total := 2 << 20
				if mbit == 0 {
					total = 64 << 20
				}
				measure(t, fmt.Sprintf("%-12s %3d Mbit/s", name, mbit), text, total/len(text), mbit*1e6/8, offer)
			}
		}
	}
}

func measure(t *testing.T, name, text string, n, rate int, offer bool) {
	t.Helper()
	s, read := compressed(t, rate, offer, nil)
	n = min(n, 20000)
	go func() {
		for range s.rec.acked { // or the recorder blocks the reader
		}
	}()
	m := jupyter.New(jupyter.IOPub, "stream", "kernel", nil, map[string]string{"name": "stdout", "text": text})
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	begun := time.Now()
	ahead := make(chan struct{}, max(1, 300<<10/len(text))) // messages that are not read: the log evicts none of them
	go func() {
		for range n {
			ahead <- struct{}{}
			s.log.Append(0, m, false)
		}
	}()
	got := 0
	_ = s.peer.SetReadDeadline(time.Now().Add(20 * time.Second))
	for got < n {
		if _, _, err := s.peer.ReadMessage(); err != nil {
			break
		}
		got++
		<-ahead
	}
	took := time.Since(begun)
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	cpu := time.Duration(after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano())
	t.Logf("%s compressed %-5v: %6d messages of %7d bytes, %9d bytes in %6.2f s, CPU of both sides %6.2f s", name, offer,
		got, len(text), read.Load(), took.Seconds(), cpu.Seconds())
}
