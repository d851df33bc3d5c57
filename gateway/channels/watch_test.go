package channels

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/sendqueue"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/vanish"
)

// connected returns two ends of a connection on loopback.
func connected(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	f, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = n.Close(), f.Close() })
	return n.(*net.TCPConn), f.(*net.TCPConn)
}

// TestSplice_SilentClient: a client that reads nothing stays for as long as its host is there. Without its host the
// connection ends.
func TestSplice_SilentClient(t *testing.T) {
	client, far := connected(t)
	supervisor, other := connected(t)
	s := newSplice(client, supervisor, nil, nil)
	ticks, watched := make(chan time.Time), make(chan struct{})
	go func() { s.watch(ticks); close(watched) }()
	ping := func() {
		t.Helper()
		if _, err := client.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
	}
	queued := func() int64 {
		n, _, err := sendqueue.Of(client).Look()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	now := time.Now()
	for range 8 {
		ping()
		poll.Until(t, "the client's host has the ping", func() bool { return queued() == 0 })
		now = now.Add(sendqueue.LookEvery)
		ticks <- now
	}
	vanish.Host(t, far)
	for range 2 { // less than its patience, also if the last look before came early
		ping()
		now = now.Add(sendqueue.LookEvery)
		ticks <- now
	}
	select {
	case <-s.ended:
		t.Fatalf("it was ended too early: %v", s.cause)
	default:
	}
	ticks <- now.Add(2 * sendqueue.LookEvery)
	<-watched
	if !errors.Is(s.cause, errSilent) {
		t.Errorf("it was ended with %v", s.cause)
	}
	_ = s.Run(t.Context()) // closes everything
	if _, err := other.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the supervisor reads %v", err)
	}
}

// TestWatches: a gateway promises nothing about a socket that it cannot look at.
func TestWatches(t *testing.T) {
	for network, want := range map[net.Addr]bool{&net.TCPAddr{}: true, &net.UnixAddr{}: false} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, network))
		if got := Watches(r); got != want {
			t.Errorf("a client of a %T is watched: %v", network, got)
		}
	}
}
