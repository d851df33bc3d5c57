package session

import (
	"fmt"
	"maps"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

// A large message may break its connection because a proxy has a limit. It would break every connection on which it is
// repeated. So a session counts its connections that end while the same large message is unacknowledged. After the
// third, the next connection gets a notice instead.
const (
	cutsAllowed  = 3  // connections of a session that may break with one message
	replacedKept = 64 // replaced messages of a session
)

// suspect is the message that may have broken a session's connections.
type suspect struct {
	seq  uint64 // 0: none
	cuts int
}

// Attachment is a connection's place in its session.
type Attachment struct {
	Number  uint64 // later connections have higher numbers
	Session *Session
	Cursor  messagelog.Position // from which the connection reads

	active   bool // a client uses it
	counts   bool // see Table.Counted
	reads    bool // a client reads from it
	answered int  // pings answered on this connection
	acked    messagelog.Position
}

// End is how a connection has ended, as far as a message may be the cause. It is a connection.End.
type End struct {
	Unacknowledged uint64 // Seq of the largest large message that was sent and not acknowledged; 0: there is none
	TooBig         bool   // the peer has closed because of a message's size
	Local          bool   // the supervisor has closed the connection, or the peer was silent for too long
	Closed         bool   // the peer has closed the websocket with a close frame
}

// Replaced returns a copy of the messages that are replaced by a notice, by Seq, and why.
func (a *Attachment) Replaced() map[uint64]string { return maps.Clone(a.Session.replaced) }

// Acknowledges reports whether the session has acknowledged something, on any of its connections.
func (a *Attachment) Acknowledges() bool { return a.Session.acknowledges }

// ResumeAt makes a relay's connection read on behind the last message that the relay has passed on. A position before
// the session's floor is ignored. The browser's acknowledged position stays: the first ping, which is sent at once,
// covers the messages in between.
func (a *Attachment) ResumeAt(p messagelog.Position) {
	if p.Seq < a.Session.floor.Seq {
		return
	}
	a.Cursor = p
	if p.Seq < a.acked.Seq {
		a.acked = p
	}
}

// NotePong notes that the peer has answered a ping. It reports whether that shows a client that uses the connection:
// JupyterLab's abandoned first connection answers exactly one.
func (a *Attachment) NotePong() (used bool) {
	a.Session.acknowledges = true
	a.answered++
	return a.answered > 1
}

// NoteInput notes that the client has sent a message. A client that sends also reads.
func (a *Attachment) NoteInput() {
	if !a.reads {
		a.reads = true
		a.Session.settle()
	}
}

// Acknowledge notes that the connection's peer has everything up to p, which was messages messages on this connection.
//
// A jupyter server leaves a connection open that its browser has abandoned. It takes one message from it and answers
// the pings behind that, and no more. So the first message alone is no evidence of a client that reads.
func (a *Attachment) Acknowledge(p messagelog.Position, messages int) {
	a.reads = a.reads || messages > 1
	if p.Seq > a.acked.Seq {
		a.acked = p
	}
	a.Session.settle()
}

// noteEnd counts the end of a connection while a large message is unacknowledged. A peer that never acknowledges is no
// evidence: it may have received the message.
func (a *Attachment) noteEnd(end End) {
	s, seq := a.Session, end.Unacknowledged
	if !s.Lasting || s.youngest() != a {
		return
	}
	if seq == 0 || seq <= a.acked.Seq || !end.TooBig && (end.Local || !s.acknowledges) {
		return
	}
	if s.suspect.seq != seq {
		s.suspect = suspect{seq: seq}
	}
	s.suspect.cuts++
	why := fmt.Sprintf("the connection broke %d times while it was sent; `ekg log` shows it", s.suspect.cuts)
	switch {
	case end.TooBig:
		why = "something between the gateway and this page rejects messages of that size; `ekg log` shows it"
	case s.suspect.cuts < cutsAllowed:
		return
	}
	for old := range s.replaced {
		if old <= s.resume.Seq || len(s.replaced) >= replacedKept {
			delete(s.replaced, old)
		}
	}
	if s.replaced == nil {
		s.replaced = map[uint64]string{}
	}
	s.replaced[seq] = why
	s.suspect = suspect{}
}
