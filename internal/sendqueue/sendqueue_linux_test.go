package sendqueue_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/sendqueue"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/vanish"
)

func tcpPair(t *testing.T) (here, peer *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near.(*net.TCPConn), far.(*net.TCPConn)
}

// look returns what a queue says, which must be no error.
func look(t *testing.T, q *sendqueue.Queue) (queued int64, moved bool) {
	t.Helper()
	queued, moved, err := q.Look()
	if err != nil {
		t.Fatal(err)
	}
	return queued, moved
}

// empty waits until a queue is empty.
func empty(t *testing.T, q *sendqueue.Queue) {
	t.Helper()
	poll.Until(t, "the queue is empty", func() bool { n, _ := look(t, q); return n == 0 })
}

// TestQueue_Look: a host takes bytes for a program that does not read. Bytes for a host that is gone stay in the queue.
func TestQueue_Look(t *testing.T) {
	here, peer := tcpPair(t)
	q := sendqueue.Of(here)
	data := bytes.Repeat([]byte("x"), 1000)
	if _, err := here.Write(data); err != nil {
		t.Fatal(err)
	}
	empty(t, q)
	back := vanish.Host(t, peer)
	if _, err := here.Write(data); err != nil {
		t.Fatal(err)
	}
	if n, _ := look(t, q); n != 1000 {
		t.Errorf("%d bytes are in the queue, want 1000", n)
	}
	if n, moved := look(t, q); n != 1000 || moved {
		t.Errorf("without a host, %d bytes are in the queue, and some went out: %v", n, moved)
	}
	back()
	poll.Until(t, "bytes go out", func() bool { _, moved := look(t, q); return moved })
	empty(t, q)
	if _, moved := look(t, q); moved {
		t.Error("bytes went out of an empty queue")
	}
	_ = here.Close()
	if _, _, err := q.Look(); err == nil {
		t.Error("a closed connection has a queue")
	}
}

// TestQueue_Full: nothing goes out to a program that does not read and has full buffers.
func TestQueue_Full(t *testing.T) {
	here, peer := tcpPair(t)
	q := sendqueue.Of(here)
	if err := here.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	sent := int64(0)
	for chunk := make([]byte, 1<<20); ; {
		n, err := here.Write(chunk)
		if sent += int64(n); errors.Is(err, os.ErrDeadlineExceeded) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	look(t, q)
	if n, moved := look(t, q); n == 0 || moved {
		t.Errorf("with full buffers, %d bytes are in the queue, and some went out: %v", n, moved)
	}
	if _, err := io.CopyN(io.Discard, peer, sent); err != nil {
		t.Fatal(err)
	}
	empty(t, q)
}

func TestOf(t *testing.T) {
	here, peer := tcpPair(t)
	if sendqueue.Of(tls.Server(here, &tls.Config{MinVersion: tls.VersionTLS13})) == nil {
		t.Error("TLS hides the queue")
	}
	pipe, other := net.Pipe()
	defer func() { _, _, _ = pipe.Close(), other.Close(), peer }()
	if sendqueue.Of(pipe) != nil {
		t.Error("a pipe has a queue")
	}
}

func TestLimit(t *testing.T) {
	for queued, want := range map[int64]time.Duration{0: 45 * time.Second, 1 << 20: 77 * time.Second} {
		if got := sendqueue.Limit(queued); got != want {
			t.Errorf("%d bytes may stay for %v, want %v", queued, got, want)
		}
	}
}
