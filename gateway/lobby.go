package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// The lobby's bounds. What it holds lies in this program's memory, and a client that is sent away connects again.
const (
	lobbyBytes    = 10 << 20  // of one client
	lobbyMessages = 10_000    // of one client
	lobbyTotal    = 256 << 20 // bytes of all clients together
	lobbyHeader   = 16 << 10  // bytes of one message's header, which is repeated in what is said about it: a supervisor's bound

	lobbyPatience = time.Second            // a start that takes no longer is not worth a word
	lobbyLook     = 500 * time.Millisecond // between two looks at a kernel of which nothing is heard
	lobbyDial     = 5 * time.Second        // for one handshake with a supervisor that may not be there yet
	lobbyPing     = 15 * time.Second       // between pings, for the proxies in front
	lobbyWrite    = 20 * time.Second       // for a client to take what is said to it
	closeReason   = 120                    // bytes; RFC 6455 leaves 123
)

// lobby is where a websocket waits while its kernel has no supervisor. Its reader parses what the client sends only to
// know when pings are to be answered and which cells wait; what the client sent is kept as the bytes that came, so that a
// supervisor gets what it would have got without a lobby, broken off anywhere.
type lobby struct {
	// Fixed after enter.
	g       *Gateway
	id      string // the kernel's
	ws      *websocket.Conn
	client  *recorder // what ws runs on
	v1      bool
	cursor  []byte // before each message to a relay; nil for everybody else
	session string // of the messages that are said here
	display string // id of the display under the cell
	began   time.Time

	// Owned by the reader until it has ended.
	messages int
	relayed  int // end of the newest ping of a relay in client.held, whose length is relayLen; 0 if there is none
	relayLen int

	// Guarded by mu, as is writing messages.
	mu     sync.Mutex
	reason string     // why the kernel is not there, as its launcher said last
	cell   []byte     // header of the first execute_request: the reason stands under it
	shown  string     // what stands there now
	asked  []question // what is to be answered if the kernel dies
}

// question is a message that its sender expects an answer to.
type question struct {
	channel wire.Channel
	msgType string
	header  []byte
}

// goodbye is an end of the connection that its client is told.
type goodbye struct {
	code int
	text string
}

func (e *goodbye) Error() string { return fmt.Sprintf("closed with %d: %s", e.code, e.text) }

// death is the end of the kernel.
type death struct{ reason string }

func (e *death) Error() string { return "the kernel is dead: " + e.reason }

// errHandover ends the reader, because a supervisor is there.
var errHandover = errors.New("handed over")

// waitInLobby takes a websocket whose kernel has no supervisor yet, and joins it to the supervisor once there is one. It
// returns an error only as long as there is an answer to be given.
func (g *Gateway) waitInLobby(w http.ResponseWriter, r *http.Request, c *connection) error {
	l, err := g.enterLobby(w, r, c.kernel)
	if err != nil {
		return err
	}
	if rec, ok := w.(*response); ok {
		rec.status = http.StatusSwitchingProtocols
	}
	defer g.follow(r, c)()
	ctx, leave := context.WithCancelCause(c.ctx)
	defer leave(nil)
	var reader sync.WaitGroup
	reader.Go(func() { leave(l.read()) })

	up, head, cause := l.await(ctx, r)
	_ = l.client.SetReadDeadline(past) // fails only on a closed connection
	reader.Wait()
	g.lobbyHeld.Add(-int64(len(l.client.held)))
	if cause == nil {
		if cause = l.handOver(context.Cause(ctx), head); cause == nil {
			s := newSplice(l.client.Conn, up.conn, l.client.held, up.early)
			l.client.held = nil
			c.splice.Store(s)
			c.cause = s.run(c.ctx)
			return nil
		}
		_ = up.conn.Close() // nothing came of it
	}
	l.end(cause)
	c.cause = cause
	return nil
}

// lobbyUpgrader chooses as supervisors do. Origin and host are checked for every request.
var lobbyUpgrader = websocket.Upgrader{
	Subprotocols:    []string{wire.SubprotocolRelay, wire.SubprotocolV1},
	CheckOrigin:     func(*http.Request) bool { return true },
	Error:           func(http.ResponseWriter, *http.Request, int, error) {}, // enterLobby's error is the answer
	WriteBufferSize: 1 << 10,
	WriteBufferPool: &sync.Pool{},
}

// enterLobby makes the handshake with the client and tells it that its kernel is starting.
func (g *Gateway) enterLobby(w http.ResponseWriter, r *http.Request, id string) (*lobby, error) {
	header := http.Header{}
	if request := w.Header().Get(headerRequestID); request != "" {
		header.Set(headerRequestID, request)
	}
	h := &lobbyHijacker{ResponseWriter: w, g: g}
	ws, err := lobbyUpgrader.Upgrade(h, r, header)
	var bad websocket.HandshakeError
	switch {
	case errors.As(err, &bad):
		return nil, refuse(http.StatusBadRequest, "The request is no upgrade to a websocket as RFC 6455 wants it.")
	case err != nil:
		return nil, &unwritten{err}
	}
	l := &lobby{g: g, id: id, ws: ws, client: h.conn, v1: ws.Subprotocol() != "", session: wire.NewID(),
		display: "ekg-starting-" + wire.NewID(), began: time.Now()}
	if ws.Subprotocol() == wire.SubprotocolRelay {
		// The relay goes on where it was, once there is somebody who knows where that is.
		l.cursor = make([]byte, wire.RelayCursor)
		if at, err := hex.DecodeString(r.URL.Query().Get("cursor")); err == nil && len(at) == wire.RelayCursor {
			l.cursor = at
		}
	}
	tune(h.conn.Conn)
	ws.SetPingHandler(l.ping)
	ws.SetPongHandler(func(data string) error { l.client.cut(len(data)); return nil })
	if err := l.say(l.status("starting", nil)); err != nil {
		_ = ws.Close() // it is broken
		return nil, &unwritten{err}
	}
	return l, nil
}

// await returns the connection to the supervisor once there is one, with the head of its answer, or why there will be
// none.
func (l *lobby) await(ctx context.Context, r *http.Request) (*upgraded, http.Header, error) {
	r = r.Clone(r.Context())
	// What the client was promised is what the supervisor is asked for.
	r.Header.Del("Sec-Websocket-Extensions")
	r.Header.Del("Sec-Websocket-Protocol")
	if chosen := l.ws.Subprotocol(); chosen != "" {
		r.Header.Set("Sec-Websocket-Protocol", chosen)
	}
	k, err := l.next(ctx, launcher.Kernel{})
	if err != nil {
		return nil, nil, err
	}
	pinged := l.began
	for {
		up, head, err := l.dial(ctx, r)
		var undelivered *undeliveredError
		switch {
		case err == nil:
			return up, head, nil
		case ctx.Err() != nil:
			return nil, nil, context.Cause(ctx)
		case !errors.As(err, &undelivered):
			return nil, nil, &goodbye{websocket.CloseTryAgainLater, problemOf(r, err).message}
		}
		if err := l.tell(k.Reason); err != nil {
			return nil, nil, err
		}
		if k, err = l.next(ctx, k); err != nil {
			return nil, nil, err
		}
		if time.Since(pinged) >= l.g.lobbyPing {
			pinged = time.Now()
			if err := l.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(lobbyWrite)); err != nil {
				return nil, nil, err
			}
		}
	}
}

func (l *lobby) dial(ctx context.Context, r *http.Request) (*upgraded, http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, lobbyDial)
	defer cancel()
	return l.g.upgradeSupervisor(ctx, r, l.id)
}

// next waits until the kernel is no longer as it was last, which the first sign of its supervisor changes, or for lobbyLook.
// Its error says why there is nothing left to wait for.
func (l *lobby) next(ctx context.Context, last launcher.Kernel) (launcher.Kernel, error) {
	look, cancel := context.WithTimeout(ctx, lobbyLook)
	defer cancel()
	k, err := l.g.opts.Launcher.Wait(look, l.id, func(k launcher.Kernel) bool {
		return k.State != last.State || k.Reason != last.Reason || k.Stale != last.Stale ||
			!k.LastActivity.Equal(last.LastActivity)
	})
	var gone *launcher.GoneError
	switch {
	case ctx.Err() != nil:
		return k, context.Cause(ctx)
	case errors.As(err, &gone):
		return k, &death{gone.Reason}
	case errors.Is(err, launcher.ErrNotFound):
		return k, &death{"it was removed"}
	case err == nil, errors.Is(err, context.DeadlineExceeded) && k.ID != "":
		if k.State == launcher.Dead {
			return k, &death{k.Reason}
		}
		return k, nil
	}
	<-look.Done() // of a kernel that cannot be seen now, nothing is known that is worth another word
	return last, nil
}

// handOver ends the lobby's part in a connection, if nothing has ended the connection: read is why the reader has ended.
// Whatever the client sends from now on is read by who comes next, and nothing is said here any more.
func (l *lobby) handOver(read error, head http.Header) error {
	switch {
	case !errors.Is(read, errHandover):
		return read
	case head.Get("Sec-Websocket-Protocol") != l.ws.Subprotocol(), head.Get("Sec-Websocket-Extensions") != "":
		return &goodbye{websocket.CloseServiceRestart, "the kernel's supervisor speaks another protocol: connect again"}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.show(""); err != nil {
		return err
	}
	return l.client.SetDeadline(time.Time{})
}

// end closes the connection. Who is not gone by itself is told why, as far as frames of its own tell more than the end of
// the stream.
func (l *lobby) end(cause error) {
	if errors.Is(cause, errKernelStopped) {
		cause = &death{"it was shut down on request"}
	}
	var dead *death
	if errors.As(cause, &dead) {
		cause = &goodbye{websocket.CloseNormalClosure, "the kernel is gone: " + dead.reason}
		if err := l.bury(dead.reason); err != nil {
			cause = err
		}
	}
	var bye *goodbye
	if errors.As(cause, &bye) {
		frame := websocket.FormatCloseMessage(bye.code, shorten(bye.text, closeReason))
		_ = l.ws.WriteControl(websocket.CloseMessage, frame, time.Now().Add(flushTime)) // it ends all the same
	}
	closeWrite(l.client.Conn)
	linger(l.client.Conn, time.Now().Add(flushTime))
	_ = l.ws.Close() // see linger
}

// shorten returns at most n bytes of a text, whole characters only.
func shorten(text string, n int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// read takes what the client sends until the connection or the lobby ends, and returns why.
func (l *lobby) read() error {
	for {
		kind, data, err := l.ws.ReadMessage()
		switch {
		case l.client.full:
			return &goodbye{websocket.CloseTryAgainLater, "more is waiting for the kernel than is kept"}
		case l.client.stopped:
			return errHandover
		case errors.Is(err, websocket.ErrReadLimit): // of all else that is no frame the library has told
			return &goodbye{websocket.CloseMessageTooBig, "a frame that is longer than there can be"}
		case err != nil:
			return ending(err)
		}
		if err := l.take(kind == websocket.BinaryMessage, data); err != nil {
			return err
		}
	}
}

// ping answers a ping. Not a relay's: to a relay the answer proves that all before was accepted for good, which only the
// supervisor can say. Of its pings the newest stands for all.
func (l *lobby) ping(data string) error {
	if l.cursor == nil {
		l.client.cut(len(data))
		return l.ws.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(lobbyWrite))
	}
	if l.relayed > 0 {
		l.client.cutAt(l.relayed-l.relayLen, l.relayed)
	}
	l.relayed, l.relayLen = l.client.consumed(), controlFrame(len(data))
	return nil
}

// take looks at a message: whether a supervisor would have it at all, and what its sender expects.
func (l *lobby) take(binary bool, data []byte) error {
	if l.messages++; l.messages > lobbyMessages {
		return &goodbye{websocket.CloseTryAgainLater, "more is waiting for the kernel than is kept"}
	}
	var m wire.Message
	var err error
	switch {
	case !l.v1:
		m, err = wire.DecodeLegacy(data, binary)
	case binary:
		m, err = wire.DecodeV1(data)
	default:
		return &goodbye{websocket.CloseUnsupportedData, "text on a connection that speaks " + l.ws.Subprotocol()}
	}
	var h wire.Header
	if err == nil {
		h, err = wire.ParseHeader(m.Header)
	}
	switch {
	case errors.Is(err, wire.ErrChannel), err == nil && m.Channel == wire.IOPub:
		return nil // no kernel gets it
	case err != nil, len(m.Header) > lobbyHeader, !json.Valid(m.Header):
		return &goodbye{websocket.CloseInvalidFramePayloadData, "a message that is malformed"}
	case h.MsgID == "", m.Channel == wire.Stdin:
		return nil // nobody waits for an answer
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	q := question{m.Channel, h.MsgType, bytes.Clone(m.Header)}
	l.asked = append(l.asked, q)
	if l.cell != nil || q.msgType != "execute_request" {
		return nil
	}
	l.cell = q.header
	return l.explain()
}

// tell notes why the kernel is not there, and shows it.
func (l *lobby) tell(reason string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reason = reason
	return l.explain()
}

// explain shows why the kernel is not there. l.mu is held.
func (l *lobby) explain() error {
	if time.Since(l.began) < lobbyPatience {
		return nil
	}
	return l.show("[ekg] " + startingText(l.reason))
}

// show replaces what stands under the first cell, if there is one; "" takes it away. l.mu is held.
func (l *lobby) show(text string) error {
	if l.cell == nil || text == l.shown {
		return nil
	}
	msgType, data := "update_display_data", map[string]string{}
	if text != "" {
		data["text/plain"] = text
	}
	if l.shown == "" {
		msgType = "display_data"
		if err := l.say(l.status("busy", l.cell)); err != nil {
			return err
		}
	}
	l.shown = text
	return l.say(wire.New(wire.IOPub, msgType, l.session, l.cell, map[string]any{
		"data": data, "metadata": struct{}{}, "transient": map[string]string{"display_id": l.display}}))
}

// bury says that the kernel has died: under the first cell, and to everybody who waits for an answer.
func (l *lobby) bury(reason string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.show("[ekg] The kernel is dead: " + sentence(reason)); err != nil {
		return err
	}
	for _, q := range l.asked {
		if asked, ok := strings.CutSuffix(q.msgType, "_request"); ok {
			reply := wire.New(q.channel, asked+"_reply", l.session, q.header, map[string]any{
				"status": "error", "ename": "KernelDied", "evalue": reason, "traceback": []string{}})
			if err := l.say(reply); err != nil {
				return err
			}
		}
		if err := l.say(l.status("idle", q.header)); err != nil {
			return err
		}
	}
	return l.say(l.status("dead", nil))
}

func (l *lobby) status(state string, parent []byte) wire.Message {
	return wire.New(wire.IOPub, "status", l.session, parent, map[string]string{"execution_state": state})
}

// say writes a message to the client, in the framing that it understands. l.mu is held, or nobody else is there yet.
func (l *lobby) say(m wire.Message) error {
	kind, frame := websocket.TextMessage, []byte(nil)
	if l.v1 {
		kind, frame = websocket.BinaryMessage, append(slices.Clone(l.cursor), wire.EncodeV1(&m)...)
	} else {
		var err error
		if frame, _, err = wire.EncodeLegacy(&m, false); err != nil {
			return err
		}
	}
	if err := l.ws.SetWriteDeadline(time.Now().Add(lobbyWrite)); err != nil {
		return err
	}
	return l.ws.WriteMessage(kind, frame)
}

// lobbyHijacker lets the websocket library run on a recorder.
type lobbyHijacker struct {
	http.ResponseWriter
	g    *Gateway
	conn *recorder
}

func (h *lobbyHijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	// Peek of what is buffered cannot fail; the bytes are part of a reader that is given up here.
	early, _ := rw.Reader.Peek(rw.Reader.Buffered())
	h.conn = &recorder{Conn: conn, g: h.g, early: bytes.Clone(early)}
	h.conn.reader = bufio.NewReaderSize(h.conn, smallBuffer)
	return h.conn, bufio.NewReadWriter(h.conn.reader, rw.Writer), nil
}

// recorder is a client's connection that keeps what is read from it. All but writing belongs to its one reader.
type recorder struct {
	net.Conn
	g       *Gateway
	early   []byte        // what was read before
	reader  *bufio.Reader // the one that reads from it
	held    []byte        // everything read, but for what was cut out
	full    bool          // there is no more room for what comes
	stopped bool          // it was its deadline that ended reading
}

var errLobbyFull = errors.New("the lobby's bound is reached")

func (c *recorder) Read(b []byte) (int, error) {
	var n int
	var err error
	if len(c.early) > 0 {
		n = copy(b, c.early)
		c.early = c.early[n:]
	} else {
		n, err = c.Conn.Read(b)
	}
	c.held = append(c.held, b[:n]...)
	if c.g.lobbyHeld.Add(int64(n)) > lobbyTotal || len(c.held) > lobbyBytes {
		c.full = true
		return n, errLobbyFull
	}
	c.stopped = errors.Is(err, os.ErrDeadlineExceeded)
	return n, err
}

// controlFrame is the length of a client's control frame that carries n bytes: two of head and four of mask before them.
func controlFrame(n int) int { return 2 + 4 + n }

// consumed is the place in held up to which the websocket library has taken in what was read.
func (c *recorder) consumed() int { return len(c.held) - c.reader.Buffered() }

// cut removes the control frame with n bytes that was taken in last.
func (c *recorder) cut(n int) { c.cutAt(c.consumed()-controlFrame(n), c.consumed()) }

func (c *recorder) cutAt(from, to int) {
	c.held = slices.Delete(c.held, from, to)
	c.g.lobbyHeld.Add(int64(from - to))
}
