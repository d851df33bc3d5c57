package supervisor

import (
	"fmt"

	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

// A large message may break its connection because a proxy has a limit. It would break every connection on which it is
// repeated. So the supervisor counts a session's connections that end while the same large message is unacknowledged.
// After the third, the next connection gets a notice instead.
const (
	cutsAllowed  = 3         // connections of a session that may break with one message
	suspectBytes = 128 << 10 // no known peer or proxy has a smaller limit
	replacedKept = 64        // replaced messages of a session
)

// suspect is the message that may have broken a session's connections.
type suspect struct {
	seq  uint64 // 0: none
	size int64  // bytes as sent
	cuts int
}

// noteSent remembers the largest message that is sent, or begun, and not acknowledged. A smaller one behind it is found
// when it is the first on a later connection. Only the writer calls it.
func (c *clientConn) noteSent(seq uint64, n int) {
	if n < suspectBytes {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if int64(n) > c.largest.size {
		c.largest = suspect{seq: seq, size: int64(n)}
	}
}

// noteCutLocked counts the end of a connection while a large message is unacknowledged. A peer that never acknowledges
// is no evidence: it may have received the message.
func (c *clientConn) noteCutLocked() {
	sess := c.session
	if sess.id == "" || sess.youngest != c.number {
		return
	}
	c.mu.Lock()
	at, tooBig, ours := c.largest, c.tooBig, c.endedHere
	c.mu.Unlock()
	if at.seq == 0 || at.seq <= c.acked.Seq || !tooBig && (ours || !sess.acksEver) {
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
	for seq := range sess.replaced {
		if seq <= sess.resume.Seq || len(sess.replaced) >= replacedKept {
			delete(sess.replaced, seq)
		}
	}
	if sess.replaced == nil {
		sess.replaced = map[uint64]string{}
	}
	sess.replaced[at.seq] = why
	sess.suspect = suspect{}
}

// encode returns an entry in the connection's framing, or the notice that replaces it.
func (c *clientConn) encode(e *messagelog.Entry) (*framing.Frame, error) {
	why, out := c.replaced[e.At.Seq]
	if !out {
		return c.s.log.Encode(e, c.framing)
	}
	m := notice.LeftOut(&e.Message, why)
	return framing.Encode(&m, c.framing)
}
