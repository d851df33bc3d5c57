package notebook

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// Limits of a Relay.
const (
	relayLimit  = DefaultOutputLimit + 1<<20 // bytes of a message; the supervisor replaces one that breaks connections
	relayWrite  = 30 * time.Second           // for one write
	relayFirst  = 100 * time.Millisecond     // between two connections, at first
	relayLast   = 5 * time.Second            // at last
	relaySilent = 60 * time.Second           // without any frame, and for one message; the supervisor pings every 15 s
	// relayPatience is how long a connection waits for room. The supervisor takes its peer for dead after 45 s.
	relayPatience = 5 * time.Second
	relayAhead    = 64 << 20 // bytes of messages that are sent and not known to be accepted
)

// Relay is the Conn of a kernel's websocket. It speaks jupyter.SubprotocolRelay. When the connection breaks, it
// connects again, and goes on after the last message that it has received. It repeats what the supervisor may not have
// accepted. The supervisor drops messages that it has accepted before.
type Relay struct {
	o    RelayOptions
	life context.Context
	end  context.CancelFunc
	done chan struct{} // closed when monitor has ended
	in   chan received // to Receive; never closed
	paid int64         // what the last message costs; owned by the caller of Receive and Close

	// Owned by monitor.
	wants int64 // what the message costs for which there was no room
	held  int64 // what is taken for the next message
	head  [freeMessage]byte

	mu      sync.Mutex
	ws      *websocket.Conn // nil while there is none
	pending []*sent         // not known to be accepted
	ahead   int             // bytes of pending
	room    chan struct{}   // closed and replaced when pending becomes shorter
	pings   uint64          // sent on all connections
	gone    error           // set once
}

// sent is a message that may not have been accepted. Any message about a request proves that it was. Nothing need come
// about other messages, such as input. A ping follows each of these, and its pong is the proof.
type sent struct {
	m    jupyter.Message
	id   string // its msg_id
	asks bool   // it is a request
	ping uint64 // the number of the ping behind it, on the last connection; 0 for a request
}

type received struct {
	m      jupyter.Message
	cursor string
	cost   int64 // its receiver gives it back
}

// RelayOptions says what a Relay connects to.
type RelayOptions struct {
	// Dial connects to the kernel's channels with the query and the subprotocol jupyter.SubprotocolRelay. The user is
	// part of a session, so it must be the same for each Dial. An error that wraps ErrGone is final.
	Dial func(ctx context.Context, query url.Values) (*websocket.Conn, error)
	// Session is the session's id. It is the same for a run that is carried on.
	Session string
	// Cursor is the State.Cursor of a run that is carried on.
	Cursor string
	// Interrupt interrupts the kernel.
	Interrupt func(ctx context.Context) error
	// Budget bounds the memory for messages; nil: there is no bound.
	Budget *Budget
	// Failed gets the error of each Dial that is not final, or nil after one that has succeeded. nil: they are ignored.
	Failed func(err error)
	// Most bounds a message of the kernel, in bytes; 0: what a notebook may hold.
	Most int64
	// Refused gets a message that is larger than the supervisor accepts. nil: it is sent again with each connection.
	Refused func(m jupyter.Message)

	patience time.Duration // 0: relayPatience
}

// OpenRelay returns a Relay that connects by itself. Its owner calls Close.
func OpenRelay(o RelayOptions) *Relay {
	o.Most = cmp.Or(o.Most, relayLimit)
	r := &Relay{o: o, done: make(chan struct{}), in: make(chan received), room: make(chan struct{})}
	r.life, r.end = context.WithCancel(context.Background())
	go r.monitor()
	return r
}

// Close ends the connection and waits for the relay's goroutine. The kernel goes on.
func (r *Relay) Close() {
	r.end()
	<-r.done
	r.pay(0)
}

// pay gives back what the last message costs, and notes the cost of the next one.
func (r *Relay) pay(cost int64) {
	r.o.Budget.give(r.paid)
	r.paid = cost
}

// Interrupt interrupts the kernel.
func (r *Relay) Interrupt(ctx context.Context) error { return r.o.Interrupt(ctx) }

// Send sends a message, now or when there is a connection. It waits while relayAhead bytes are not known to be
// accepted. The error wraps ErrGone, or is that of ctx.
func (r *Relay) Send(ctx context.Context, m jupyter.Message) error {
	own, _ := headers(&m)
	next := &sent{m: m, id: own.MsgID, asks: strings.HasSuffix(own.MsgType, "_request")}
	for {
		r.mu.Lock()
		gone, room := r.gone, r.room
		full := r.ahead > 0 && r.ahead+m.Size() > relayAhead
		if gone == nil && !full {
			r.pending, r.ahead = append(r.pending, next), r.ahead+m.Size()
			if r.ws != nil {
				r.writeLocked(next)
			}
		}
		r.mu.Unlock()
		if gone != nil || !full {
			return gone
		}
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		case <-r.done:
			return cmp.Or(r.ended(), errClosed)
		}
	}
}

var errClosed = errors.New("notebook: the relay is closed")

// ended returns why the relay has ended by itself, or nil.
func (r *Relay) ended() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gone
}

// writeLocked sends a message. A connection that fails is closed, so that its reader ends.
func (r *Relay) writeLocked(s *sent) {
	_ = r.ws.SetWriteDeadline(time.Now().Add(relayWrite))
	err := r.ws.WriteMessage(websocket.BinaryMessage, jupyter.EncodeV1(&s.m))
	if err == nil && !s.asks {
		r.pings++
		s.ping = r.pings
		err = r.ws.WriteControl(websocket.PingMessage, binary.BigEndian.AppendUint64(nil, s.ping),
			time.Now().Add(relayWrite))
	}
	if err != nil {
		_ = r.ws.Close()
	}
}

// Receive returns the next message. The message before it must not be used any more: its room in the budget is given
// back.
func (r *Relay) Receive(ctx context.Context) (jupyter.Message, string, error) {
	r.pay(0)
	select {
	case got := <-r.in:
		r.pay(got.cost)
		return got.m, got.cursor, nil
	case <-ctx.Done():
		return jupyter.Message{}, "", ctx.Err()
	case <-r.done:
		return jupyter.Message{}, "", cmp.Or(r.ended(), errClosed)
	}
}

// monitor is the relay's goroutine. A panic ends the relay, and Receive returns it.
func (r *Relay) monitor() {
	defer close(r.done)
	err := goroutines.Contain(r.connect)
	r.free()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = err
}

// connect holds a connection to the kernel until the relay is closed, or the kernel is gone, which is the error.
func (r *Relay) connect() error {
	pause := relayFirst
	for r.life.Err() == nil {
		ws, err := r.dial()
		if errors.Is(err, ErrGone) {
			return err
		}
		if r.o.Failed != nil && r.life.Err() == nil {
			r.o.Failed(err)
		}
		if err == nil {
			var useful bool
			if useful, err = r.serve(ws); useful || errors.Is(err, errNoRoom) {
				pause = relayFirst
			}
		}
		r.free() // also if the kernel could not be reached in its turn
		if errors.Is(err, errNoRoom) {
			if r.o.Budget.take(r.life, r.wants) == nil {
				r.held = r.wants
			}
			continue
		}
		select {
		case <-time.After(pause):
		case <-r.life.Done():
		}
		pause = min(2*pause, relayLast)
	}
	return nil
}

func (r *Relay) dial() (*websocket.Conn, error) {
	query := url.Values{"session_id": {r.o.Session}, jupyter.RelayNaN: {"true"}}
	if r.o.Cursor != "" {
		query.Set("cursor", r.o.Cursor)
	}
	ws, err := r.o.Dial(r.life, query)
	if err != nil {
		return nil, err
	}
	if ws.Subprotocol() != jupyter.SubprotocolRelay {
		_ = ws.Close()
		return nil, fmt.Errorf("%w: its supervisor does not speak %s", ErrGone, jupyter.SubprotocolRelay)
	}
	return ws, nil
}

// serve uses a connection until it breaks, or there is no room for a message, which is errNoRoom. It reports whether a
// message came.
func (r *Relay) serve(ws *websocket.Conn) (useful bool, err error) {
	stop := context.AfterFunc(r.life, func() { _ = ws.Close() })
	defer func() {
		stop()
		r.mu.Lock()
		r.ws = nil
		r.mu.Unlock()
		_ = ws.Close()
	}()
	ws.SetReadLimit(r.o.Most)
	answer, within := ws.PingHandler(), false
	ws.SetPingHandler(func(data string) error {
		if !within { // a message that has begun has a time of its own
			_ = ws.SetReadDeadline(time.Now().Add(relaySilent))
		}
		return answer(data)
	})
	ws.SetPongHandler(func(data string) error {
		if len(data) == 8 {
			r.proven(binary.BigEndian.Uint64([]byte(data)))
		}
		return nil
	})
	r.use(ws)
	for {
		within = false
		_ = ws.SetReadDeadline(time.Now().Add(relaySilent))
		_, from, err := ws.NextReader()
		if err != nil {
			if websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
				r.refuse()
			}
			return useful, err
		}
		frame, err := r.read(from, func() {
			within = true
			_ = ws.SetReadDeadline(time.Now().Add(relaySilent))
		})
		if err == nil {
			err = r.deliver(frame)
		}
		if err != nil {
			return useful, err
		}
		useful = true
	}
}

// read reads a message, for which it takes room. begins is called before the part that may be long.
func (r *Relay) read(from io.Reader, begins func()) (frame []byte, err error) {
	n, err := io.ReadFull(from, r.head[:])
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		r.free()
		return bytes.Clone(r.head[:n]), nil
	case err != nil:
		return nil, err
	}
	size := r.o.Most // of a message that does not say it
	if n, ok := jupyter.V1Size(r.head[jupyter.RelayCursor:]); ok && n < r.o.Most-jupyter.RelayCursor {
		size = n + jupyter.RelayCursor
	}
	if cost := r.o.Budget.cost(size); r.held < cost {
		r.free()
		ctx, cancel := context.WithTimeout(r.life, cmp.Or(r.o.patience, relayPatience))
		defer cancel()
		if err := r.o.Budget.take(ctx, cost); err != nil {
			r.wants = cost
			return nil, err
		}
		r.held = cost
	}
	begins()
	b := bytes.NewBuffer(append(make([]byte, 0, size+bytes.MinRead), r.head[:]...))
	if _, err := b.ReadFrom(io.LimitReader(from, size+1-int64(b.Len()))); err != nil {
		return nil, err
	}
	if int64(b.Len()) > size {
		return nil, errors.New("notebook: a message is longer than it says")
	}
	return b.Bytes(), nil
}

// free gives back what is held for the next message.
func (r *Relay) free() {
	r.o.Budget.give(r.held)
	r.held = 0
}

// deliver gives a message to Receive, with what is held for it.
func (r *Relay) deliver(frame []byte) error {
	if len(frame) < jupyter.RelayCursor {
		return errors.New("notebook: a message without a cursor")
	}
	m, err := jupyter.DecodeV1(frame[jupyter.RelayCursor:])
	if err != nil {
		r.free()
		return nil // the supervisor checks what the kernel sends; a channel of a later version concerns no cell
	}
	r.accepted(&m)
	cursor := hex.EncodeToString(frame[:jupyter.RelayCursor])
	select {
	case r.in <- received{m, cursor, r.held}:
		r.o.Cursor, r.held = cursor, 0
		return nil
	case <-r.life.Done():
		return r.life.Err()
	}
}

// use makes a connection that of Send, and repeats what may not have been accepted.
func (r *Relay) use(ws *websocket.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ws = ws
	for _, s := range r.pending {
		r.writeLocked(s)
	}
}

// accepted forgets a message that the kernel's message is about.
func (r *Relay) accepted(m *jupyter.Message) {
	if _, parent := headers(m); parent.MsgID != "" {
		r.forget(func(s *sent) bool { return s.id == parent.MsgID })
	}
}

// proven forgets the messages before a ping that was answered.
func (r *Relay) proven(ping uint64) {
	r.forget(func(s *sent) bool { return s.ping > 0 && s.ping <= ping })
}

// refuse forgets the largest message, since the supervisor has closed the connection for the size of one.
func (r *Relay) refuse() {
	r.mu.Lock()
	var largest *sent
	for _, s := range r.pending {
		if largest == nil || s.m.Size() > largest.m.Size() {
			largest = s
		}
	}
	r.mu.Unlock()
	if largest != nil && r.o.Refused != nil {
		r.forget(func(s *sent) bool { return s == largest })
		r.o.Refused(largest.m)
	}
}

func (r *Relay) forget(which func(*sent) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.pending)
	r.pending = slices.DeleteFunc(r.pending, func(s *sent) bool {
		if !which(s) {
			return false
		}
		r.ahead -= s.m.Size()
		return true
	})
	if len(r.pending) < before {
		close(r.room)
		r.room = make(chan struct{})
	}
}
