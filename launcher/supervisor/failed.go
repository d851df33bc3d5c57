package supervisor

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
)

// After an error ipykernel drops what its shell has received, until it has sent reply and idle of the failed cell. That
// is right for cells that were sent before the error. But a program that has read the error may send its next cell
// within these milliseconds. So a message of that program waits at the gate until reply and idle have passed.
//
// A numbered ping goes out just before the error. What comes after its pong was sent by a program whose websocket has
// received the error. A program that does not read, and all that it has sent in one burst, has no such pong.

// failedLimit is how long messages wait for the end of a failed cell.
const failedLimit = 2 * time.Second

// failedContent bounds the contents that are looked at, in bytes: Supervisor.mu is held meanwhile.
const failedContent = 64 << 10

// stopsOnError reports whether an error in a cell drops the cells behind it, which is the protocol's default. It is
// assumed of a large cell. If that is wrong, a message waits in vain for the end of that cell.
func stopsOnError(m *jupyter.Message, msgType string) bool {
	if msgType != "execute_request" || len(m.Content) > failedContent {
		return msgType == "execute_request"
	}
	content := struct {
		StopOnError *bool `json:"stop_on_error"`
	}{}
	err := json.Unmarshal(m.Content, &content)
	return err != nil || content.StopOnError == nil || *content.StopOnError
}

// noteError notes that a cell is about to fail: its error is the next entry of the log.
func (cs *clients) noteError(parent jupyter.Header) {
	r := cs.requests.AwaitingReply(parent, jupyter.Shell)
	if r == nil || !r.Stops || r.ErrorSeq != 0 || r.Session == noSession {
		return
	}
	r.ErrorSeq, r.Opens = cs.log.Tail().Seq+1, time.Now().Add(failedLimit)
	cs.failed = append(cs.failed, r)
	for c := range cs.connected {
		if c.session.Number == r.Session {
			c.conn.PingBefore(r.ErrorSeq)
		}
	}
}

// failedBefore returns the failed cell whose end a message on shell waits for, or nil.
func (cs *clients) failedBefore(c *clientConn, h jupyter.Header) *requests.Request {
	for _, r := range cs.failed {
		if r.Session == c.session.Number && r.Subshell == h.Subshell && time.Now().Before(r.Opens) &&
			c.conn.Received(r.ErrorSeq) {
			return r
		}
	}
	return nil
}

// passFailed lets messages pass that wait for a failed cell, or for all of them if r is nil.
func (cs *clients) passFailed(r *requests.Request) {
	before := len(cs.failed)
	cs.failed = slices.DeleteFunc(cs.failed, func(f *requests.Request) bool {
		over := r == nil || f == r
		if over {
			f.Over.Store(true)
		}
		return over
	})
	if len(cs.failed) < before {
		cs.opened()
	}
}
