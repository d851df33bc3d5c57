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

// TestReadAhead_All checks that every byte arrives once and in order, with reads of any size, and then the connection's
// end. Without a reader no more bytes are taken than the bound allows.
func TestReadAhead_All(t *testing.T) {
	ours, theirs := unixPair(t)
	a := newReadAhead(ours)
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
			p := block[:min(left, 1+rand.IntN(len(block)))]
			sent.Write(p)
			if _, err := theirs.Write(p); err != nil {
				wrote <- err
				return
			}
			left -= len(p)
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
		t.Errorf("everything was taken without a reader: %v", err)
	default:
	}
	got := sha256.New()
	p := make([]byte, 300<<10)
	n, most := 0, 0
	for {
		m, err := a.Read(p[:1+rand.IntN(len(p))])
		got.Write(p[:m])
		n, most = n+m, max(most, held())
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
	if most > aheadLimit+aheadChunk {
		t.Errorf("%d bytes were held, the bound is %d", most, aheadLimit)
	}
}

// TestReadAhead_End checks that a Read that waits returns.
func TestReadAhead_End(t *testing.T) {
	ours, theirs := unixPair(t)
	a := newReadAhead(ours)
	a.begin()
	if _, err := theirs.Write([]byte("ab")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(a, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := a.Read(make([]byte, 1))
		ended <- err
	}()
	ours.Close() //nolint:errcheck // nothing was written
	a.end()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read ends with %v", err)
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
