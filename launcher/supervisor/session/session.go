// Package session is what a supervisor remembers of the kernel's clients. A Session is a client over all its
// connections: a Jupyter session id, as in ?session_id=, and the position in the log up to which the client has
// everything. A client that returns reads on from there. Package supervisor tells the Table what happens. Begin with
// Table.
//
// The package is a state machine: an Attachment is a connection, which is attached, becomes active, acknowledges, and
// is detached. It has no goroutines, no locks and no clock, and never touches a websocket or the log. The owner guards
// a Table, its sessions and their attachments by one lock.
package session

import (
	"crypto/sha256"
	"time"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

// acceptedKept bounds the msg_ids of accepted messages for each session of a relay. It is more than jupyter-ekg holds
// back at a time: 10,000 messages of a page and as many of the previous page.
const acceptedKept = 20480

// Session is a client over all its connections.
type Session struct {
	Number   uint64 // unique among the kernel's sessions and connections, and not 0
	Key      string // in the Table
	User     string // whose client it is
	Owner    bool   // the user owns the kernel
	ReadOnly bool   // its clients have the right to read
	Lasting  bool   // it outlives its connections, because its client has a session id
	LastCell []byte // header of the client's last execute_request, or nil; notices are shown there

	resume      messagelog.Position
	floor       messagelog.Position // resume is never before it
	connections int                 // that are attached
	used        bool                // one of its connections was active
	restored    bool                // Restore has created it: an earlier supervisor had it
	active      []*Attachment       // the active ones; acknowledgements of the youngest that is read move resume
	left        time.Time           // when the last connection was detached
	closed      bool                // the client has closed the connection that was detached last

	suspect      suspect                // the message that may have broken the last connections
	replaced     map[uint64]string      // by Seq: messages that are replaced by a notice, and why
	accepted     *lru.LRU[IDHash, bool] // msg_ids of relays' messages, true for rejected ones; nil before the first
	acknowledges bool                   // the client has acknowledged something, so its working connections do
}

// Connected reports whether the session has a connection.
func (s *Session) Connected() bool { return s.connections > 0 }

// Used reports whether a client has used one of the session's connections.
func (s *Session) Used() bool { return s.used }

// Closed reports whether the client itself has closed the connection that ended last. Otherwise the connection broke.
func (s *Session) Closed() bool { return s.closed }

// Resume returns the position from which a returning client reads on.
func (s *Session) Resume() messagelog.Position { return s.resume }

// Restart makes a returning client read on from p: it reads only messages of the kernel's life that begins there.
func (s *Session) Restart(p messagelog.Position) { s.floor, s.resume = p, p }

// youngest returns the active connection with the highest number from which a client reads, or nil.
func (s *Session) youngest() *Attachment {
	var y *Attachment
	for _, a := range s.active {
		if a.reads && (y == nil || a.Number > y.Number) {
			y = a
		}
	}
	return y
}

// settle sets resume to the position of the youngest active connection. Without one, resume stays: the client is away.
func (s *Session) settle() {
	if y := s.youngest(); y != nil {
		s.resumeAt(y.acked)
	}
}

func (s *Session) resumeAt(p messagelog.Position) {
	if p.Seq < s.floor.Seq {
		p = s.floor
	}
	s.resume = p
}

// Accept remembers that a relay's message was accepted, or rejected with an answer. A relay repeats messages that may
// not have been accepted. Old msg_ids are forgotten; see acceptedKept.
func (s *Session) Accept(msgID string, rejected bool) {
	if msgID == "" {
		return
	}
	if s.accepted == nil {
		accepted, err := lru.NewLRU[IDHash, bool](acceptedKept, nil)
		if err != nil {
			panic(err) // only for a size below 1
		}
		s.accepted = accepted
	}
	s.accepted.Add(HashID(msgID), rejected)
}

// HasAccepted reports whether a relay's message with the msg_id was accepted before, and whether it was rejected.
func (s *Session) HasAccepted(msgID string) (accepted, rejected bool) {
	if msgID == "" || s.accepted == nil {
		return false, false
	}
	rejected, accepted = s.accepted.Peek(HashID(msgID))
	return accepted, rejected
}

// Accepted returns how many accepted messages are remembered.
func (s *Session) Accepted() int {
	if s.accepted == nil {
		return 0
	}
	return s.accepted.Len()
}

// IDHash stands for a msg_id where many are remembered. A client chooses the length of a msg_id, up to
// framing.MaxHeader bytes.
type IDHash [16]byte

// HashID returns the hash of a msg_id.
func HashID(id string) IDHash {
	sum := sha256.Sum256([]byte(id))
	return IDHash(sum[:])
}
