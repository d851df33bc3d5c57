package supervisor

import (
	"fmt"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// A message that breaks the connection on which it is sent (something in between takes no more than so many bytes) would
// break every one on which it is repeated. So a session's connections that end with the same large message on its way
// are counted, and at the third the next one gets a notice in its place.
const (
	cutsAllowed  = 3         // connections of a session that may end over one message
	suspectBytes = 128 << 10 // no peer or proxy is known that takes less in one message
	leftOutKept  = 64        // messages of a session that are replaced at a time
)

// suspect is the message over which a session's connections may have ended.
type suspect struct {
	seq  uint64 // 0: none
	size int64  // bytes as sent
	cuts int
}

// noteSent remembers the largest message that has been sent, or begun, and not acknowledged; a smaller one behind it is
// found when it is the first of a later connection. Only the writer calls it.
func (c *conn) noteSent(seq uint64, n int) {
	if n < suspectBytes {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if int64(n) > c.largest.size {
		c.largest = suspect{seq: seq, size: int64(n)}
	}
}

// noteCut counts the end of a connection with a large message on its way. A peer that never acknowledges anything gives no
// evidence: it may have had the message. s.mu is held.
func (c *conn) noteCut() {
	sess := c.session
	if sess.id == "" || sess.voice != c.number {
		return
	}
	c.mu.Lock()
	at, tooBig, ours := c.largest, c.tooBig, c.ours
	c.mu.Unlock()
	if at.seq == 0 || at.seq <= c.acked.seq || !tooBig && (ours || !sess.acksEver) {
		return
	}
	if sess.suspect.seq != at.seq {
		sess.suspect = at
	}
	sess.suspect.cuts++
	why := fmt.Sprintf("the connection broke %d times while it was sent; `ekg log` shows it", sess.suspect.cuts)
	switch {
	case tooBig:
		why = "something between the gateway and this page takes none of that size; `ekg log` shows it"
	case sess.suspect.cuts < cutsAllowed:
		return
	}
	for seq := range sess.leftOut {
		if seq <= sess.resume.seq || len(sess.leftOut) >= leftOutKept {
			delete(sess.leftOut, seq)
		}
	}
	if sess.leftOut == nil {
		sess.leftOut = map[uint64]string{}
	}
	sess.leftOut[at.seq] = why
	sess.suspect = suspect{}
}

// encode returns an entry as it is sent on the connection.
func (c *conn) encode(e *entry) (*frame, error) {
	why, out := c.leftOut[e.at.seq]
	if !out {
		return c.s.log.encode(e, c.framing)
	}
	m := leftOut(&e.msg, why)
	return encodeFrame(&m, c.framing)
}

// leftOut is sent in the place of a message that cannot be: a line in the cell, or a reply, since that still has to end
// its request.
func leftOut(m *wire.Message, why string) wire.Message {
	msgType := wire.StringField(m.Header, "msg_type")
	text := fmt.Sprintf("[ekg] A message of type %s and %d bytes was left out: %s.\n", msgType, m.Size(), why)
	session := wire.StringField(m.Header, "session")
	if m.Channel == wire.IOPub {
		return wire.New(wire.IOPub, "stream", session, m.Parent, streamContent{"stderr", text})
	}
	return wire.New(m.Channel, msgType, session, m.Parent, map[string]any{
		"status": "error", "ename": "MessageTooLarge", "evalue": text, "traceback": []string{text}})
}
