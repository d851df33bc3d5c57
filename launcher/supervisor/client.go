package supervisor

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/flow"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

const (
	maxMessage = 512 << 20             // bytes of one message from a client
	batchBytes = 256 << 10             // bytes written before pings and close requests are checked
	ackWindow  = 4 << 20               // bytes that may be unacknowledged, or one message
	ackBytes   = 256 << 10             // bytes after which a numbered ping goes out
	ackDelay   = 50 * time.Millisecond // the least time between two numbered pings, unless ackBytes are sent
	ackLatest  = time.Second           // the longest time between a message and the next ping
	pingIdle   = 15 * time.Second      // between pings when nothing is sent
	closeGrace = time.Second           // for the peer to answer a close frame
	farewell   = 2 * time.Second       // for a client to take the rest when the kernel has ended
)

// clientConn is one websocket on .../channels. The handler's goroutine reads, and another one writes.
type clientConn struct {
	// Fixed. ws and flow are set when the upgrade is done; until then Supervisor.mu guards flow.
	s          *Supervisor
	ws         *websocket.Conn
	flow       *flow.Conn
	framing    framing.Framing
	relay      bool   // speaks jupyter.SubprotocolRelay; framing is V1 then
	number     uint64 // later connections have higher numbers; numbers of pings begin with it
	readOnly   bool
	sessionKey string // in Supervisor.sessions
	session    *session
	reader     *messagelog.Reader      // of the log
	pongs      chan []byte             // pings to answer
	acks       chan struct{}           // capacity 1: something was acknowledged
	end        chan framing.CloseError // capacity 1: why to close the websocket

	// Guarded by Supervisor.mu.
	active   bool
	answered int // pings answered on this connection
	acked    messagelog.Position

	// Owned by the writer.
	cursor    messagelog.Position
	batch     []*messagelog.Entry
	lastPing  time.Time
	sincePing int64             // bytes
	pingNow   bool              // something essential was sent since the last ping: send one at once
	replaced  map[uint64]string // a copy of the session's

	// Guarded by mu.
	mu         sync.Mutex
	sent       int64 // bytes
	ackedBytes int64
	acksEver   bool // something was acknowledged, on this connection or an earlier one of the session
	pingNumber uint64
	pings      []sentPing
	largest    suspect // the largest message that is sent and not acknowledged
	tooBig     bool    // the peer has closed because of a message's size
	endedHere  bool    // the supervisor closes the connection, or the peer was silent for too long
}

// sentPing is a numbered ping and the place up to which its pong acknowledges.
type sentPing struct {
	number uint64
	at     messagelog.Position
	sent   int64
}

var upgrader = websocket.Upgrader{
	Subprotocols:     framing.Subprotocols(),
	CheckOrigin:      func(*http.Request) bool { return true }, // the gateway has checked it
	HandshakeTimeout: 10 * time.Second,
	WriteBufferSize:  4 << 10,
	WriteBufferPool:  &sync.Pool{},
}

// getChannels serves the kernel's websocket.
func (s *Supervisor) getChannels(w http.ResponseWriter, r *http.Request) error {
	if !websocket.IsWebSocketUpgrade(r) {
		return httpError{http.StatusBadRequest, "this is a websocket: an upgrade request is expected"}
	}
	c := &clientConn{s: s, readOnly: r.Header.Get(api.HeaderRight) == "read",
		reader: messagelog.NewReader(), pongs: make(chan []byte, 4), acks: make(chan struct{}, 1),
		end: make(chan framing.CloseError, 1)}
	c.framing, c.relay = framing.Choose(r, websocket.Subprotocols(r))
	if err := s.join(c, sessionName(r, c.readOnly), r.URL.Query().Get("cursor")); err != nil {
		return err
	}
	defer s.leave(c)
	h := &flow.Hijacker{ResponseWriter: w, Owed: c.owed}
	ws, err := upgrader.Upgrade(h, r, nil)
	if err != nil {
		return nil // the library has sent the error
	}
	s.mu.Lock()
	c.ws, c.flow = ws, h.Conn
	cut := s.cut
	s.mu.Unlock()
	if cut {
		return ws.Close()
	}
	begun := time.Now()
	s.logger.Info("websocket opened", logkey.Connection, c.number, logkey.Request, requestID(r))
	c.run()
	c.mu.Lock()
	sent := c.sent
	c.mu.Unlock()
	s.logger.Info(
		"websocket closed",
		logkey.Connection,
		c.number,
		logkey.Request,
		requestID(r),
		logkey.Took,
		time.Since(begun),
		logkey.Sent,
		sent,
	)
	return nil
}

// sessionName returns the key of a client's session. It keeps users, and clients with the right to read, out of each
// other's sessions: replies and prompts go to sessions, and every message that a page causes shows its session id.
func sessionName(r *http.Request, readOnly bool) string {
	id := r.URL.Query().Get("session_id")
	if id == "" {
		return ""
	}
	return fmt.Sprintf("%s\x00%v\x00%s", r.Header.Get(api.HeaderUser), readOnly, id)
}

func (s *Supervisor) join(c *clientConn, sessionID, cursor string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.over:
		return errOver
	default:
	}
	s.connNumber++
	c.number = s.connNumber
	if err := s.attachLocked(c, sessionID, s.now()); err != nil {
		return err
	}
	if c.relay && cursor != "" {
		c.resumeAtCursorLocked(cursor)
	}
	c.pingNumber = c.number << 32 // so that a late pong to an earlier connection proves nothing here
	s.handlers.Add(1)
	s.log.Subscribe(c.reader, c.session.number, c.framing)
	return nil
}

func (s *Supervisor) leave(c *clientConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.Unsubscribe(c.reader, c.framing)
	s.detachLocked(c, s.now())
	s.handlers.Done()
}

// run reads and writes until the connection ends.
func (c *clientConn) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.write(ctx)
		// This ends the reader: at once after an error, otherwise with the peer's close frame or after closeGrace.
		c.flow.SetDeadline(time.Now().Add(closeGrace)) //nolint:errcheck // a closed connection has no deadline
	}()
	c.read()
	cancel()
	c.flow.Close() //nolint:errcheck // it may be closed already
	<-done
}

// owed returns how many bytes the peer has not acknowledged.
func (c *clientConn) owed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent - c.ackedBytes
}

// pong handles a pong: the peer's websocket has received everything before that numbered ping. Peers may answer only
// the newest of several pings, so numbers are cumulative.
func (c *clientConn) pong(data string) {
	if len(data) != 8 {
		return
	}
	number := binary.BigEndian.Uint64([]byte(data))
	var at messagelog.Position
	c.mu.Lock()
	found := false
	for i, p := range c.pings {
		if p.number == number {
			at, found = p.at, true
			c.ackedBytes, c.acksEver = p.sent, true
			if c.largest.seq <= p.at.Seq {
				c.largest = suspect{}
			}
			c.pings = append(c.pings[:0], c.pings[i+1:]...)
			break
		}
	}
	c.mu.Unlock()
	if !found {
		return
	}
	c.s.mu.Lock()
	c.session.acksEver = true
	c.answered++
	if c.answered > 1 {
		c.s.activateLocked(c)
	}
	c.s.acknowledgeLocked(c, at)
	c.s.mu.Unlock()
	poke(c.acks)
}
