package zeromq

import (
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

// aheadOf returns a readAhead of the messages on a connection.
func aheadOf(conn net.Conn) *readAhead {
	return newReadAhead(newReader(&zmtpConn{Conn: conn, limits: Limits{}.withDefaults()}, nil))
}

// TestReadAhead_All checks that every message arrives once and in order, with frames of any size, and then the
// connection's end. Without a receiver no more is taken than the bound allows.
func TestReadAhead_All(t *testing.T) {
	ours, theirs := unixPair(t)
	a := aheadOf(ours)
	a.begin()
	defer a.end()
	defer ours.Close() //nolint:errcheck // everything was read
	sent := sha256.New()
	const total = aheadLimit + 24<<20
	wrote := make(chan error, 1)
	go func() {
		block := make([]byte, 1<<20)
		for i := range block {
			block[i] = byte(i * 7 >> 3)
		}
		for left := total; left > 0; {
			frame := block[:min(left, 1+rand.IntN(wideLeast>>(3*rand.IntN(6))))] // mostly small ones
			sent.Write(frame)
			flags := byte(flagMore * rand.IntN(2))
			if left -= len(frame); left == 0 {
				flags = 0
			}
			if _, err := theirs.Write(zmqFrame(flags, frame)); err != nil {
				wrote <- err
				return
			}
		}
		wrote <- theirs.Close()
	}()
	held := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.bytes
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(testLimit); held() < aheadLimit; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("only %d bytes were read ahead", held())
		}
	}
	select {
	case err := <-wrote:
		t.Errorf("everything was taken without a receiver: %v", err)
	default:
	}
	got := sha256.New()
	n, most := 0, 0
	for {
		m, err := a.receive()
		for _, f := range m.frames {
			got.Write(f)
			n += len(f)
		}
		most = max(most, held())
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			break
		}
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	if n != total || [32]byte(got.Sum(nil)) != [32]byte(sent.Sum(nil)) {
		t.Errorf("%d bytes of %d arrived, or they differ", n, total)
	}
	if most > aheadLimit+32<<20 { // and one message
		t.Errorf("%d bytes were held, the bound is %d", most, aheadLimit)
	}
}

// TestReadAhead_End checks that a receive that waits returns, and that messages that wait are not returned after end.
func TestReadAhead_End(t *testing.T) {
	ours, theirs := unixPair(t)
	a := aheadOf(ours)
	a.begin()
	if _, err := theirs.Write(zmqFrame(0, []byte("ab"))); err != nil {
		t.Fatal(err)
	}
	if m, err := a.receive(); err != nil || string(m.frames[0]) != "ab" {
		t.Fatalf("got %q, %v", m.frames, err)
	}
	ended := make(chan error)
	go func() {
		_, err := a.receive()
		ended <- err
	}()
	ours.Close() //nolint:errcheck // nothing was written
	a.end()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("receive ends with %v", err)
	}
	t.Run("with messages that wait", func(t *testing.T) {
		ours, theirs := unixPair(t)
		a := aheadOf(ours)
		a.begin()
		if _, err := theirs.Write(append(zmqFrame(0, []byte("ab")), zmqFrame(0, []byte("cd"))...)); err != nil {
			t.Fatal(err)
		}
		if _, err := a.receive(); err != nil {
			t.Fatal(err)
		}
		ours.Close() //nolint:errcheck // nothing was written
		a.end()
		if m, err := a.receive(); err == nil {
			t.Errorf("got %q after the end", m.frames)
		}
	})
}

// TestReadAhead_Large: a large frame is read when the messages before it have been handled.
func TestReadAhead_Large(t *testing.T) {
	ours, theirs := unixPair(t)
	a := aheadOf(ours)
	var announced []int // owned by the goroutine that reads, until the end
	a.r.limits.Large = func(bytes int) { announced = append(announced, bytes) }
	a.begin()
	defer a.end()
	defer ours.Close() //nolint:errcheck // everything was read
	const size = aheadLarge/2 + 1
	wrote := make(chan error, 1)
	go func() {
		_, err := theirs.Write(append(zmqFrame(0, []byte("small")), zmqFrame(0, make([]byte, size))...))
		if err == nil {
			_, err = theirs.Write(zmqFrame(0, make([]byte, size)))
		}
		wrote <- err
	}()
	for i, want := range []int{len("small"), size} {
		m, err := a.receive()
		if err != nil || len(m.frames[0]) != want {
			t.Fatalf("message %d: %d frames, %v", i, len(m.frames), err)
		}
	}
	idle := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.idle
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(testLimit); !idle(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("the next large frame is read while the one before it is handled")
		}
	}
	if m, err := a.receive(); err != nil || len(m.frames[0]) != size {
		t.Fatalf("%d frames, %v", len(m.frames), err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	ours.Close() //nolint:errcheck // everything was read
	a.end()
	if len(announced) != 2 || announced[0] != size || announced[1] != size {
		t.Errorf("frames of %d bytes were announced, want two of %d", announced, size)
	}
}

// TestReadAhead_Wide: a few wide messages are read ahead, and all small ones between them.
func TestReadAhead_Wide(t *testing.T) {
	ours, theirs := unixPair(t)
	a := aheadOf(ours)
	a.begin()
	defer a.end()
	defer ours.Close() //nolint:errcheck // everything was read
	const size, count = 1 << 20, 20
	wrote := make(chan error, 1)
	go func() {
		for range count {
			if _, err := theirs.Write(append(zmqFrame(0, make([]byte, size)), zmqFrame(0, []byte("small"))...)); err != nil {
				wrote <- err
				return
			}
		}
		wrote <- nil
	}()
	waits := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		if !a.idle {
			return 0
		}
		return a.bytes
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for n := range 2 * count {
		if n == 0 || n == count {
			for deadline := time.Now().Add(testLimit); waits() == 0; <-tick.C {
				if time.Now().After(deadline) {
					t.Fatal("all wide messages are read ahead")
				}
			}
			if got := waits(); got < aheadWide-2*size || got > aheadWide {
				t.Errorf("%d bytes were read ahead, the bound is %d", got, aheadWide)
			}
		}
		if m, err := a.receive(); err != nil || len(m.frames[0]) != []int{size, len("small")}[n%2] {
			t.Fatalf("message %d: %d frames, %v", n, len(m.frames), err)
		}
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}

// unixPair returns the two ends of a connection.
func unixPair(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // it has accepted its connection
	if theirs, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if ours, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirs.Close() }) //nolint:errcheck // it may be closed already
	return ours, theirs
}
