package flow

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
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
	if s.err != nil || s.text != text || time.Until(s.deadline) < Patience/2 {
		t.Errorf("got %q, %v; the peer counts as gone at %v", s.text, s.err, s.deadline)
	}
}

// TestConn_Deadline: the deadline must not overflow, however much a peer has not acknowledged.
func TestConn_Deadline(t *testing.T) {
	for _, owed := range []int64{0, 1 << 20, 1 << 34, 1 << 45} {
		f := NewConn(nil, func() int64 { return owed })
		if left := time.Until(f.Deadline()); left < Patience-time.Second {
			t.Errorf("with %d bytes unacknowledged a peer is given %v", owed, left)
		}
	}
}
