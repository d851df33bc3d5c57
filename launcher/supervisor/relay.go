package supervisor

import (
	"crypto/sha256"

	"github.com/gorilla/websocket"
	lru "github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

// A relay is the jupyter-ekg extension of a jupyter server, between the supervisor and a browser. It asks for
// jupyter.SubprotocolRelay, and gets the v1 framing behind an opaque cursor of jupyter.RelayCursor bytes. A new
// connection with the cursor of the last message that was passed on reads on exactly behind it. A relay acknowledges
// when its browser does. It repeats messages that may not have been accepted, so messages with an accepted msg_id are
// dropped.

// acceptedKept bounds the msg_ids of accepted messages for each session of a relay. It is more than jupyter-ekg holds
// back at a time: 10,000 messages of a page and as many of the previous page.
const acceptedKept = 20480

// idHash stands for a msg_id where many are remembered. A client chooses the length of a msg_id, up to
// framing.MaxHeader bytes.
type idHash [16]byte

func hashID(id string) idHash {
	sum := sha256.Sum256([]byte(id))
	return idHash(sum[:])
}

// resumeAtCursorLocked makes a relay's connection read on behind the last message that the relay has passed on. The
// browser's acknowledged position stays: the first ping, which is sent at once, covers the messages in between.
func (c *clientConn) resumeAtCursorLocked(cursor string) {
	p, ok := c.s.log.ParseCursor(cursor)
	if !ok || p.Seq < c.session.floor.Seq {
		return
	}
	c.cursor = p
	if p.Seq < c.acked.Seq {
		c.acked = p
	}
}

// isRepeatedLocked reports whether a relay repeats a message that was accepted before.
func (c *clientConn) isRepeatedLocked(msgID string) bool {
	return c.relay && msgID != "" && c.session.accepted != nil && c.session.accepted.Contains(hashID(msgID))
}

// rememberLocked notes that a relay's message was accepted.
func (c *clientConn) rememberLocked(msgID string) {
	if !c.relay || msgID == "" || c.readOnly {
		return
	}
	if c.session.accepted == nil {
		accepted, err := lru.NewLRU[idHash, struct{}](acceptedKept, nil)
		if err != nil {
			panic(err) // only for a size below 1
		}
		c.session.accepted = accepted
	}
	c.session.accepted.Add(hashID(msgID), struct{}{})
}

// writeRelayed sends a frame behind its cursor as one websocket message. It does not copy large frames.
func (c *clientConn) writeRelayed(at messagelog.Position, f *framing.Frame) error {
	w, err := c.ws.NextWriter(websocket.BinaryMessage)
	if err != nil {
		return err
	}
	cursor := c.s.log.Cursor(at)
	if _, err := w.Write(cursor[:]); err != nil {
		return err
	}
	if _, err := w.Write(f.Data); err != nil {
		return err
	}
	return w.Close()
}
