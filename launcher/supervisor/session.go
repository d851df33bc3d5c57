package supervisor

import (
	"errors"
	"maps"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
)

// Bounds of what clients may make a supervisor remember.
const (
	maxSessions    = 64              // sessions of one kernel
	maxConnections = 64              // websockets of one kernel
	maxOutstanding = 4096            // unfinished requests of one session; beyond, the oldest is dropped
	sessionLife    = 24 * time.Hour  // after the end of its last connection
	idleGrace      = 5 * time.Second // silence after a reply before a missing idle counts as lost
)

var errTooMany = errors.New("too many sessions or connections on this kernel")

// everyone addresses an entry of the log to all sessions.
const everyone = 0

// noSession is the session number of requests whose session has ended.
const noSession = 0

// session is a client over all its connections: a Jupyter session id, as in ?session_id=, and the position in the log
// up to which the client has everything. Supervisor.mu guards it.
type session struct {
	number   uint64 // unique among the kernel's sessions, and not 0
	id       string // "" for a connection without session_id: it ends with that connection
	resume   messagelog.Position
	floor    messagelog.Position // resume is never before it
	conns    map[*clientConn]struct{}
	youngest uint64    // number of the youngest active connection, whose acknowledgements move resume
	left     time.Time // when the last connection ended
	lastCell []byte    // header of its last execute_request; notices are shown there

	suspect  suspect                    // the message that may have broken the last connections
	replaced map[uint64]string          // by Seq: messages that are replaced by a notice, and why
	accepted *lru.LRU[idHash, struct{}] // msg_ids of accepted messages of relays; nil before the first
	acksEver bool                       // the client has acknowledged something, so its working connections do
}

// hasReply reports whether requests of the type are answered on their own channel. Comm messages are not answered
// (jupyter-client messaging page, "Custom Messages").
func hasReply(msgType string) bool {
	return msgType != "comm_open" && msgType != "comm_msg" && msgType != "comm_close"
}

// attachLocked finds or creates the session of a new connection. It sets the position from which the connection reads.
func (s *Supervisor) attachLocked(c *clientConn, id string, now time.Time) error {
	s.expireSessionsLocked(now)
	total := 0
	for _, other := range s.sessions {
		total += len(other.conns)
	}
	if total >= maxConnections {
		return errTooMany
	}
	sess := s.sessions[id]
	if id == "" || sess == nil {
		if len(s.sessions) >= maxSessions && !s.evictSessionLocked() {
			return errTooMany
		}
		sess = &session{number: c.number, id: id, conns: map[*clientConn]struct{}{}, resume: s.log.Tail(), floor: s.floor}
		if c.readOnly {
			sess.floor = sess.resume // a cursor may be any position, and a reader may not see the log
		}
		if id == "" {
			id = "connection " + jupyter.NewID()
		}
		s.sessions[id] = sess
		c.sessionKey = id
		s.greetLocked(sess)
	}
	c.sessionKey, c.session = id, sess
	c.cursor, c.acked, c.acksEver = sess.resume, sess.resume, sess.acksEver
	c.replaced = maps.Clone(sess.replaced)
	sess.conns[c] = struct{}{}
	return nil
}

// greetLocked sends a new session the present state, with the running cell's parent, before live messages.
func (s *Supervisor) greetLocked(sess *session) {
	if s.clock.State() == api.Starting {
		return // the kernel's own first status follows
	}
	s.log.Append(sess.number, s.presentStatusLocked(), true)
}

// detachLocked removes a connection from its session.
func (s *Supervisor) detachLocked(c *clientConn, now time.Time) {
	sess := c.session
	c.noteCutLocked()
	delete(sess.conns, c)
	if c.active {
		if s.activeConnections--; s.activeConnections == 0 {
			s.lastLeft = now.UTC()
		}
	}
	if len(sess.conns) > 0 {
		return
	}
	sess.left = now
	if sess.id == "" {
		s.removeSessionLocked(c.sessionKey)
	}
}

// activateLocked notes that a client uses the connection. It has sent a message or answered two pings; JupyterLab's
// abandoned first connection answers exactly one.
func (s *Supervisor) activateLocked(c *clientConn) {
	if c.active {
		return
	}
	c.active = true
	s.activeConnections++
	if c.session.youngest < c.number {
		c.session.youngest = c.number
		c.session.resumeAt(c.acked)
	}
	if slices.Contains(s.cfg.Cull.Activity, api.ActivityConnections) {
		s.clock.Used()
	}
}

// acknowledgeLocked notes that the connection's peer has everything up to p.
func (s *Supervisor) acknowledgeLocked(c *clientConn, p messagelog.Position) {
	if p.Seq <= c.acked.Seq {
		return
	}
	c.acked = p
	if c.session.youngest == c.number {
		c.session.resumeAt(p)
	}
}

// resumeAt sets the position from which a returning client reads on.
func (sess *session) resumeAt(p messagelog.Position) {
	if p.Seq < sess.floor.Seq {
		p = sess.floor
	}
	sess.resume = p
}

func (s *Supervisor) expireSessionsLocked(now time.Time) {
	for id, sess := range s.sessions {
		if len(sess.conns) == 0 && now.Sub(sess.left) > sessionLife {
			s.removeSessionLocked(id)
		}
	}
}

// evictSessionLocked removes the session that left first. It reports false if every session has a connection.
func (s *Supervisor) evictSessionLocked() bool {
	oldest := ""
	for id, sess := range s.sessions {
		if len(sess.conns) == 0 && (oldest == "" || sess.left.Before(s.sessions[oldest].left)) {
			oldest = id
		}
	}
	if oldest == "" {
		return false
	}
	s.removeSessionLocked(oldest)
	return true
}

// removeSessionLocked removes a session. Its requests stay, and their replies are dropped.
func (s *Supervisor) removeSessionLocked(id string) {
	sess := s.sessions[id]
	delete(s.sessions, id)
	s.requests.Orphan(sess.number)
	for s.requests.Pending(noSession) > maxOutstanding {
		s.finishLocked(s.requests.Oldest(noSession))
	}
}

// registerLocked adds a request before it goes to the kernel. It returns nil if no answer to the message is awaited.
func (s *Supervisor) registerLocked(sess *session, m *jupyter.Message, h jupyter.Header) *requests.Request {
	if h.MsgID == "" || m.Channel == jupyter.Stdin {
		return nil // an input_reply is an answer
	}
	if s.requests.Pending(sess.number) >= maxOutstanding {
		s.finishLocked(s.requests.Oldest(sess.number))
	}
	if h.MsgType == "execute_request" {
		sess.lastCell = m.Header
	}
	r := &requests.Request{ID: h.MsgID, Session: sess.number, Channel: m.Channel, Type: h.MsgType, Header: m.Header,
		Cell: s.noteCellLocked(m, h), Main: h.Subshell == "", Replied: !hasReply(h.MsgType)}
	s.addRequestLocked(r)
	return r
}

func (s *Supervisor) addRequestLocked(r *requests.Request) {
	s.requests.Add(r)
	s.clock.Await(r.ID, r.Type)
}

func (s *Supervisor) finishLocked(r *requests.Request) {
	s.requests.Finish(r)
	s.clock.Forget(r.ID)
}

// runningCellLocked returns the execute_request that runs according to the statuses, or nil.
func (s *Supervisor) runningCellLocked() *requests.Request {
	return s.requests.RunningCell(s.clock.IsBusy)
}
