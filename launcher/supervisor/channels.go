package supervisor

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

const (
	maxMessage  = 512 << 20             // bytes of one message from a client
	maxHeader   = 16 << 10              // bytes of its header, which is kept until the request has ended
	batchBytes  = 256 << 10             // bytes written before anything else is looked at
	ackWindow   = 4 << 20               // bytes that may be unacknowledged, or one message
	ackBytes    = 256 << 10             // bytes after which a numbered ping goes out
	ackDelay    = 50 * time.Millisecond // the least time between two numbered pings, but for ackBytes
	ackLatest   = time.Second           // a message is followed by a ping no later
	pingIdle    = 15 * time.Second      // between pings when nothing is sent
	farewell    = 2 * time.Second       // for a client to take the rest when the kernel is gone
	closeReason = 120                   // bytes; RFC 6455 leaves 123
)

// conn is one websocket on .../channels: the handler's goroutine reads, and another one writes.
type conn struct {
	// Fixed. The websocket is there once the upgrade is done; until then flow is guarded by Supervisor.mu.
	s          *Supervisor
	ws         *websocket.Conn
	flow       *flowConn
	framing    framing
	relay      bool   // speaks wire.SubprotocolRelay; framing is framingV1 then
	number     uint64 // later connections have higher ones; a session has that of its first, and pings begin with it
	readOnly   bool
	sessionKey string // in Supervisor.sessions
	session    *session
	news       *reader         // of the log
	pongs      chan []byte     // pings to answer
	acks       chan struct{}   // capacity 1: something was acknowledged
	end        chan closeFrame // capacity 1: why to hang up

	// Guarded by Supervisor.mu.
	takesPart bool
	answered  int // pings
	acked     position

	// Owned by the writer.
	cursor    position
	batch     []*entry
	lastPing  time.Time
	sincePing int64             // bytes
	askNow    bool              // something essential was sent since the last ping
	leftOut   map[uint64]string // a copy of the session's

	// Guarded by mu.
	mu         sync.Mutex
	sent       int64 // bytes
	ackedBytes int64
	acksEver   bool // something was acknowledged, on this connection or an earlier one of the session
	pingNumber uint64
	pings      []sentPing
	largest    suspect // on its way
	tooBig     bool    // the peer has hung up over a message's size
	ours       bool    // it is the supervisor that ends the connection, or its peer was silent for too long
}

// sentPing is a numbered ping and what its pong will prove.
type sentPing struct {
	number uint64
	at     position
	sent   int64
}

// closeFrame is how a websocket is ended.
type closeFrame struct {
	code   int
	reason string
}

var upgrader = websocket.Upgrader{
	Subprotocols:     []string{wire.SubprotocolRelay, wire.SubprotocolV1},
	CheckOrigin:      func(*http.Request) bool { return true }, // the gateway has checked it
	HandshakeTimeout: 10 * time.Second,
	WriteBufferSize:  4 << 10,
	WriteBufferPool:  &sync.Pool{},
}

// getChannels is the kernel's websocket.
func (s *Supervisor) getChannels(w http.ResponseWriter, r *http.Request) error {
	if !websocket.IsWebSocketUpgrade(r) {
		return httpError{http.StatusBadRequest, "this is a websocket: an upgrade request is expected"}
	}
	c := &conn{s: s, readOnly: r.Header.Get(HeaderRight) == "read",
		news: newReader(), pongs: make(chan []byte, 4), acks: make(chan struct{}, 1), end: make(chan closeFrame, 1)}
	c.framing, c.relay = chooseFraming(r)
	if err := s.join(c, sessionName(r, c.readOnly), r.URL.Query().Get("cursor")); err != nil {
		return err
	}
	defer s.leave(c)
	h := &flowHijacker{ResponseWriter: w, owed: c.owed}
	ws, err := upgrader.Upgrade(h, r, nil)
	if err != nil {
		return nil // the library has answered
	}
	s.mu.Lock()
	c.ws, c.flow = ws, h.flow
	cut := s.cut
	s.mu.Unlock()
	if cut {
		return ws.Close()
	}
	begun := time.Now()
	s.logger.Info("websocket opened", "connection", c.number, "request", requestID(r))
	c.serve()
	c.mu.Lock()
	sent := c.sent
	c.mu.Unlock()
	s.logger.Info("websocket closed", "connection", c.number, "request", requestID(r), "took", time.Since(begun), "sent", sent)
	return nil
}

// sessionName keeps users, and those who may only read, out of each other's sessions: replies and prompts go to
// sessions, and the id of a page's session can be read in everything it causes.
func sessionName(r *http.Request, readOnly bool) string {
	id := r.URL.Query().Get("session_id")
	if id == "" {
		return ""
	}
	return fmt.Sprintf("%s\x00%v\x00%s", r.Header.Get(HeaderUser), readOnly, id)
}

// chooseFraming tells what a client understands. Binary frames stop an unmodified jupyter server for ever, and
// GatewayKernelClient, which names neither itself nor a session, reads text only.
func chooseFraming(r *http.Request) (f framing, relay bool) {
	offered := websocket.Subprotocols(r)
	switch agent := r.UserAgent(); {
	case slices.Contains(offered, wire.SubprotocolRelay):
		return framingV1, true
	case slices.Contains(offered, wire.SubprotocolV1):
		return framingV1, false
	case strings.HasPrefix(agent, "Tornado/"):
		return framingRelay, false
	case agent == "" && !r.URL.Query().Has("session_id"):
		return framingText, false
	}
	return framingLegacy, false
}

func (s *Supervisor) join(c *conn, sessionID, cursor string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.over:
		return errOver
	default:
	}
	s.connNumber++
	c.number = s.connNumber
	if err := s.attach(c, sessionID, s.now()); err != nil {
		return err
	}
	if c.relay && cursor != "" {
		c.goOn(cursor)
	}
	c.pingNumber = c.number << 32 // a late answer to an earlier connection's ping is none to this one's
	s.handlers.Add(1)
	s.log.subscribe(c.news, c.session, c.framing)
	return nil
}

func (s *Supervisor) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.unsubscribe(c.news, c.framing)
	s.detach(c, s.now())
	s.changed()
	s.handlers.Done()
}

// serve runs the connection until it ends.
func (c *conn) serve() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.write(ctx)
		// The reader notices by this: at once after an error, after the peer's close frame or closeGrace otherwise.
		c.flow.SetDeadline(time.Now().Add(closeGrace)) //nolint:errcheck // a closed connection has no deadline
	}()
	c.read()
	cancel()
	c.flow.Close() //nolint:errcheck // nothing is left to be done about it
	<-done
}

// read takes messages until the connection ends. It never waits for the kernel.
func (c *conn) read() {
	c.ws.SetPongHandler(func(data string) error { c.pong(data); return nil })
	hungUp := false
	c.ws.SetPingHandler(func(data string) error {
		if hungUp {
			return nil // a relay takes the answer for the proof that all before it was accepted
		}
		select {
		case c.pongs <- []byte(data):
		default: // it has not taken the answers to its last ones
		}
		return nil
	})
	c.ws.SetCloseHandler(func(code int, _ string) error {
		if code == websocket.CloseMessageTooBig {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.tooBig = true
		}
		return nil
	})
	for {
		kind, r, err := c.ws.NextReader()
		if err != nil {
			c.refuseFrame(err)
			return
		}
		if hungUp { // the close frame is on its way, and the peer may still be sending
			if _, err := io.Copy(io.Discard, r); err != nil {
				c.refuseFrame(err)
				return
			}
			continue
		}
		data, err := readAll(r, c.s.maxMessage)
		if errors.Is(err, errTooLarge) {
			hungUp = true
			c.hangUp(closeFrame{websocket.CloseMessageTooBig, fmt.Sprintf("a message of more than %d bytes", c.s.maxMessage)})
			continue
		}
		if err != nil {
			c.refuseFrame(err)
			return
		}
		if frame := c.take(kind, data); frame != nil {
			hungUp = true
			c.hangUp(*frame)
		}
	}
}

// refuseFrame sees to it that a peer whose frames are none is told so, if that is what has ended reading. To close the socket with unread
// bytes in it would reset the connection, and take the close frame away again.
func (c *conn) refuseFrame(err error) {
	var ended *websocket.CloseError
	var network net.Error
	if errors.As(err, &ended) || errors.As(err, &network) || errors.Is(err, net.ErrClosed) {
		return // its peer has gone, or the writer has ended it
	}
	c.endsHere()
	if errors.Is(err, websocket.ErrReadLimit) { // of all else the library has told
		c.sayGoodbye(closeFrame{websocket.CloseMessageTooBig, "a frame that is longer than there can be"})
	}
	if err := c.flow.Flush(); err != nil {
		return // it is broken
	}
	if half, ok := c.flow.Conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // fails on broken connections, which say it by themselves
	}
	_ = c.flow.SetReadDeadline(time.Now().Add(closeGrace)) // the read below tells
	_, _ = io.Copy(io.Discard, c.flow)                     // until the peer has hung up, too
}

var errTooLarge = errors.New("message too large")

// readAll reads a message into memory of its own. It doubles what it has, where io.ReadAll adds a quarter and copies a
// large message five times.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	b := make([]byte, 0, 512)
	for {
		if int64(len(b)) > limit {
			return nil, errTooLarge
		}
		if len(b) == cap(b) {
			b = append(make([]byte, 0, 2*cap(b)), b...)
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case errors.Is(err, io.EOF):
			return b, nil
		case err != nil:
			return nil, err
		}
	}
}

// hangUp has the writer end the connection.
func (c *conn) hangUp(f closeFrame) {
	select {
	case c.end <- f:
	default:
	}
}

// take handles one message of the client, and returns how to end the connection if it is not acceptable.
func (c *conn) take(kind int, data []byte) *closeFrame {
	var m wire.Message
	var err error
	switch {
	case c.framing == framingV1 && kind == websocket.BinaryMessage:
		m, err = wire.DecodeV1(data)
	case c.framing == framingV1:
		return &closeFrame{websocket.CloseUnsupportedData, "text on a connection that speaks " + wire.SubprotocolV1}
	default:
		m, err = wire.DecodeLegacy(data, kind == websocket.BinaryMessage)
	}
	var h wire.Header
	if err == nil {
		h, err = wire.ParseHeader(m.Header)
	}
	if err == nil && (len(m.Header) > maxHeader || !json.Valid(m.Header)) {
		// It becomes the parent of messages to all clients.
		err = fmt.Errorf("%w: header of %d bytes is no JSON or too long", wire.ErrMalformed, len(m.Header))
	}
	switch {
	case errors.Is(err, wire.ErrChannel), err == nil && m.Channel == wire.IOPub:
		c.s.logger.Debug("message for no channel of the kernel was ignored")
		return nil
	case err != nil:
		return &closeFrame{websocket.CloseInvalidFramePayloadData, err.Error()}
	}
	m.Header = bytes.Clone(m.Header) // it outlives the rest of the message
	return c.s.accept(c, m, h)
}

// owed is the number of bytes that the peer has not acknowledged.
func (c *conn) owed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent - c.ackedBytes
}

// pong notes what a numbered ping proves: its peer's websocket took everything before it. Peers may answer only the
// newest of several pings, so numbers are cumulative.
func (c *conn) pong(data string) {
	if len(data) != 8 {
		return
	}
	number := binary.BigEndian.Uint64([]byte(data))
	var at position
	c.mu.Lock()
	found := false
	for i, p := range c.pings {
		if p.number == number {
			at, found = p.at, true
			c.ackedBytes, c.acksEver = p.sent, true
			if c.largest.seq <= p.at.seq {
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
		c.s.takePart(c)
	}
	c.s.acknowledge(c, at)
	c.s.mu.Unlock()
	poke(c.acks)
}

// write moves the cursor through the log until the connection ends.
func (c *conn) write(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var goodbye <-chan time.Time
	over := c.s.over
	var pace pacer
	for {
		c.flow.cork()
		more, err := c.writeBatch()
		if err == nil {
			err = c.writePings()
		}
		if ferr := c.flow.Flush(); err == nil {
			err = ferr
		}
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.endsHere()
			}
			if !errors.Is(err, websocket.ErrCloseSent) { // by the reader, which waits for its peer to take it
				c.flow.Close() //nolint:errcheck // the connection is broken already
			}
			return
		}
		if more {
			poke(c.news.wake) // and look at everything else in between
		} else if goodbye != nil && !c.windowFull() {
			c.sayGoodbye(closeFrame{websocket.CloseNormalClosure, "the kernel is gone: " + c.s.farewellText()})
			return
		}
		wake, due := c.news.wake, time.Until(c.nextDue())
		if wait := pace.wrote(len(c.batch), time.Now()); wait > 0 {
			wake, due = nil, min(wait, due)
		}
		timer.Reset(due)
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-c.news.urgent:
		case <-c.acks:
		case data := <-c.pongs:
			if err := c.ws.WriteControl(websocket.PongMessage, data, time.Now().Add(patience)); err != nil {
				return
			}
		case f := <-c.end:
			c.sayGoodbye(f)
			return
		case <-over:
			over, goodbye = nil, time.After(farewell)
		case <-goodbye:
			c.sayGoodbye(closeFrame{websocket.CloseNormalClosure, "the kernel is gone: " + c.s.farewellText()})
			return
		case <-timer.C:
			if time.Now().After(c.flow.deadline()) {
				c.endsHere()
				c.flow.Close() //nolint:errcheck // its peer is gone
				return
			}
		}
	}
}

func (s *Supervisor) farewellText() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.farewell
}

// endsHere notes that it is no fault of what was sent that the connection ends.
func (c *conn) endsHere() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ours = true
}

func (c *conn) sayGoodbye(f closeFrame) {
	c.endsHere()
	if len(f.reason) > closeReason {
		f.reason = strings.ToValidUTF8(f.reason[:closeReason], "")
	}
	err := c.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(f.code, f.reason), time.Now().Add(closeGrace))
	if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, websocket.ErrCloseSent) {
		c.s.logger.Debug("close frame was not delivered", "err", err)
	}
}

func (c *conn) windowFull() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.acksEver && c.sent-c.ackedBytes >= ackWindow
}

// writeBatch sends what the log has, up to batchBytes, and reports whether there may be more.
func (c *conn) writeBatch() (more bool, err error) {
	if c.windowFull() {
		c.batch = c.batch[:0]
		return false, nil
	}
	batch, now, lost := c.s.log.read(c.cursor, c.session, batchBytes, c.batch)
	if lost > 0 {
		if err := c.writeLoss(lost); err != nil {
			return false, err
		}
	}
	for _, e := range batch {
		f, err := c.encode(e)
		if err != nil {
			c.s.logger.Warn("message of the kernel cannot be sent in this framing", "err", err)
			continue
		}
		c.askNow = c.askNow || e.essential
		c.noteSent(e.at.seq, len(f.data))
		if err := c.writeFrame(e.at, f); err != nil {
			return false, err
		}
	}
	clear(batch)
	c.batch = batch
	more = now.seq != c.cursor.seq
	c.cursor = now
	return more, nil
}

// writeFrame sends what stands at a position in the log.
func (c *conn) writeFrame(at position, f *frame) error {
	kind := websocket.TextMessage
	if f.binary {
		kind = websocket.BinaryMessage
	}
	c.mu.Lock()
	c.sent += int64(len(f.data))
	c.mu.Unlock()
	c.sincePing += int64(len(f.data))
	if c.relay {
		return c.writeRelayed(at, f)
	}
	return c.ws.WriteMessage(kind, f.data)
}

// writeLoss says how much of the output a client that was away or slow has missed.
func (c *conn) writeLoss(lost uint64) error {
	c.s.mu.Lock()
	c.s.lost.Add(int64(lost))
	m := c.s.notice(c.session.cell, "%d messages of output are missing here: this page was away or too slow for longer than the gateway keeps output.", lost)
	c.s.mu.Unlock()
	f, err := encodeFrame(&m, c.framing)
	if err != nil {
		return err
	}
	return c.writeFrame(c.cursor, f)
}

// nextDue is when the writer has to look up again: for the next ping or the peer's end.
func (c *conn) nextDue() time.Time {
	due := c.lastPing.Add(pingIdle)
	if c.sincePing > 0 {
		due = c.lastPing.Add(ackDelay)
		if c.pingOutstanding() {
			due = c.lastPing.Add(ackLatest)
		}
	}
	if end := c.flow.deadline(); end.Before(due) {
		return end.Add(time.Millisecond)
	}
	return due
}

func (c *conn) pingOutstanding() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pings) > 0
}

// writePings sends a numbered ping if one is due.
func (c *conn) writePings() error {
	now := time.Now()
	since := now.Sub(c.lastPing)
	switch {
	case c.sincePing >= ackBytes:
	case c.askNow:
		// JupyterLab opens its websocket anew as soon as it reads that the kernel restarts. Read again there for want of an
		// answer, that would be another restart.
	case c.sincePing > 0 && since >= ackDelay && !c.pingOutstanding():
	case c.sincePing > 0 && since >= ackLatest:
	case since >= pingIdle:
	default:
		return nil
	}
	c.mu.Lock()
	c.pingNumber++
	n := c.pingNumber
	if len(c.pings) >= 1024 { // of a peer that never answers; its next answer proves the rest
		c.pings = append(c.pings[:0], c.pings[512:]...)
	}
	c.pings = append(c.pings, sentPing{number: n, at: c.cursor, sent: c.sent})
	c.mu.Unlock()
	c.lastPing, c.sincePing, c.askNow = now, 0, false
	return c.ws.WriteControl(websocket.PingMessage, binary.BigEndian.AppendUint64(nil, n), now.Add(patience))
}
