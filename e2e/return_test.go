//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// maxRepeat bounds the output that may come twice after a reconnect, in bytes. It is the window for unacknowledged
// output (4 MiB) and a batch begun within it (256 KiB). A larger message may exceed it.
const maxRepeat = 4<<20 + 256<<10

// seed returns the seed of a test's random parts: EKG_SEED, or the time. A test that fails prints it.
func seed(t *testing.T) uint64 {
	t.Helper()
	n := uint64(time.Now().UnixNano())
	if given := os.Getenv("EKG_SEED"); given != "" {
		var err error
		if n, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("EKG_SEED: %v", err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again with the same faults: EKG_SEED=%d", n)
		}
	})
	return n
}

// returning is a client that reconnects as JupyterLab's does. It uses the same session id, sends a kernel_info request
// on each new connection, and never resends a request. It keeps all messages and checks the guarantee: a connection
// begins with a repetition of the last messages in their order, and then has only new ones. With ext set it behaves
// like jupyter-ekg, and no message comes twice.
type returning struct {
	t           *testing.T
	g           *gateway // through the proxy
	id          string   // of the kernel
	session     string
	subprotocol string
	ext         *extension    // nil for a browser
	patience    time.Duration // longest time without a frame; after it the client gives the connection up
	cancel      context.CancelFunc
	done        chan struct{} // closed when run returns
	pauses      chan time.Duration

	mu          sync.Mutex
	ws          *websocket.Conn // the present connection, or nil
	got         []message       // each message once, in order of arrival
	index       map[string]int  // index in got by msg_id
	fault       error           // the first violation of the guarantee
	refused     error           // error of the last attempt to connect, if it failed
	frames      int             // number of all frames, including repetitions
	connections int
	repeated    int   // number of messages
	maxRepeat   int64 // bytes of the largest repetition
}

func newReturning(t *testing.T, g *gateway, id, subprotocol string, patience time.Duration) *returning {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &returning{
		t:           t,
		g:           g,
		id:          id,
		session:     "session of " + cmp.Or(subprotocol, "JSON"),
		subprotocol: subprotocol,
		patience:    patience,
		cancel:      cancel,
		done:        make(chan struct{}),
		pauses:      make(chan time.Duration, 1),
		index:       map[string]int{},
	}
	if subprotocol == subprotocolRelay {
		r.ext = &extension{}
	}
	go r.run(ctx)
	t.Cleanup(r.stop)
	r.until(20*time.Second, "the first connection", func() bool { return r.ws != nil })
	return r
}

func (r *returning) stop() {
	r.cancel()
	<-r.done
}

// run reconnects until ctx ends.
func (r *returning) run(ctx context.Context) {
	defer close(r.done)
	patience := r.patience
	for ctx.Err() == nil {
		frames, err := r.once(ctx, patience)
		r.mu.Lock()
		r.ws = nil
		r.refused = err
		r.mu.Unlock()
		if frames > 0 {
			patience = r.patience
		} else {
			patience = min(patience*3/2, 3*r.patience) // a slow machine succeeds in the end
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond): // JupyterLab waits longer
		}
	}
}

// once runs one connection. It returns the number of frames.
func (r *returning) once(ctx context.Context, patience time.Duration) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	query := url.Values{"session_id": {r.session}}
	if r.ext != nil && r.ext.cursor != "" {
		query.Set("cursor", r.ext.cursor)
	}
	ws, err := r.g.connectWith(ctx, r.id, query, r.subprotocol, patience)
	if err != nil {
		return 0, err
	}
	defer func() { _ = ws.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = ws.Close() }) // ends the read below
	defer stop()
	alive := func(then func(string) error) func(string) error {
		return func(data string) error {
			if err := ws.SetReadDeadline(time.Now().Add(patience)); err != nil {
				return err
			}
			return then(data)
		}
	}
	ws.SetPingHandler(alive(ws.PingHandler()))
	if r.ext != nil {
		page := newBrowser(ws)
		defer page.stop()
		ws.SetPingHandler(alive(page.ping))
		ws.SetPongHandler(alive(r.proven))
	}
	r.mu.Lock()
	r.ws = ws
	r.connections++
	r.mu.Unlock()
	if r.ext != nil {
		r.resend()
	} else if _, err := r.send("shell", "kernel_info_request", "{}"); err != nil {
		return 0, err
	}
	next := -1 // index in got of the next repeated message; -1 before the repetition, math.MaxInt after it
	var repetition int64
	for n := 0; ; n++ {
		select {
		case d := <-r.pauses:
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
		default:
		}
		if err := ws.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return n, err
		}
		kind, data, err := ws.ReadMessage()
		if err != nil {
			return n, err
		}
		m, err := r.decode(kind, data)
		if err != nil {
			r.doubt(fmt.Errorf("frame %d of a connection: %w", n, err))
			return n, err
		}
		next = r.take(m, int64(len(data)), next, &repetition)
	}
}

// decode reads a frame. A relay's frame begins with a cursor.
func (r *returning) decode(kind int, data []byte) (message, error) {
	if r.ext == nil {
		return decode(kind, data)
	}
	if kind != websocket.BinaryMessage || len(data) < cursorBytes {
		return message{}, fmt.Errorf("a frame of kind %d and %d bytes has no cursor", kind, len(data))
	}
	r.ext.cursor = hex.EncodeToString(data[:cursorBytes])
	return decode(kind, data[cursorBytes:])
}

// take records one message. It returns the index of the next message of the repetition.
func (r *returning) take(m message, size int64, next int, repetition *int64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frames++
	i, again := r.index[m.Header.MsgID]
	if !again {
		if next >= 0 && next < len(r.got) {
			r.doubtLocked(fmt.Errorf("%s came before the repetition had reached message %d of %d",
				m.Header.MsgType, next, len(r.got)))
		}
		r.index[m.Header.MsgID] = len(r.got)
		r.got = append(r.got, m)
		return math.MaxInt
	}
	if r.ext != nil {
		r.doubtLocked(fmt.Errorf("message %d of %d (%s) came twice to a relay", i, len(r.got), m.Header.MsgType))
	}
	if next >= 0 && i != next {
		r.doubtLocked(fmt.Errorf("message %d of %d (%s) came again, want message %d",
			i, len(r.got), m.Header.MsgType, next))
	}
	*repetition += size
	r.repeated++
	r.maxRepeat = max(r.maxRepeat, *repetition)
	if *repetition > maxRepeat && *repetition > size {
		r.doubtLocked(fmt.Errorf("%d bytes came again after a reconnect", *repetition))
	}
	if i+1 == len(r.got) {
		return math.MaxInt
	}
	return i + 1
}

func (r *returning) doubt(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doubtLocked(err)
}

func (r *returning) doubtLocked(err error) {
	if r.fault == nil {
		r.fault = err
	}
}

// send writes a request to the present connection. With an extension it resends the request until it is accepted.
func (r *returning) send(channel, msgType, content string, more ...func(*message)) (string, error) {
	m := newRequest(r.session, channel, msgType, content, more...)
	kind, data := (&client{t: r.t, v1: r.subprotocol != ""}).encode(m)
	r.mu.Lock() // also prevents concurrent writes
	defer r.mu.Unlock()
	if r.ext != nil {
		r.ext.send(r.ws, data)
		return m.Header.MsgID, nil
	}
	if r.ws == nil {
		return "", errors.New("not connected")
	}
	return m.Header.MsgID, r.ws.WriteMessage(kind, data)
}

// begin sends a cell. The test fails if it cannot be sent.
func (r *returning) begin(code string) string {
	r.t.Helper()
	id, err := r.send("shell", "execute_request", executeRequest(code, true))
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// until waits until a condition holds. The condition is called with mu held.
func (r *returning) until(limit time.Duration, what string, holds func() bool) {
	r.t.Helper()
	err := poll(limit, what, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.fault != nil || holds() {
			return nil
		}
		return fmt.Errorf("%d messages came in %d connections; the last connection: %w",
			len(r.got), r.connections, cmp.Or(r.refused, errNone))
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := cmp.Or(r.fault, err); err != nil {
		r.t.Fatal(err)
	}
}

var errNone = errors.New("no error")

// has reports whether a message matches. The caller holds mu.
func (r *returning) has(match func(message) bool) bool {
	for i := len(r.got) - 1; i >= 0; i-- {
		if match(r.got[i]) {
			return true
		}
	}
	return false
}

// outcome is what a client received for a cell over all its connections, each message once.
type outcome struct {
	stdout         strings.Builder
	notices        string
	replies, idles []message
}

// ended waits for a cell's reply and idle status, and returns its outcome.
func (r *returning) ended(cell string, limit time.Duration) *outcome {
	r.t.Helper()
	o := &outcome{}
	seen := 0
	r.until(limit, "reply and idle of "+cell, func() bool {
		for ; seen < len(r.got); seen++ {
			o.take(r.got[seen], cell)
		}
		return len(o.replies) > 0 && len(o.idles) > 0
	})
	return o
}

func (o *outcome) take(m message, cell string) {
	if m.Parent.MsgID != cell {
		return
	}
	switch {
	case m.Header.MsgType == "status" && m.field("execution_state") == "idle":
		o.idles = append(o.idles, m)
	case m.Header.MsgType == "execute_reply":
		o.replies = append(o.replies, m)
	case m.Header.MsgType == "stream" && strings.HasPrefix(m.field("text"), "[ekg]"):
		o.notices += m.field("text")
	case m.Header.MsgType == "stream":
		o.stdout.WriteString(m.field("text"))
	}
}
