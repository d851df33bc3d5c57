// Package connection is a client's websocket on a kernel's channels. A Conn moves a cursor through the message log as
// fast as its peer reads, and passes the peer's messages on. It knows which entries of the log the peer has
// acknowledged. It knows nothing of the kernel: its Handler, which package supervisor implements, decides what a
// message or an acknowledgement means. Begin with Conn and Serve.
//
// Serve runs in the goroutine of the HTTP request, which reads. It starts the writer, and a goroutine that waits for
// the end of a gateway that has handed over its client's socket. It waits for both. The writer sends everything, except
// for some close frames. The peer acknowledges by pongs to numbered pings: a pong proves that the peer's websocket has
// received everything before that ping.
//
// Conn.mu is held for a few instructions only. Nothing else is locked, written or called while it is held. So callers
// may hold their own locks while they call Close and End.
package connection

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/flow"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

// EndTimeout is the time in which most connections have ended after Options.Over was closed. Close ends the others.
const EndTimeout = restTimeout + closeGrace

const (
	closeGrace  = time.Second     // for the peer to answer a close frame
	restTimeout = 2 * time.Second // for the peer to take the rest when the kernel has ended

	answerTimeout = 5 * time.Second // for the peer to take the answer to its close frame
)

// Handler handles what happens on a connection. The reader and the writer call it concurrently, without holding a lock.
type Handler interface {
	// Receive handles a message of the client. If the message is not acceptable, it returns how to close the websocket.
	// It never waits for the kernel.
	Receive(m jupyter.Message, h jupyter.Header) *framing.CloseError
	// Acknowledge notes that the client has everything up to p, which was messages messages on this connection. Both
	// never decrease.
	Acknowledge(p messagelog.Position, messages int)
	// Unanswered notes that the client has left two pings unanswered. It may be called again.
	Unanswered()
	// LossNotice counts messages of output that the client has missed, and returns the message that tells the client.
	LossNotice(lost messagelog.Loss) jupyter.Message
	// EndReason returns why the kernel has ended. It is called after Options.Over was closed.
	EndReason() string
}

// Options are a connection's settings and its place in the log.
type Options struct {
	Number        uint64 // later connections have higher numbers; numbers of pings begin with it
	Framing       framing.Framing
	Relay         bool // the peer uses jupyter.SubprotocolRelay; Framing is V1 then
	Handler       Handler
	SessionNumber uint64 // of the session in the log
	Log           *messagelog.Log
	Cursor        messagelog.Position // the connection sends the entries behind it
	Replaced      map[uint64]string   // by Seq: messages that are replaced by a notice, and why
	Acknowledges  bool                // the session has acknowledged something on an earlier connection
	Compress      bool                // the peer may have its messages compressed, if it offers that
	MaxMessage    int64               // bytes of one message from the client
	Input         InputShare          // the user's share of the kernel's unfinished input
	TakeOver      bool                // the gateway sends its client's socket after the 101; see package api
	Watched       bool                // the gateway ends its client's connection if the client is gone; not after TakeOver
	Over          <-chan struct{}     // closed when the kernel has ended for good
	Logger        *slog.Logger
}

// Conn is one websocket. Its owner calls Upgrade and then Serve, once each. Close and End may be called at any time.
type Conn struct {
	// Fixed. ws, flow and compresses are set by Upgrade; until then mu guards flow.
	o          Options
	ws         *websocket.Conn
	compresses bool // the peer takes compressed messages
	flow       *flow.Conn
	reader     *messagelog.Reader      // of the log
	before     atomic.Uint64           // Seq of the entry before which the writer sends a ping; 0: none
	pongs      chan []byte             // pings to answer
	acks       chan struct{}           // capacity 1: something was acknowledged
	end        chan framing.CloseError // capacity 1: why to close the websocket

	held int64 // bytes of Options.Input; owned by the reader

	// Owned by the writer.
	cursor    messagelog.Position
	batch     []*messagelog.Entry
	batchSize int64                     // bytes of the messages of batch, as sent
	payload   []byte                    // reused for small messages
	place     [jupyter.RelayCursor]byte // reused for the cursors of a relay
	parts     [][]byte                  // reused for the messages of a relay
	lastPing  time.Time
	sincePing int64  // bytes
	textOnly  []byte // parent of the last message that was sent without its buffers
	pingNow   bool   // something essential was sent since the last ping: send one at once

	// Guarded by mu.
	mu         sync.Mutex
	direct     []jupyter.Message // for this connection alone; see Send
	directSize int               // bytes of direct
	closed     bool              // Close was called
	sent       int64             // bytes
	messages   int               // that were sent
	ackedBytes int64
	acksEver   bool // something was acknowledged, on this connection or an earlier one of the session
	signs      int  // of a client that uses the connection; see used
	pingNumber uint64
	pings      []sentPing
	error      mark         // the ping just before an error
	largest    largeMessage // the largest message that is sent and not acknowledged
	tooBig     bool         // see End.TooBig
	local      bool         // see End.Local
	closing    bool         // see End.Closed
}

// End is how a connection has ended, as far as a message may be the cause.
type End struct {
	Unacknowledged uint64 // Seq of the largest large message that was sent and not acknowledged; 0: there is none
	TooBig         bool   // the peer has closed because of a message's size
	Local          bool   // the connection was closed here, or the peer was silent for too long
	Closed         bool   // the peer has closed the websocket with a close frame
}

// New returns a connection that is not upgraded yet.
func New(o Options) *Conn {
	return &Conn{
		o:          o,
		reader:     messagelog.NewReader(),
		pongs:      make(chan []byte, 4),
		acks:       make(chan struct{}, 1),
		end:        make(chan framing.CloseError, 1),
		cursor:     o.Cursor,
		acksEver:   o.Acknowledges,
		pingNumber: o.Number << 32, // so that a late pong to an earlier connection proves nothing here
	}
}

var upgrader = websocket.Upgrader{
	Subprotocols:     framing.Subprotocols(),
	CheckOrigin:      func(*http.Request) bool { return true }, // the gateway has checked it
	HandshakeTimeout: 10 * time.Second,
	WriteBufferSize:  4 << 10,
	WriteBufferPool:  &sync.Pool{},
}

// Upgrade answers an upgrade request, with the headers of extra in its 101. With Options.TakeOver it then receives the
// client's socket. It reports false if there is no connection to serve: the request was not acceptable, and the client
// has the error, or no socket came, or Close was called.
func (c *Conn) Upgrade(w http.ResponseWriter, r *http.Request, extra http.Header) bool {
	h := &flow.Hijacker{ResponseWriter: w, Owed: c.owed, Used: c.used, Watched: c.o.Watched}
	u, compresses := c.chooseUpgrader(r)
	ws, err := u.Upgrade(h, r, extra)
	if err != nil {
		return false // the library has sent the error
	}
	c.mu.Lock()
	c.ws, c.flow, c.compresses = ws, h.Conn, compresses
	closed := c.closed
	c.mu.Unlock()
	if !closed && c.o.TakeOver {
		err = c.flow.TakeOver()
	}
	if closed || err != nil {
		if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) { // Close, or the client has gone
			c.o.Logger.Warn("client's socket was not received", logkey.Err, err)
		}
		c.flow.Close() //nolint:errcheck // nothing was sent
		return false
	}
	return true
}

// Serve reads and writes until the connection ends. It returns how many bytes were sent.
func (c *Conn) Serve() (sent int64) {
	c.o.Log.Subscribe(c.reader, c.o.SessionNumber, c.o.Framing)
	defer c.o.Log.Unsubscribe(c.reader, c.o.Framing)
	ctx, cancel := context.WithCancel(context.Background())
	var others sync.WaitGroup
	others.Go(func() {
		c.write(ctx)
		// This ends the reader: at once after an error, otherwise with the peer's close frame or after closeGrace.
		c.flow.SetDeadline(time.Now().Add(closeGrace)) //nolint:errcheck // a closed connection has no deadline
	})
	others.Go(c.flow.AwaitGateway)
	c.read()
	cancel()
	c.flow.Close() //nolint:errcheck // it may be closed already
	others.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// Bounds of the messages that wait in Conn.direct, in bytes.
const (
	directLimit    = 4 << 20
	directOverhead = 512 // of a message
)

// Send sends messages to this connection alone, past the log. A client's requests that never reach the kernel are
// answered so: in the log, the answers would evict what others are to read. Send never waits. A peer that sends
// requests and does not read the answers is closed with 1013.
func (c *Conn) Send(messages ...jupyter.Message) {
	c.mu.Lock()
	for i := range messages {
		c.directSize += messages[i].Size() + directOverhead
	}
	full := c.directSize > directLimit
	if !full {
		c.direct = append(c.direct, messages...)
	}
	c.mu.Unlock()
	if full {
		c.closeWith(framing.CloseError{Code: websocket.CloseTryAgainLater,
			Reason: "answers to rejected requests are not read"})
		return
	}
	goroutines.Wake(c.reader.Urgent)
}

// Close closes the connection at once, without a close frame. It does not wait for Serve.
func (c *Conn) Close() {
	c.mu.Lock()
	c.closed, c.local = true, true
	f := c.flow
	c.mu.Unlock()
	if f != nil {
		f.Close() //nolint:errcheck // it may be closed already
	}
}

// End returns how the connection has ended. It is called after Serve.
func (c *Conn) End() End {
	c.mu.Lock()
	defer c.mu.Unlock()
	return End{Unacknowledged: c.largest.seq, TooBig: c.tooBig, Local: c.local, Closed: c.closing}
}

// owed returns how many bytes the peer has not acknowledged.
func (c *Conn) owed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent - c.ackedBytes
}

// noteLocal notes that the connection does not end because of a message.
func (c *Conn) noteLocal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.local = true
}
