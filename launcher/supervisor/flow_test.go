package supervisor

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// TestFlowHijacker: what a peer sends is progress. Else a quiet connection would be ended although its peer answers every ping.
func TestFlowHijacker(t *testing.T) {
	const text = "from the peer"
	type seen struct {
		text     string
		deadline time.Time
		err      error
	}
	got := make(chan seen, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := &flowHijacker{ResponseWriter: w, owed: func() int64 { return 0 }}
		ws, err := upgrader.Upgrade(h, r, nil)
		if err != nil {
			got <- seen{err: err}
			return
		}
		defer ws.Close()
		h.flow.progress.Store(0)
		_, b, err := ws.ReadMessage()
		got <- seen{string(b), h.flow.deadline(), err}
	}))
	defer server.Close()
	ws, _, err := websocket.DefaultDialer.DialContext(t.Context(), strings.Replace(server.URL, "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	if err := ws.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		t.Fatal(err)
	}
	s := <-got
	if s.err != nil || s.text != text || time.Until(s.deadline) < patience/2 {
		t.Errorf("got %q, %v; the peer counts as gone at %v", s.text, s.err, s.deadline)
	}
}
