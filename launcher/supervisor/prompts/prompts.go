// Package prompts holds the input_requests that a kernel waits on. A Table decides which sessions get a Prompt, and
// which input_reply is the answer. Package supervisor asks it.
//
// A prompt is for the session of its request, and for the sessions of the same user that began after the request: the
// page after a reload, or the page on another machine. No session with the right to read gets one.
//
// The package has no goroutines and no locks. The owner of a Table guards it and its prompts by one lock.
package prompts

import (
	"slices"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

const (
	maxWaiting = 64 // prompts; only subshells can wait for more than one
	maxPast    = 64 // prompts that wait no more, whose late answers are recognized
)

// Prompt is an input_request that waits for its answer.
type Prompt struct {
	ID      string // msg_id of the input_request
	Message jupyter.Message
	Request *requests.Request // whose code asks

	offered map[uint64]messagelog.Position // where the log has it for a session, by the session's number
	by      uint64                         // number of the session that has answered; 0: none has
}

// Table holds a kernel's prompts. The zero value is ready.
type Table struct {
	waiting []*Prompt // in order of arrival
	past    []*Prompt // that wait no more; the newest is the last
	version uint64
}

// Add adds the prompt m of a request. It replaces an earlier prompt of that request: code waits for one answer at a
// time.
func (t *Table) Add(r *requests.Request, m jupyter.Message) *Prompt {
	t.version++
	t.drop(func(p *Prompt) bool { return p.Request == r })
	if len(t.waiting) >= maxWaiting {
		oldest := t.waiting[0]
		t.drop(func(p *Prompt) bool { return p == oldest })
	}
	p := &Prompt{ID: jupyter.StringField(m.Header, "msg_id"), Message: m, Request: r,
		offered: map[uint64]messagelog.Position{}}
	t.waiting = append(t.waiting, p)
	return p
}

// Waiting returns the prompts that wait for an answer, in order of arrival. Those whose request was answered, as after
// an interrupt, wait no more. The caller must not change the slice.
func (t *Table) Waiting() []*Prompt {
	t.drop(func(p *Prompt) bool { return p.Request.Replied })
	return t.waiting
}

// Of returns the prompt of a request, or nil.
func (t *Table) Of(r *requests.Request) *Prompt {
	for _, p := range t.Waiting() {
		if p.Request == r {
			return p
		}
	}
	return nil
}

// Answered notes that a session's answer has gone to the kernel.
func (t *Table) Answered(p *Prompt, s *session.Session) {
	t.version++
	p.by = s.Number
	t.drop(func(other *Prompt) bool { return other == p })
}

// Version changes whenever a prompt is added or answered.
func (t *Table) Version() uint64 { return t.version }

// drop moves prompts to those that wait no more.
func (t *Table) drop(over func(*Prompt) bool) {
	if !slices.ContainsFunc(t.waiting, over) {
		return
	}
	for _, p := range t.waiting {
		if over(p) {
			p.Message = jupyter.Message{} // which may be large
			t.past = append(t.past, p)
		}
	}
	t.waiting = slices.DeleteFunc(t.waiting, over)
	if more := len(t.past) - maxPast; more > 0 {
		t.past = slices.Delete(t.past, 0, more)
	}
}

// Refusal says why an input_reply does not go to the kernel.
type Refusal struct {
	Cell   []byte // header of the request whose code asked; nil: unknown
	Reason string
}

// Match returns the prompt that an input_reply answers, or why it is refused. parent is the msg_id of its
// parent_header; some clients send none. Both results are nil for a reply of which the table knows nothing.
func (t *Table) Match(parent string, s *session.Session) (*Prompt, *Refusal) {
	waiting := t.Waiting()
	for _, p := range waiting {
		if p.ID == parent && p.Request.User == s.User {
			return p, nil
		}
	}
	if parent == "" {
		if p := newest(waiting, s); p != nil {
			return p, nil
		}
	}
	for _, p := range slices.Backward(t.past) {
		if p.Request.User == s.User && (p.ID == parent || parent == "" && p.isStale(s)) {
			return nil, p.refusal(s)
		}
	}
	if len(waiting) > 0 {
		return nil, &Refusal{Cell: s.LastCell, Reason: "this input was not passed on: the kernel has not asked for it"}
	}
	return nil, nil
}

// newest returns the newest prompt of a session's user: first of the session's own requests.
func newest(waiting []*Prompt, s *session.Session) (found *Prompt) {
	for _, p := range slices.Backward(waiting) {
		switch {
		case p.Request.User != s.User:
		case p.Request.Session == s.Number:
			return p
		case found == nil:
			found = p
		}
	}
	return found
}

// isStale reports whether another session has answered a prompt that the session got, too.
func (p *Prompt) isStale(s *session.Session) bool {
	_, offered := p.offered[s.Number]
	return offered && p.by != 0 && p.by != s.Number
}

func (p *Prompt) refusal(s *session.Session) *Refusal {
	why := "it was answered in another page"
	switch p.by {
	case 0:
		why = "the kernel waits for it no more"
	case s.Number:
		why = "it was answered before"
	}
	return &Refusal{Cell: p.Request.Header, Reason: "this input was not passed on: " + why}
}

// Offer reports whether the session is to get the prompt now, as its first: the prompt is for the session, and was not
// offered to it. The caller then adds it to the log for the session, and calls Offered.
func (p *Prompt) Offer(s *session.Session) bool {
	_, offered := p.offered[s.Number]
	return !offered && p.isFor(s)
}

// Offered notes where the log has the prompt for a session.
func (p *Prompt) Offered(s *session.Session, at messagelog.Position) { p.offered[s.Number] = at }

// Acknowledged reports whether a client that reads the log from a position got the prompt on an earlier connection.
func (p *Prompt) Acknowledged(s *session.Session, from messagelog.Position) bool {
	at, offered := p.offered[s.Number]
	return offered && at.Seq <= from.Seq
}

func (p *Prompt) isFor(s *session.Session) bool {
	r := p.Request
	return s.Number == r.Session || !s.ReadOnly && s.User == r.User && s.Number > r.After
}
