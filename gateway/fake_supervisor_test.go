package gateway

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
)

// fakeSupervisor answers the routes of one kernel and keeps what it was sent.
type fakeSupervisor struct {
	t      testing.TB
	id     string
	path   string
	server *http.Server

	// Set before the first request.
	channels func(conn net.Conn, early io.Reader) // after the 101; default: echo

	mu      sync.Mutex
	seen    []string         // requests, each as one dump
	answer  http.HandlerFunc // instead of everything but channels
	upgrade http.HandlerFunc // instead of the whole handshake
	wg      sync.WaitGroup
}

func newFakeSupervisor(t testing.TB, id, path string) *fakeSupervisor {
	s := &fakeSupervisor{t: t, id: id, path: path}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s.server = &http.Server{Handler: http.HandlerFunc(s.serve), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	s.wg.Go(func() { _ = s.server.Serve(l) })
	return s
}

func (s *fakeSupervisor) close() {
	_ = s.server.Close()
	s.wg.Wait()
}

// answerWith replaces the answers to everything but channels; nil is what they are at first.
func (s *fakeSupervisor) answerWith(h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = h
}

// upgradeWith replaces the websocket's handshake and all that follows.
func (s *fakeSupervisor) upgradeWith(h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.upgrade = h
}

// sent returns all it was ever sent, as text.
func (s *fakeSupervisor) sent() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b bytes.Buffer
	for _, text := range s.seen {
		b.WriteString(text + "\n")
	}
	return b.String()
}

// requests returns the same, each by itself.
func (s *fakeSupervisor) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

func (s *fakeSupervisor) serve(w http.ResponseWriter, r *http.Request) {
	var dump bytes.Buffer
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(&dump, "%s %s host=%s\n", r.Method, r.URL, r.Host)
	_ = r.Header.Write(&dump)
	dump.Write(body)
	s.mu.Lock()
	s.seen = append(s.seen, dump.String())
	answer, upgrade := s.answer, s.upgrade
	s.mu.Unlock()

	base := "/api/kernels/" + s.id
	switch {
	case r.URL.Path == base+"/channels" && upgrade != nil:
		upgrade(w, r)
	case r.URL.Path == base+"/channels":
		s.accept(w, r)
	case answer != nil:
		answer(w, r)
	case r.Method == "POST" && (r.URL.Path == base+"/interrupt" || r.URL.Path == base+"/wake"):
		w.WriteHeader(http.StatusNoContent)
	case r.URL.Path == base+"/timeline":
		_, _ = fmt.Fprint(w, `{"events":[],"busy_seconds":[]}`)
	case r.URL.Path == base || r.Method == "POST" && r.URL.Path == base+"/restart":
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"id":%q,"name":"python3","last_activity":"2026-11-21T05:53:26.1Z",`+
			`"execution_state":"busy","connections":3}`, s.id)
	default:
		w.WriteHeader(http.StatusMisdirectedRequest)
	}
}

func (s *fakeSupervisor) accept(w http.ResponseWriter, r *http.Request) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	sum := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Set-Cookie: evil=1\r\nSec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
	if s.channels != nil {
		s.channels(conn, rw)
		return
	}
	_, _ = io.Copy(conn, rw)
}
