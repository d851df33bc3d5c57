package supervisor

import (
	"bytes"
	"log/slog"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/cells"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/notices"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/prompts"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

// clients are the clients of one kernel, and what they await from it: sessions and connections, unfinished requests,
// and prompts. They answer what the kernel will not answer any more. What they tell a client is an entry of the log, or
// is sent on its connection. They know neither the kernel's process nor its connections.
//
// Supervisor.mu guards clients, and each method needs that lock.
type clients struct {
	// Fixed.
	log          *messagelog.Log
	notices      *notices.Notices
	use          *activity.Use // which learns what the clients await; guarded by Supervisor.mu too
	now          func() time.Time
	owns         func(user string) bool
	logger       *slog.Logger
	opened       func()        // messages at the gate of shell may pass
	lossPossible chan struct{} // capacity 1: messages of the kernel may be lost

	sessions  session.Table // by sessionKey
	connected map[*clientConn]struct{}
	requests  requests.Table
	prompts   prompts.Table
	cells     cells.Table         // by request
	failed    []*requests.Request // cells that have failed and not ended; see failed.go
	floor     messagelog.Position // the log's end when a client last had the kernel restarted

	broken           *requests.Request // the cell that ran when the connection broke; nil: none, or told
	lastParent       []byte            // parent_header of the last iopub message
	lastParentHeader jupyter.Header    // lastParent, parsed
	outputs          uint64            // messages that iopub has had
	lastOutput       time.Time         // when iopub last had a message
	cellBegan        time.Time         // when the last cell began, or the kernel was up; zero: it was not
}

// newClients returns the clients of a kernel that has none. The caller sets the fixed fields of c.
func newClients(c clients) *clients {
	c.lossPossible = make(chan struct{}, 1)
	c.connected, c.requests, c.cells = map[*clientConn]struct{}{}, requests.NewTable(), cells.NewTable()
	cs := &c
	cs.sessions = session.NewTable(cs.orphan)
	return cs
}

// attach attaches a client to its session.
func (cs *clients) attach(c *clientConn, key string) error {
	o := session.Options{Key: key, User: c.user, Owner: cs.owns(c.user), ReadOnly: c.readOnly, Tail: cs.log.Tail(),
		Floor: cs.floor}
	a, err := cs.sessions.Attach(o, cs.now())
	if err != nil {
		return err
	}
	c.attachment, c.session = a, a.Session
	return nil
}

// detach ends a client's connection to its session.
func (cs *clients) detach(c *clientConn, end session.End) {
	now := cs.now()
	if cs.sessions.Detach(c.attachment, end, now) {
		cs.use.Left = now
	}
}

// parseParent reads the parent_header. Most messages have the same parent as the previous message, and share its
// memory.
func (cs *clients) parseParent(m *jupyter.Message) (jupyter.Header, error) {
	if bytes.Equal(m.Parent, cs.lastParent) {
		m.Parent = cs.lastParent
		return cs.lastParentHeader, nil
	}
	h, err := jupyter.ParseHeader(m.Parent)
	if err == nil && m.Channel == jupyter.IOPub {
		m.Parent = bytes.Clone(m.Parent) // it outlives the messages around it
		cs.lastParent, cs.lastParentHeader = m.Parent, h
	}
	return h, err
}

// reject answers a request that does not reach the kernel, on the connection that it came from.
func (cs *clients) reject(c *clientConn, m *jupyter.Message, h jupyter.Header, ename, reason string) {
	if h.MsgID == "" || m.Channel == jupyter.Stdin {
		return
	}
	var answers []jupyter.Message
	if h.MsgType == "execute_request" {
		answers = append(answers, cs.notices.Line(m.Header, "%s", reason))
	}
	if hasReply(h.MsgType) && h.MsgType != "kernel_info_request" { // see notice.Fails
		f := notice.Failure{Status: "error", Name: ename, Reason: reason}
		answers = append(answers, cs.notices.Reply(m.Channel, h.MsgType, m.Header, f))
	}
	c.send(append(answers, cs.notices.State(api.Idle, m.Header))...)
}
