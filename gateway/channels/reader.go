package channels

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
)

// read reads what the client sends until the connection or the lobby ends, and returns why.
func (c *Waiting) read() error {
	for {
		kind, data, err := c.ws.ReadMessage()
		switch {
		case c.client.full, c.client.evicted.Load():
			return errTooMuch
		case c.client.stopped:
			return errHandover
		case errors.Is(err, websocket.ErrReadLimit): // for other invalid frames the library has sent a close frame
			return &framing.CloseError{Code: websocket.CloseMessageTooBig, Reason: "the frame is longer than any frame can be"}
		case err != nil:
			return ending(err)
		}
		if err := c.check(kind == websocket.BinaryMessage, data); err != nil {
			return err
		}
	}
}

// answerPing answers a ping, unless a relay has sent it. To a relay, the answer means that the kernel has everything
// before the ping, and only the supervisor can promise that. A relay's newest ping stays among the held bytes; its
// answer counts for all earlier ones.
func (c *Waiting) answerPing(data string) error {
	if c.cursor == nil {
		c.client.cut(len(data))
		return c.ws.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(lobbyWrite))
	}
	if c.relayed > 0 {
		c.client.cutAt(c.relayed-c.relayLen, c.relayed)
	}
	c.relayed, c.relayLen = c.client.consumed(), controlFrame(len(data))
	return nil
}

// check rejects a message that a supervisor would reject, and notes what its sender expects.
func (c *Waiting) check(binary bool, data []byte) error {
	if c.messages++; c.messages > lobbyMessages {
		return errTooMuch
	}
	m, h, err := framing.Decode(c.framing, binary, data)
	switch {
	case errors.Is(err, framing.ErrIgnored):
		return nil
	case err != nil:
		return err
	case h.MsgID == "", m.Channel == jupyter.Stdin:
		return nil // its sender expects no answer
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	req := request{m.Channel, h.MsgType, bytes.Clone(m.Header)}
	c.requests = append(c.requests, req)
	if c.display != nil || req.msgType != "execute_request" {
		return nil
	}
	c.display = notice.NewDisplay(req.header)
	return c.showReasonLocked()
}

// hijacker lets the websocket library run on a recorder.
type hijacker struct {
	http.ResponseWriter
	lobby *Lobby
	user  string
	conn  *recorder
}

// Hijack hijacks the connection and returns it as a recorder.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	// Peek of what is buffered cannot fail; the bytes are part of a reader that is given up here.
	early, _ := rw.Reader.Peek(rw.Reader.Buffered())
	h.conn = &recorder{Conn: conn, lobby: h.lobby, user: h.user, early: bytes.Clone(early)}
	h.conn.reader = bufio.NewReaderSize(h.conn, smallBuffer)
	return h.conn, bufio.NewReadWriter(h.conn.reader, rw.Writer), nil
}

// recorder is a client's connection that keeps what is read from it. What stands before evicted belongs to its one
// reader.
type recorder struct {
	net.Conn
	lobby   *Lobby
	user    string
	early   []byte        // bytes read before the handshake was done
	reader  *bufio.Reader // reads from the recorder
	full    bool          // a bound of the lobby is reached
	stopped bool          // reading was ended by its deadline

	evicted atomic.Bool // the lobby has sent this client away
	counted int64       // guarded by Lobby.mu: bytes that count in Lobby.held

	mu   sync.Mutex // taken after Lobby.mu, if both are
	held []byte     // everything read, except what was cut out; nil once the client is evicted
}

var errLobbyFull = errors.New("the lobby's bound is reached")

// Read reads bytes and keeps a copy of them. It fails once a bound of the lobby is reached.
func (c *recorder) Read(b []byte) (int, error) {
	var n int
	var err error
	if len(c.early) > 0 {
		n = copy(b, c.early)
		c.early = c.early[n:]
	} else {
		n, err = c.Conn.Read(b)
	}
	tooMany := c.hold(b[:n])
	c.lobby.count(c, n)
	if c.evicted.Load() || tooMany {
		c.full = true
		return n, errLobbyFull
	}
	c.stopped = errors.Is(err, os.ErrDeadlineExceeded)
	return n, err
}

// hold keeps bytes, unless the client is evicted. It reports whether there are too many of them.
func (c *recorder) hold(b []byte) (tooMany bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.evicted.Load() {
		c.held = append(c.held, b...)
	}
	return len(c.held) > lobbyBytes
}

// take returns the held bytes. They are not held any more.
func (c *recorder) take() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.held
	c.held = nil
	return b
}

// controlFrame returns the length of a client's control frame that carries n bytes: two of head, four of mask, n of
// data.
func controlFrame(n int) int { return 2 + 4 + n }

// consumed returns the index in held up to which the websocket library has parsed.
func (c *recorder) consumed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.held) - c.reader.Buffered()
}

// cut removes the control frame with n bytes of data that was parsed last.
func (c *recorder) cut(n int) { c.cutAt(c.consumed()-controlFrame(n), c.consumed()) }

func (c *recorder) cutAt(from, to int) {
	c.mu.Lock()
	evicted := c.evicted.Load()
	if !evicted {
		c.held = slices.Delete(c.held, from, to)
	}
	c.mu.Unlock()
	if evicted {
		return // nothing is held
	}
	c.lobby.count(c, from-to)
}

// count counts n more bytes of a client, or fewer if n is negative. If all clients together hold too many, it sends
// some of them away.
func (l *Lobby) count(c *recorder, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.evicted.Load() {
		return
	}
	l.holders[c] = struct{}{}
	c.counted += int64(n)
	l.held.Add(int64(n))
	for l.held.Load() > lobbyTotal && len(l.holders) > 0 {
		l.evictLocked()
	}
}

// evictLocked sends away the client that holds most of those of the user whose clients hold most. The client that
// happens to send next is not at fault.
func (l *Lobby) evictLocked() {
	users := map[string]int64{}
	for c := range l.holders {
		users[c.user] += c.counted
	}
	var most *recorder
	for c := range l.holders {
		if most == nil || users[c.user] > users[most.user] || c.user == most.user && c.counted > most.counted {
			most = c
		}
	}
	most.mu.Lock()
	most.evicted.Store(true)
	most.held = nil // its end may take a while, and from now on the bytes do not count
	most.mu.Unlock()
	l.releaseLocked(most)
	_ = most.SetReadDeadline(past) // fails only on a closed connection
}

// release makes a client's bytes count no more.
func (l *Lobby) release(c *recorder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.releaseLocked(c)
}

func (l *Lobby) releaseLocked(c *recorder) {
	l.held.Add(-c.counted)
	c.counted = 0
	delete(l.holders, c)
}
