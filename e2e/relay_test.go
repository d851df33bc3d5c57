//go:build e2e

package e2e

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// This file adds to a client that returns what the relay of jupyter-ekg does. It sends the cursor of the last message
// that it has passed on. It acknowledges when its browser does. It resends its browser's messages until they are
// accepted.

const (
	subprotocolRelay = "v1.relay.ekg"
	cursorBytes      = 24
)

// TestE2E_RelayResends: a relay is cut off before it learns that its cells were accepted. It resends all of them, and
// each runs once. Cells that did not arrive the first time run, too. The test uses xeus-python, since ipykernel rejects
// a signature that it has already seen.
func TestE2E_RelayResends(t *testing.T) {
	g, p := withProxy(t)
	r := newReturning(t, p.through(g), g.kernel("xpython"), subprotocolRelay, 20*time.Second)
	r.ended(r.begin("pass"), 20*time.Second)
	file, want := filepath.Join(g.dir, "ran"), ""
	ran := func() error {
		b, err := os.ReadFile(file)
		if err == nil && string(b) != want {
			err = fmt.Errorf("%q ran, not %q", b, want)
		}
		return err
	}
	begin := func() (cell string) {
		cell = r.begin(fmt.Sprintf("with open(%q, 'a') as f: f.write('%d ')", file, len(want)))
		want += fmt.Sprintf("%d ", len(want))
		return cell
	}
	k := p.theLink(t)
	k.set(mute)
	cells := []string{begin(), begin(), begin()}
	g.eventually(20*time.Second, "the cells have run", ran)
	k.set(halfOpen)
	cells = append(cells, begin(), begin())
	k.end()
	for _, cell := range append(cells, begin()) {
		if o := r.ended(cell, 20*time.Second); len(o.replies) != 1 || len(o.idles) != 1 {
			t.Errorf("cell %s has %d replies and %d idles", cell, len(o.replies), len(o.idles))
		}
	}
	if err := ran(); err != nil {
		t.Error(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ext.again < 5 {
		t.Errorf("%d cells were sent again: the test proves nothing", r.ext.again)
	}
}

// extension is the state of a relay. All fields but cursor are guarded by returning.mu.
type extension struct {
	cursor   string // of the last message passed on, in hexadecimal; only the reader uses it
	unproven []unproven
	number   uint64 // of the last ping
	waiting  bool   // a pong is outstanding
	offline  int    // number of messages that waited for a connection
	again    int    // number of resent messages
}

// unproven is a message that may not have been accepted.
type unproven struct {
	data []byte
	ping uint64 // number of the first later ping on this connection; 0 if there was no ping yet
}

// send keeps a message, and sends it if there is a connection. A write error is ignored, since the connection is about
// to end.
func (e *extension) send(ws *websocket.Conn, data []byte) {
	e.unproven = append(e.unproven, unproven{data: data})
	if ws == nil {
		e.offline++
		return
	}
	if ws.WriteMessage(websocket.BinaryMessage, data) == nil && !e.waiting {
		e.ask(ws)
	}
}

// ask sends a ping. Its pong proves that the supervisor accepted all earlier messages.
func (e *extension) ask(ws *websocket.Conn) {
	e.number++
	for i := range e.unproven {
		if e.unproven[i].ping == 0 {
			e.unproven[i].ping = e.number
		}
	}
	err := ws.WriteControl(websocket.PingMessage, binary.BigEndian.AppendUint64(nil, e.number),
		time.Now().Add(10*time.Second))
	e.waiting = err == nil
}

// resend begins a connection with all unproven messages.
func (r *returning) resend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ext.waiting = false
	for i := range r.ext.unproven {
		r.ext.unproven[i].ping = 0
		r.ext.again++
		if r.ws.WriteMessage(websocket.BinaryMessage, r.ext.unproven[i].data) != nil {
			return // the reader notices this, too
		}
	}
	r.ext.ask(r.ws)
}

// proven handles the supervisor's pong.
func (r *returning) proven(data string) error {
	if len(data) != 8 {
		return nil
	}
	number := binary.BigEndian.Uint64([]byte(data))
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.ext
	n := 0
	for n < len(e.unproven) && e.unproven[n].ping != 0 && e.unproven[n].ping <= number {
		n++
	}
	e.unproven = e.unproven[n:]
	e.waiting = e.waiting && number < e.number
	if len(e.unproven) > 0 && !e.waiting && r.ws != nil {
		e.ask(r.ws)
	}
	return nil
}

// browser answers the supervisor's pings on one connection as a busy page does: late, and only the newest.
type browser struct {
	pings chan string // capacity 1: holds the newest
	done  chan struct{}
}

func newBrowser(ws *websocket.Conn) *browser {
	b := &browser{pings: make(chan string, 1), done: make(chan struct{})}
	go func() {
		defer close(b.done)
		for data := range b.pings {
			<-time.After(50 * time.Millisecond)
			if ws.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(10*time.Second)) != nil {
				continue // the connection has ended; stop closes pings
			}
		}
	}()
	return b
}

// ping answers a ping. Only the connection's reader may call ping and stop.
func (b *browser) ping(data string) error {
	select {
	case <-b.pings: // the newer pong proves this one, too
	default:
	}
	b.pings <- data
	return nil
}

func (b *browser) stop() {
	close(b.pings)
	<-b.done
}
