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
	idleGrace      = 5 * time.Second // silence after a reply before a missing idle is replaced
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

// orphan is called when a session was removed. Its requests stay, and their replies are dropped.
func (cs *clients) orphan(sess *session.Session) {
	cs.requests.Orphan(sess.Number)
	for cs.requests.Pending(noSession) > maxOutstanding {
		cs.finish(cs.requests.Oldest(noSession))
	}
}

// register adds a request before it goes to the kernel. It returns nil if no answer to the message is awaited.
func (cs *clients) register(sess *session.Session, m *jupyter.Message, h jupyter.Header) *requests.Request {
	if h.MsgID == "" || m.Channel == jupyter.Stdin {
		return nil // an input_reply is an answer
	}
	if cs.requests.Pending(sess.Number) >= maxOutstanding {
		cs.finish(cs.requests.Oldest(sess.Number))
	}
	if h.MsgType == "execute_request" {
		sess.LastCell = m.Header
	}
	r := &requests.Request{ID: h.MsgID, Session: sess.Number, User: sess.User, Channel: m.Channel, Type: h.MsgType,
		Header: m.Header, Cell: cs.cells.Note(m, h), Main: h.Subshell == "", Subshell: h.Subshell,
		Stops: stopsOnError(m, h.MsgType), Replied: !hasReply(h.MsgType),
		Outputs: cs.outputs, After: cs.sessions.Newest()}
	cs.add(r)
	return r
}

func (cs *clients) add(r *requests.Request) {
	if r.Executes() && !cs.cellBegan.IsZero() && cs.requests.OldestCell() == nil {
		cs.cellBegan = cs.now()
	}
	cs.requests.Add(r)
	cs.use.Await(r.ID, r.Type)
}

// noteNextCell notes that a cell has ended with the message idle, and that the next one begins if one waits. The
// kernel wrote the message's date then; the message may come after the next cell's output.
func (cs *clients) noteNextCell(ended *requests.Request, idle *jupyter.Message) {
	if !ended.Executes() || cs.requests.OldestCell() == nil {
		return
	}
	now := cs.now()
	at, err := time.Parse(time.RFC3339Nano, jupyter.StringField(idle.Header, "date"))
	if err != nil || at.After(now) || at.Before(cs.cellBegan) {
		at = now // the kernel may say anything
	}
	cs.cellBegan = at
}

func (cs *clients) finish(r *requests.Request) {
	cs.requests.Finish(r)
	cs.passFailed(r)
	cs.use.Forget(r.ID, r.Type)
}

// runningCell returns the execute_request that runs according to the statuses, or nil.
func (cs *clients) runningCell() *requests.Request {
	return cs.requests.RunningCell(cs.use.IsBusy)
}

// stampLocked returns the marks of an entry that is appended to the log. Entries are appended with the lock held.
func (s *Supervisor) stampLocked(parent []byte) messagelog.Stamp {
	cell := s.clients.cells.Of(parent, &s.clients.requests)
	return messagelog.Stamp{Time: s.nowLocked().UTC(), Epoch: s.kernel.epoch, Cell: cell}
}
