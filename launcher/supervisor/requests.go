package supervisor

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

const (
	maxOutstanding = 4096            // unfinished requests of one session; beyond, the oldest is dropped
	idleGrace      = 5 * time.Second // silence after a reply before a missing idle counts as lost
)

// allSessions addresses an entry of the log to all sessions.
const allSessions = 0

// noSession is the session number of requests whose session has ended.
const noSession = 0

// hasReply reports whether requests of the type are answered on their own channel. Comm messages are not answered
// (jupyter-client messaging page, "Custom Messages").
func hasReply(msgType string) bool {
	return msgType != "comm_open" && msgType != "comm_msg" && msgType != "comm_close"
}

// orphanLocked is called when a session was removed. Its requests stay, and their replies are dropped.
func (s *Supervisor) orphanLocked(sess *session.Session) {
	s.requests.Orphan(sess.Number)
	for s.requests.Pending(noSession) > maxOutstanding {
		s.finishLocked(s.requests.Oldest(noSession))
	}
}

// registerLocked adds a request before it goes to the kernel. It returns nil if no answer to the message is awaited.
func (s *Supervisor) registerLocked(sess *session.Session, m *jupyter.Message, h jupyter.Header) *requests.Request {
	if h.MsgID == "" || m.Channel == jupyter.Stdin {
		return nil // an input_reply is an answer
	}
	if s.requests.Pending(sess.Number) >= maxOutstanding {
		s.finishLocked(s.requests.Oldest(sess.Number))
	}
	if h.MsgType == "execute_request" {
		sess.LastCell = m.Header
	}
	r := &requests.Request{ID: h.MsgID, Session: sess.Number, User: sess.User, Channel: m.Channel, Type: h.MsgType,
		Header: m.Header, Cell: s.cells.Note(m, h), Main: h.Subshell == "", Replied: !hasReply(h.MsgType),
		After: s.sessions.Newest()}
	s.addRequestLocked(r)
	return r
}

func (s *Supervisor) addRequestLocked(r *requests.Request) {
	if r.Executes() && !s.cellBegan.IsZero() && s.requests.OldestCell() == nil {
		s.cellBegan = s.now()
	}
	s.requests.Add(r)
	s.use.Await(r.ID, r.Type)
}

// noteNextCellLocked notes that a cell has ended with the message idle, and that the next one begins if one waits. The
// kernel wrote the message's date then; the message may come after the next cell's output.
func (s *Supervisor) noteNextCellLocked(ended *requests.Request, idle *jupyter.Message) {
	if !ended.Executes() || s.requests.OldestCell() == nil {
		return
	}
	now := s.now()
	at, err := time.Parse(time.RFC3339Nano, jupyter.StringField(idle.Header, "date"))
	if err != nil || at.After(now) || at.Before(s.cellBegan) {
		at = now // the kernel may say anything
	}
	s.cellBegan = at
}

func (s *Supervisor) finishLocked(r *requests.Request) {
	s.requests.Finish(r)
	s.use.Forget(r.ID, r.Type)
}

// runningCellLocked returns the execute_request that runs according to the statuses, or nil.
func (s *Supervisor) runningCellLocked() *requests.Request {
	return s.requests.RunningCell(s.use.IsBusy)
}

// stampLocked returns the marks of an entry that is appended to the log. Entries are appended with the lock held.
func (s *Supervisor) stampLocked(parent []byte) messagelog.Stamp {
	return messagelog.Stamp{Time: s.nowLocked().UTC(), Epoch: s.epoch, Cell: s.cells.Of(parent, &s.requests)}
}
