package connection

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

const testLimit = 20 * time.Second

// recorder is a Handler that records what it gets.
type recorder struct {
	mu       sync.Mutex
	received []string // msg_ids
	acked    chan messagelog.Position
	messages int // that were acknowledged last
}

func (r *recorder) Receive(_ jupyter.Message, h jupyter.Header) *framing.CloseError {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.received = append(r.received, h.MsgID)
	if h.MsgType == "rejected" {
		return &framing.CloseError{Code: websocket.CloseTryAgainLater, Reason: "not now"}
	}
	return nil
}

func (r *recorder) Acknowledge(p messagelog.Position, messages int) {
	r.messages = messages
	r.acked <- p
}

func (r *recorder) Unanswered() {}

func (r *recorder) LossNotice(lost messagelog.Loss) jupyter.Message {
	return notice.Line("s", []byte(`{"msg_id":"cell"}`), strings.Repeat("lost ", int(lost.Total())))
}

func (r *recorder) EndReason() string { return "test" }

// served is a connection with a peer.
type served struct {
	*Conn
	log  *messagelog.Log
	rec  *recorder
	over chan struct{}
	peer *websocket.Conn
	done chan End
}

// serve connects a peer to a new connection.
func serve(t *testing.T, tune func(*Options)) *served {
	t.Helper()
	s := &served{
		log:  messagelog.New(messagelog.Options{Limit: 1 << 20, Stamp: func([]byte) (m messagelog.Stamp) { return m }}),
		rec:  &recorder{acked: make(chan messagelog.Position, 100)},
		over: make(chan struct{}), done: make(chan End, 1),
	}
	o := Options{Number: 3, Framing: framing.Legacy, Handler: s.rec, SessionNumber: 3, Log: s.log, MaxMessage: 1 << 10,
		Over: s.over, Logger: slog.New(slog.DiscardHandler)}
	if tune != nil {
		tune(&o)
	}
	s.Conn = New(o)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.Upgrade(w, r, nil) {
			s.Serve()
		}
		s.done <- s.End()
	}))
	t.Cleanup(srv.Close)
	var err error
	s.peer, _, err = websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(srv.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.peer.Close() })
	if err := s.peer.SetReadDeadline(time.Now().Add(testLimit)); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *served) append(size int) messagelog.Position {
	m := jupyter.New(jupyter.IOPub, "stream", "kernel", nil, map[string]string{"text": strings.Repeat("x", size)})
	return s.log.Append(0, m, true)
}

// ended waits for the end of the connection.
func (s *served) ended(t *testing.T) End {
	t.Helper()
	select {
	case end := <-s.done:
		return end
	case <-time.After(testLimit):
		t.Fatal("the connection does not end")
		panic("unreachable")
	}
}

// TestConn_Acknowledge: a peer's pong acknowledges the entries that it has received.
func TestConn_Acknowledge(t *testing.T) {
	s := serve(t, nil)
	var last messagelog.Position
	for range 3 {
		last = s.append(10)
	}
	go func() {
		for {
			if _, _, err := s.peer.ReadMessage(); err != nil {
				return
			}
		}
	}()
	for {
		select {
		case p := <-s.rec.acked:
			if p.Seq == last.Seq {
				return
			}
		case <-time.After(testLimit):
			t.Fatal("the last entry is not acknowledged")
		}
	}
}

// TestConn_Pong: pongs are cumulative. A pong to an unknown ping proves nothing.
func TestConn_Pong(t *testing.T) {
	rec := &recorder{acked: make(chan messagelog.Position, 10)}
	c := New(Options{Number: 3, Handler: rec})
	for n := range uint64(3) {
		c.sent += 100
		c.pings = append(c.pings, sentPing{number: n + 1, at: messagelog.Position{Seq: 10 * (n + 1)}, sent: c.sent,
			messages: int(n) + 1})
	}
	c.noteSent(15, largeBytes)
	pong := func(number uint64) { c.pong(string(binary.BigEndian.AppendUint64(nil, number))) }
	for _, data := range []string{"", "x", strings.Repeat("\x00", 8)} {
		c.pong(data)
	}
	if len(rec.acked) > 0 || c.owed() != 300 {
		t.Errorf("a pong to nothing has acknowledged something; %d bytes are owed", c.owed())
	}
	pong(2)
	if got := <-rec.acked; got.Seq != 20 || c.owed() != 100 || len(c.pings) != 1 || c.End().Unacknowledged != 0 ||
		rec.messages != 2 {
		t.Errorf("acknowledged up to %d, %d messages; %d bytes are owed, %d pings left, end %+v", got.Seq, rec.messages,
			c.owed(), len(c.pings), c.End())
	}
	pong(1)
	if len(rec.acked) > 0 {
		t.Error("an earlier pong has acknowledged something")
	}
}

// TestConn_End: a connection says how it has ended.
func TestConn_End(t *testing.T) {
	t.Run("the kernel has ended", func(t *testing.T) {
		s := serve(t, nil)
		close(s.over)
		_, _, err := s.peer.ReadMessage()
		if !websocket.IsCloseError(err, websocket.CloseNormalClosure) ||
			!strings.Contains(err.Error(), "the kernel is gone: test") {
			t.Errorf("closed with %v", err)
		}
		if end := s.ended(t); !end.Local {
			t.Errorf("ended with %+v", end)
		}
	})
	t.Run("a message is too big", func(t *testing.T) {
		s := serve(t, nil)
		if err := s.peer.WriteMessage(websocket.TextMessage, make([]byte, 2<<10)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.peer.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
			t.Errorf("closed with %v", err)
		}
		if end := s.ended(t); !end.Local {
			t.Errorf("ended with %+v", end)
		}
	})
	t.Run("the peer takes no large message", func(t *testing.T) {
		s := serve(t, nil)
		s.peer.SetPingHandler(func(string) error { return nil })
		large := s.append(largeBytes)
		if _, _, err := s.peer.ReadMessage(); err != nil {
			t.Fatal(err)
		}
		closing := websocket.FormatCloseMessage(websocket.CloseMessageTooBig, "")
		if err := s.peer.WriteControl(websocket.CloseMessage, closing, time.Now().Add(testLimit)); err != nil {
			t.Fatal(err)
		}
		if end := s.ended(t); end != (End{Unacknowledged: large.Seq, TooBig: true, Closed: true}) {
			t.Errorf("ended with %+v", end)
		}
	})
	t.Run("the handler rejects a message", func(t *testing.T) {
		s := serve(t, nil)
		text := `{"channel":"shell","header":{"msg_id":"1","msg_type":"rejected","session":"s"},` +
			`"parent_header":{},"metadata":{},"content":{}}`
		if err := s.peer.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.peer.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseTryAgainLater) {
			t.Errorf("closed with %v", err)
		}
		s.ended(t)
		if len(s.rec.received) != 1 || s.rec.received[0] != "1" {
			t.Errorf("received %q", s.rec.received)
		}
	})
	t.Run("Close", func(t *testing.T) {
		s := serve(t, nil)
		s.append(10)
		if _, _, err := s.peer.ReadMessage(); err != nil { // it is served
			t.Fatal(err)
		}
		s.Close()
		if end := s.ended(t); !end.Local {
			t.Errorf("ended with %+v", end)
		}
	})
}

// TestConn_AnswersClose: a browser takes a connection without an answer to its close frame for a broken one.
// The end of a kernel does not wait for a client that answers no close frame, unless it has much to read.
func TestConn_EndsWithoutAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		size  int
		waits bool
	}{"little to read": {100, false}, "much to read": {2 * littleOwed, true}} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil)
			s.append(c.size)
			if _, _, err := s.peer.ReadMessage(); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			close(s.over)
			if _, err := io.Copy(io.Discard, s.peer.NetConn()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begun); took > closeGrace/2 != c.waits {
				t.Errorf("the writing half was open for %s", took)
			}
			_ = s.peer.Close() // as a gateway does
			if end := s.ended(t); !end.Local {
				t.Errorf("it ended with %+v", end)
			}
		})
	}
}

func TestConn_AnswersClose(t *testing.T) {
	for _, code := range []int{websocket.CloseNormalClosure, websocket.CloseGoingAway, websocket.CloseNoStatusReceived} {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d, output flows: %v", code, busy), func(t *testing.T) {
				s := serve(t, nil)
				stop, stopped := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(stopped)
					for busy {
						select {
						case <-stop:
							return
						default:
							s.append(64 << 10)
						}
					}
				}()
				defer func() { close(stop); <-stopped }()
				for range 20 {
					if !busy {
						break
					}
					if _, _, err := s.peer.ReadMessage(); err != nil {
						t.Fatal(err)
					}
				}
				closing := websocket.FormatCloseMessage(code, "")
				if err := s.peer.WriteControl(websocket.CloseMessage, closing, time.Now().Add(testLimit)); err != nil {
					t.Fatal(err)
				}
				var err error
				for err == nil {
					_, _, err = s.peer.ReadMessage()
				}
				if !websocket.IsCloseError(err, code) {
					t.Errorf("answered with %v", err)
				}
				if end := s.ended(t); end.Local {
					t.Errorf("ended with %+v", end)
				}
			})
		}
	}
	t.Run("a peer that reads no more", func(t *testing.T) {
		s := serve(t, nil)
		for range 200 {
			s.append(64 << 10)
		}
		closing := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
		if err := s.peer.WriteControl(websocket.CloseMessage, closing, time.Now().Add(testLimit)); err != nil {
			t.Fatal(err)
		}
		s.ended(t)
	})
}

// TestConn_CloseBeforeUpgrade: a connection that was closed before its upgrade is not served.
func TestConn_CloseBeforeUpgrade(t *testing.T) {
	s := serve(t, nil)
	s.Close()
	s.ended(t)
	closed := New(s.o)
	closed.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if closed.Upgrade(w, r, nil) {
			t.Error("it is to be served")
		}
	}))
	defer srv.Close()
	peer, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(srv.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close() //nolint:errcheck // a test
	if err := peer.SetReadDeadline(time.Now().Add(testLimit)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := peer.ReadMessage(); err == nil {
		t.Error("the peer has got a message")
	}
}

// TestConn_Buffers: where clients read text only, a cell shows once that binary data was left out.
func TestConn_Buffers(t *testing.T) {
	for f, want := range map[framing.Framing]string{
		framing.JupyterServer: "comm_msg comm_msg stream comm_msg comm_msg comm_msg stream end",
		framing.TextOnly:      "comm_msg comm_msg stream comm_msg comm_msg comm_msg stream end",
		framing.Legacy:        "comm_msg comm_msg comm_msg comm_msg comm_msg end",
	} {
		s := serve(t, func(o *Options) { o.Framing = f })
		for n, cell := range []string{"a", "a", "a", "b", "b"} {
			m := jupyter.New(jupyter.IOPub, "comm_msg", "kernel", []byte(`{"msg_id":"`+cell+`"}`), struct{}{})
			if n != 0 && n != 3 {
				m.Buffers = [][]byte{{0xff}}
			}
			s.log.Append(0, m, false)
		}
		s.log.Append(0, jupyter.New(jupyter.IOPub, "end", "kernel", nil, struct{}{}), false)
		var got []string
		for len(got) == 0 || got[len(got)-1] != "end" {
			kind, data, err := s.peer.ReadMessage()
			if err != nil {
				t.Fatal(err)
			}
			m, err := jupyter.DecodeLegacy(data, kind == websocket.BinaryMessage)
			if err != nil && !errors.Is(err, jupyter.ErrChannel) {
				t.Fatal(err)
			}
			got = append(got, jupyter.StringField(m.Header, "msg_type"))
			if text := string(m.Content); got[len(got)-1] == "stream" && !strings.Contains(text, "Binary data was left out") {
				t.Errorf("the cell shows %s", text)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("framing %d: got %q, want %q", f, got, want)
		}
	}
}

// TestConn_Replaced: an entry that has broken earlier connections is replaced by a notice.
func TestConn_Replaced(t *testing.T) {
	s := serve(t, func(o *Options) { o.Replaced = map[uint64]string{1: "because"} })
	s.append(10)
	s.append(20)
	for n, want := range []string{"because", strings.Repeat("x", 20)} {
		_, data, err := s.peer.ReadMessage()
		if err != nil || !strings.Contains(string(data), want) {
			t.Errorf("message %d is %s, %v; want %q", n, data, err, want)
		}
	}
}

// TestConn_Used: who has sent a message, or answered two pings, may be silent afterwards, unless its window is full.
func TestConn_Used(t *testing.T) {
	pong := func(c *Conn, number uint64) {
		c.pings = append(c.pings, sentPing{number: number, sent: c.sent})
		c.pong(string(binary.BigEndian.AppendUint64(nil, number)))
	}
	newConn := func() *Conn {
		return New(Options{Number: 3, Handler: &recorder{acked: make(chan messagelog.Position, 10)}, MaxMessage: 1 << 10})
	}
	c := newConn()
	for n, want := range []bool{false, false, true} {
		if n > 0 {
			pong(c, uint64(n))
		}
		if c.used() != want {
			t.Errorf("after %d pongs it is used: %v", n, !want)
		}
	}
	c.sent += ackWindow
	if c.used() {
		t.Error("it is used although its window is full")
	}
	pong(c, 3)
	if !c.used() {
		t.Error("it is not used although all is acknowledged")
	}
	c = newConn()
	const request = `{"channel":"shell","header":{"msg_id":"a"},"parent_header":{},"metadata":{},"content":{}}`
	if end := c.handleMessage(websocket.TextMessage, []byte(request)); end != nil {
		t.Fatal(end)
	}
	if !c.used() {
		t.Error("after a message it is not used")
	}
}

// TestConn_PingBefore: the last ping that a peer gets before an entry is that of PingBefore. Its pong shows that the
// peer had both.
func TestConn_PingBefore(t *testing.T) {
	s := serve(t, nil)
	last := ""
	s.peer.SetPingHandler(func(data string) error { last = data; return nil })
	s.append(10)
	s.PingBefore(2)
	s.append(10)
	for range 2 {
		if _, _, err := s.peer.ReadMessage(); err != nil {
			t.Fatal(err)
		}
	}
	if s.Received(2) {
		t.Error("nothing is answered")
	}
	if err := s.peer.WriteControl(websocket.PongMessage, []byte(last), time.Now().Add(testLimit)); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the peer has the entry", func() bool { return s.Received(2) })
	if s.Received(3) {
		t.Error("the peer has an entry that does not exist")
	}
}
