package supervisor

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"github.com/gorilla/websocket"
	lru "github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// A relay is a peer that stands between the supervisor and a browser and knows it: the jupyter-ekg extension of a jupyter
// server. It asks for wire.SubprotocolRelay. What it gets is the v1 framing behind a cursor of wire.RelayCursor
// bytes, which is opaque to it: with the last one that it has passed on, a new connection goes on exactly behind. It
// acknowledges when its browser does. It sends again what it does not know to have been accepted, so of its messages
// those with a msg_id that was accepted before are dropped.

// acceptedKept is how many msg_ids of accepted messages are kept for each session of a relay: more than jupyter-ekg holds
// back at a time, which is 10,000 messages of a page and as many of the page before it.
const acceptedKept = 20480

// idHash stands for a msg_id where many are remembered: it is its client's to choose, up to maxHeader bytes long.
type idHash [16]byte

func hashID(id string) idHash {
	sum := sha256.Sum256([]byte(id))
	return idHash(sum[:])
}

// cursorOf returns what a relay is told of a position: the log's own id, and the position's two numbers, in big endian.
func (l *messageLog) cursorOf(p position) [wire.RelayCursor]byte {
	var b [wire.RelayCursor]byte
	copy(b[:8], l.id[:])
	binary.BigEndian.PutUint64(b[8:], p.seq)
	binary.BigEndian.PutUint64(b[16:], p.out)
	return b
}

// parseCursor reads a cursor that a relay has sent back, in hexadecimal. It reports false for one of another log: of a
// kernel that was started again under the same id.
func (l *messageLog) parseCursor(text string) (position, bool) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != wire.RelayCursor || [8]byte(b[:8]) != l.id {
		return position{}, false
	}
	p := position{binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}
	tail := l.tail()
	return p, p.seq <= tail.seq && p.out <= tail.out && p.out <= p.seq
}

// goOn sets where a relay's connection reads on: behind what it has passed on already. What its browser has
// acknowledged stays as it is: the first ping, which goes out at once, asks about what was passed on before. s.mu is held.
func (c *conn) goOn(cursor string) {
	p, ok := c.s.log.parseCursor(cursor)
	if !ok || p.seq < c.session.floor.seq {
		return
	}
	c.cursor = p
	if p.seq < c.acked.seq {
		c.acked = p
	}
}

// repeated reports whether a relay sends a message again that was accepted before. s.mu is held.
func (c *conn) repeated(msgID string) bool {
	return c.relay && msgID != "" && c.session.accepted != nil && c.session.accepted.Contains(hashID(msgID))
}

// remember notes that a relay's message has been accepted. s.mu is held.
func (c *conn) remember(msgID string) {
	if !c.relay || msgID == "" || c.readOnly {
		return
	}
	if c.session.accepted == nil {
		accepted, err := lru.NewLRU[idHash, struct{}](acceptedKept, nil)
		if err != nil {
			panic(err) // only of a size below 1
		}
		c.session.accepted = accepted
	}
	c.session.accepted.Add(hashID(msgID), struct{}{})
}

// writeRelayed sends a frame behind its cursor as one websocket message, without a copy of large ones.
func (c *conn) writeRelayed(at position, f *frame) error {
	w, err := c.ws.NextWriter(websocket.BinaryMessage)
	if err != nil {
		return err
	}
	cursor := c.s.log.cursorOf(at)
	if _, err := w.Write(cursor[:]); err != nil {
		return err
	}
	if _, err := w.Write(f.data); err != nil {
		return err
	}
	return w.Close()
}
