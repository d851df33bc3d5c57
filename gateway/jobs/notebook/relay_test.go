package notebook

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// TestRelay_Panic: a panic of the relay's goroutine reaches the job that has the relay, and ends nothing else.
func TestRelay_Panic(t *testing.T) {
	r := OpenRelay(RelayOptions{Dial: func(context.Context, url.Values) (*websocket.Conn, error) {
		panic("a frame that a kernel has forged")
	}})
	defer r.Close()
	_, _, err := r.Receive(t.Context())
	var caught *goroutines.PanicError
	if !errors.As(err, &caught) || errors.Is(err, ErrGone) {
		t.Errorf("got %v", err)
	}
}

// relayPeer is a supervisor's end. Each connection is a script of the test.
type relayPeer struct {
	*httptest.Server
	connections chan *websocket.Conn
}

func newRelayPeer(t *testing.T) *relayPeer {
	t.Helper()
	p := &relayPeer{connections: make(chan *websocket.Conn)}
	upgrader := websocket.Upgrader{Subprotocols: []string{jupyter.SubprotocolRelay}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		_ = ws.SetReadDeadline(time.Now().Add(20 * time.Second))
		select {
		case p.connections <- ws:
		case <-t.Context().Done():
			_ = ws.Close()
		}
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *relayPeer) dial(ctx context.Context, query url.Values) (*websocket.Conn, error) {
	d := websocket.Dialer{Subprotocols: []string{jupyter.SubprotocolRelay}}
	ws, resp, err := d.DialContext(ctx, strings.Replace(p.URL, "http", "ws", 1)+"?"+query.Encode(), nil)
	if resp != nil {
		_ = resp.Body.Close() // a websocket has none
	}
	return ws, err
}

// reads returns the types of the next messages of a connection.
func reads(t *testing.T, ws *websocket.Conn, n int) (types []string) {
	t.Helper()
	for range n {
		_, frame, err := ws.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		m, err := jupyter.DecodeV1(frame)
		if err != nil {
			t.Fatal(err)
		}
		types = append(types, jupyter.StringField(m.Header, "msg_type"))
	}
	return types
}

// TestRelay_Proven: nothing need come about an input_reply, so only the pong behind it proves that it was accepted.
// Until then it is sent again. A request is sent again until something about it comes.
func TestRelay_Proven(t *testing.T) {
	p := newRelayPeer(t)
	r := OpenRelay(RelayOptions{Dial: p.dial, Session: "s"})
	defer r.Close()
	for _, m := range []jupyter.Message{
		jupyter.New(jupyter.Stdin, "input_reply", "s", nil, struct{}{}),
		jupyter.New(jupyter.Shell, "execute_request", "s", nil, struct{}{}),
	} {
		if err := r.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	ws := <-p.connections
	ws.SetPingHandler(func(string) error { return nil }) // it breaks before it answers
	if got := reads(t, ws, 2); got[0] != "input_reply" || got[1] != "execute_request" {
		t.Errorf("got %q", got)
	}
	_ = ws.Close()
	ws = <-p.connections
	if got := reads(t, ws, 2); got[0] != "input_reply" || got[1] != "execute_request" {
		t.Errorf("after a break %q come", got)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); r.waiting() > 1; <-tick.C { // for the pong
		if time.Now().After(deadline) {
			t.Fatal("a pong proves nothing")
		}
	}
	_ = ws.Close()
	ws = <-p.connections
	if got := reads(t, ws, 1); got[0] != "execute_request" {
		t.Errorf("after the pong %q comes", got)
	}
	_ = ws.Close()
}

// waiting returns how many messages are not known to be accepted.
func (r *Relay) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pending)
}

// TestRelay_Refused: a message for whose size the supervisor closes the connection is handed back, and not sent again.
func TestRelay_Refused(t *testing.T) {
	p := newRelayPeer(t)
	refused := make(chan jupyter.Message, 1)
	r := OpenRelay(RelayOptions{Dial: p.dial, Session: "s", Refused: func(m jupyter.Message) { refused <- m }})
	defer r.Close()
	large := jupyter.New(jupyter.Shell, "comm_msg", "s", nil, strings.Repeat("x", 1000))
	small := jupyter.New(jupyter.Shell, "execute_request", "s", nil, "")
	for _, m := range []jupyter.Message{small, large} {
		if err := r.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	ws := <-p.connections
	ws.SetReadLimit(500)
	reads(t, ws, 1)
	if _, _, err := ws.ReadMessage(); !errors.Is(err, websocket.ErrReadLimit) { // which sends the close frame
		t.Errorf("got %v", err)
	}
	if got := <-refused; string(got.Header) != string(large.Header) {
		t.Errorf("%s was handed back", got.Header)
	}
	_ = ws.Close()
	ws = <-p.connections
	if got := reads(t, ws, 1); got[0] != "execute_request" {
		t.Errorf("got %q", got)
	}
	_ = ws.Close()
}

// TestRelay_Ahead: while the supervisor accepts nothing, a sender waits.
func TestRelay_Ahead(t *testing.T) {
	r := OpenRelay(RelayOptions{Dial: func(context.Context, url.Values) (*websocket.Conn, error) {
		return nil, errors.New("away")
	}})
	defer r.Close()
	m := jupyter.New(jupyter.Shell, "comm_msg", "s", nil, struct{}{})
	m.Buffers = [][]byte{make([]byte, relayAhead/2)}
	if err := r.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Send(ctx, m); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if n := r.waiting(); n != 1 {
		t.Errorf("%d messages wait", n)
	}
}
