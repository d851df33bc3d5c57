package supervisor

import (
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// Bounds of what clients may make a supervisor remember.
const (
	maxSessions    = 64              // sessions of one kernel
	maxConnections = 64              // websockets of one kernel
	maxOutstanding = 4096            // requests of one session without reply or idle; the oldest is forgotten
	sessionLife    = 24 * time.Hour  // after the end of its last connection
	idleGrace      = 5 * time.Second // silence after a reply before a missing idle counts as lost
)

var errTooMany = errors.New("too many sessions or connections on this kernel")

// session is what is kept of a client over its connections: a Jupyter session id, as in ?session_id=, and the place
// in the log up to which it is known to have everything. All fields are guarded by Supervisor.mu.
type session struct {
	number  uint64 // unlike those of all other sessions of the kernel, and not 0
	id      string // "" for a connection without session_id: it ends with that connection
	resume  position
	floor   position // resume is not before it
	conns   map[*conn]struct{}
	voice   uint64    // number of the youngest connection that takes part; it moves resume
	left    time.Time // when the last connection ended
	pending int       // outstanding requests
	cell    []byte    // header of its last execute_request: where notices are shown

	suspect  suspect                    // the message over which the last connections have ended
	leftOut  map[uint64]string          // by seq: messages that are replaced, and why
	accepted *lru.LRU[idHash, struct{}] // msg_ids that came from relays; nil before the first
	acksEver bool                       // it has acknowledged something, so a connection of it that does not is a broken one
}

// request is something a client asked the kernel, until its reply and its idle have both passed.
type request struct {
	id       string
	session  *session // nil: it is gone
	channel  wire.Channel
	msgType  string
	header   []byte // raw; the parent_header of what is said about it
	cell     string // id of the cell it executes, if its client told
	main     bool   // not for a subshell: requests of its channel are answered in order
	replied  bool
	idled    bool
	quiet    time.Time   // when the reply came without an idle yet
	lossTold bool        // its client knows that output was lost
	doubt    bool        // it was with the kernel when the connection broke
	sent     atomic.Bool // it has left its gate
}

// hasReply says whether a request of the type is answered on its own channel at all: comm messages are not
// (jupyter-client messaging page, "Custom Messages").
func hasReply(msgType string) bool {
	return msgType != "comm_open" && msgType != "comm_msg" && msgType != "comm_close"
}

// attach finds or makes the session of a new connection and the position from which it reads. s.mu is held.
func (s *Supervisor) attach(c *conn, id string, now time.Time) error {
	s.expireSessions(now)
	total := 0
	for _, other := range s.sessions {
		total += len(other.conns)
	}
	if total >= maxConnections {
		return errTooMany
	}
	sess := s.sessions[id]
	if id == "" || sess == nil {
		if len(s.sessions) >= maxSessions && !s.dropIdleSession() {
			return errTooMany
		}
		sess = &session{number: c.number, id: id, conns: map[*conn]struct{}{}, resume: s.log.tail(), floor: s.floor}
		if c.readOnly {
			sess.floor = sess.resume // the log, of which a cursor may be any place, is its owner's
		}
		if id == "" {
			id = "connection " + wire.NewID()
		}
		s.sessions[id] = sess
		c.sessionKey = id
		s.greet(sess)
	}
	c.sessionKey, c.session = id, sess
	c.cursor, c.acked, c.acksEver = sess.resume, sess.resume, sess.acksEver
	c.leftOut = maps.Clone(sess.leftOut)
	sess.conns[c] = struct{}{}
	return nil
}

// greet tells a new session the present state, with the running cell's parent, before anything live. s.mu is held.
func (s *Supervisor) greet(sess *session) {
	if s.clock.state == stateStarting {
		return // the kernel's own first status will do
	}
	s.log.append(sess, s.statusMessage(), true)
}

// detach ends a connection's part in its session. s.mu is held.
func (s *Supervisor) detach(c *conn, now time.Time) {
	sess := c.session
	c.noteCut()
	delete(sess.conns, c)
	if c.takesPart && s.connections() == 0 {
		s.left = now.UTC()
		s.estate.changed()
	}
	s.lookAgain()
	if len(sess.conns) > 0 {
		return
	}
	sess.left = now
	if sess.id == "" {
		s.forgetSession(c.sessionKey)
	}
}

// takePart notes that the connection has shown that somebody is behind it: it has sent a message, or has answered
// more than the one ping that JupyterLab's abandoned first connection answers. s.mu is held.
func (s *Supervisor) takePart(c *conn) {
	if c.takesPart {
		return
	}
	c.takesPart = true
	if c.session.voice < c.number {
		c.session.voice = c.number
		c.session.resumeAt(c.acked)
	}
	if slices.Contains(s.cfg.Cull.Activity, activityConnections) {
		s.clock.used()
	}
	s.estate.changed()
	s.lookAgain()
	s.changed()
}

// acknowledge notes that the connection's peer has everything up to p. s.mu is held.
func (s *Supervisor) acknowledge(c *conn, p position) {
	if p.seq <= c.acked.seq {
		return
	}
	c.acked = p
	if c.session.voice == c.number {
		c.session.resumeAt(p)
	}
}

// resumeAt moves the place from which a returning client goes on.
func (sess *session) resumeAt(p position) {
	if p.seq < sess.floor.seq {
		p = sess.floor
	}
	sess.resume = p
}

func (s *Supervisor) expireSessions(now time.Time) {
	for id, sess := range s.sessions {
		if len(sess.conns) == 0 && now.Sub(sess.left) > sessionLife {
			s.forgetSession(id)
		}
	}
}

// dropIdleSession forgets the session without connection that left first, if there is one.
func (s *Supervisor) dropIdleSession() bool {
	oldest := ""
	for id, sess := range s.sessions {
		if len(sess.conns) == 0 && (oldest == "" || sess.left.Before(s.sessions[oldest].left)) {
			oldest = id
		}
	}
	if oldest == "" {
		return false
	}
	s.forgetSession(oldest)
	return true
}

// forgetSession removes a session. What it asked goes on; replies then have nobody to go to.
func (s *Supervisor) forgetSession(id string) {
	sess := s.sessions[id]
	delete(s.sessions, id)
	if sess.pending == 0 {
		return
	}
	for _, r := range s.order {
		if r.session == sess && !r.finished() {
			r.session = nil
			s.orphans++
		}
	}
	sess.pending = 0
	for _, r := range s.order {
		if s.orphans <= maxOutstanding {
			return
		}
		if r.session == nil && !r.finished() {
			s.finish(r)
		}
	}
}

// register notes a request before it goes to the kernel, or returns nil if no answer to the message is to be expected.
// s.mu is held.
func (s *Supervisor) register(sess *session, m *wire.Message, h wire.Header) *request {
	if h.MsgID == "" || m.Channel == wire.Stdin {
		return nil // an input_reply answers, it does not ask
	}
	if sess.pending >= maxOutstanding {
		s.forgetOldest(sess)
	}
	sess.pending++
	if h.MsgType == "execute_request" {
		sess.cell = m.Header
	}
	r := &request{id: h.MsgID, session: sess, channel: m.Channel, msgType: h.MsgType, header: m.Header,
		cell: s.noteCell(m, h), main: h.Subshell == "", replied: !hasReply(h.MsgType)}
	s.note(r)
	return r
}

// note enters a request into the table. s.mu is held.
func (s *Supervisor) note(r *request) {
	s.requests[r.id] = append(s.requests[r.id], r)
	s.live++
	s.order = append(s.order, r)
	s.clock.awaited(r.id, r.msgType)
	s.lookAgain()
	s.compactOrder()
	s.estate.changed()
}

// compactOrder drops finished requests from the order of arrival once they are the larger part of it.
func (s *Supervisor) compactOrder() {
	if len(s.order) < 64 || len(s.order) < 2*s.live {
		return
	}
	live := s.order[:0]
	for _, r := range s.order {
		if !r.finished() {
			live = append(live, r)
		}
	}
	clear(s.order[len(live):])
	s.order = live
}

func (r *request) finished() bool { return r.replied && r.idled }

func (s *Supervisor) forgetOldest(sess *session) {
	for _, r := range s.order {
		if r.session == sess && !r.finished() {
			s.finish(r)
			return
		}
	}
}

// finish removes a request from the table. s.mu is held.
func (s *Supervisor) finish(r *request) {
	r.replied, r.idled = true, true
	s.clock.forgotten(r.id)
	s.lookAgain()
	s.estate.changed()
	list := s.requests[r.id]
	for i, other := range list {
		if other == r {
			list = append(list[:i:i], list[i+1:]...)
			s.live--
			if r.session != nil {
				r.session.pending--
			} else {
				s.orphans--
			}
			break
		}
	}
	if len(list) == 0 {
		delete(s.requests, r.id)
	} else {
		s.requests[r.id] = list
	}
}

// waitingReply finds who asked: the first outstanding request with that id and no reply. Equal ids of two sessions are
// answered in the order in which they were asked. s.mu is held.
func (s *Supervisor) waitingReply(id string) *request {
	for _, r := range s.requests[id] {
		if !r.replied {
			return r
		}
	}
	return nil
}

func (s *Supervisor) waitingIdle(id string) *request {
	for _, r := range s.requests[id] {
		if !r.idled {
			return r
		}
	}
	return nil
}

// running returns the execute_request that runs, as far as the statuses tell, or nil. s.mu is held.
func (s *Supervisor) running() *request {
	for _, r := range s.order {
		if r.msgType == "execute_request" && !r.idled && s.clock.isBusy(r.id) {
			return r
		}
	}
	return nil
}

// oldestCell returns the execute_request that has waited longest for its idle, or nil. Where the kernel has died it is
// the one that ran: its busy may have died with it. s.mu is held.
func (s *Supervisor) oldestCell() *request {
	for _, r := range s.order {
		if r.msgType == "execute_request" && !r.idled {
			return r
		}
	}
	return nil
}
