// Package requests holds the requests that clients have sent to a kernel. Each Request stays in a Table until its reply
// and its idle status have both passed. So package supervisor knows which session gets a reply, and whether the kernel
// is busy. This package knows sessions only by number. A Table takes no lock: its callers guard it.
package requests

import (
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// Request is a client's request until its reply and its idle have both passed.
type Request struct {
	ID            string
	Session       uint64 // number of the session that sent it; 0: the session has ended
	User          string // who sent it
	Channel       jupyter.Channel
	Type          string
	Header        []byte // raw; the parent_header of messages about it
	Cell          string // id of the cell that it executes; "": unknown
	Main          bool   // not for a subshell: requests of its channel are answered in order
	Subshell      string // that it is for; "": the main shell
	Stops         bool   // an error in it drops the cells behind it
	Replied       bool
	Idled         bool
	RepliedAt     time.Time   // when the reply came, while the idle is missing
	LossAnnounced bool        // its client knows that output was lost
	NaN           bool        // its client knows that there is null in the place of some numbers
	Doubtful      bool        // the kernel had it when the connection broke
	Aborted       bool        // the kernel has answered that it did not run it
	Outputs       uint64      // messages that the kernel had published when it came
	After         uint64      // number of the newest connection when it came; see prompts
	Sent          atomic.Bool // it has left its gate
	ErrorSeq      uint64      // place of its error in the log; 0: it has not failed
	Opens         time.Time   // when messages wait for its end no longer; fixed with ErrorSeq
	Over          atomic.Bool // messages do not wait for its end
}

// Finished reports whether nothing is awaited for the request.
func (r *Request) Finished() bool { return r.Replied && r.Idled }

// Executes reports whether the request runs a cell.
func (r *Request) Executes() bool { return r.Type == "execute_request" }

// Table holds requests in order of arrival. Make one with NewTable.
type Table struct {
	byID    map[string][]*Request // in order of arrival
	order   []*Request            // all of them, in order of arrival; finished ones are dropped now and then
	open    int                   // requests in byID
	pending map[uint64]int        // requests in byID by session
	version uint64
}

// NewTable returns an empty Table.
func NewTable() Table {
	return Table{byID: map[string][]*Request{}, pending: map[uint64]int{}}
}

// Add adds a request. Several requests may have one id.
func (t *Table) Add(r *Request) {
	t.version++
	t.byID[r.ID] = append(t.byID[r.ID], r)
	t.order = append(t.order, r)
	t.open++
	t.pending[r.Session]++
	t.compact()
}

// compact drops finished requests from the order of arrival once they are the larger part of it.
func (t *Table) compact() {
	if len(t.order) < 64 || len(t.order) < 2*t.open {
		return
	}
	t.order = slices.DeleteFunc(t.order, (*Request).Finished)
}

// Finish marks a request as finished and removes it.
func (t *Table) Finish(r *Request) {
	r.Replied, r.Idled = true, true
	t.version++
	list := t.byID[r.ID]
	for i, other := range list {
		if other == r {
			list = append(list[:i:i], list[i+1:]...)
			t.open--
			t.count(r.Session, -1)
			break
		}
	}
	if len(list) == 0 {
		delete(t.byID, r.ID)
	} else {
		t.byID[r.ID] = list
	}
	if t.open == 0 {
		t.order = nil
	}
}

func (t *Table) count(session uint64, n int) {
	if t.pending[session] += n; t.pending[session] == 0 {
		delete(t.pending, session)
	}
}

// Orphan notes that a session has ended. Its requests go on, but no session gets their replies.
func (t *Table) Orphan(session uint64) {
	if t.pending[session] == 0 {
		return
	}
	for r := range t.Open() {
		if r.Session == session {
			r.Session = 0
			t.count(0, 1)
			t.count(session, -1)
		}
	}
}

// Open yields the requests that are not finished, in order of arrival. Requests may be finished meanwhile, but not
// added.
func (t *Table) Open() iter.Seq[*Request] {
	return func(yield func(*Request) bool) {
		for _, r := range t.order {
			if !r.Finished() && !yield(r) {
				return
			}
		}
	}
}

// Oldest returns the oldest unfinished request of a session (0: of sessions that have ended), or nil.
func (t *Table) Oldest(session uint64) *Request {
	return t.find(func(r *Request) bool { return r.Session == session })
}

// OldestCell returns the execute_request that has waited longest for its idle, or nil. If the kernel has died, that
// request was running: its busy may be lost with the kernel.
func (t *Table) OldestCell() *Request {
	return t.find(func(r *Request) bool { return r.Executes() && !r.Idled })
}

// RunningCell returns the oldest execute_request without an idle for which busy reports true, or nil.
func (t *Table) RunningCell(busy func(id, msgType string) bool) *Request {
	return t.find(func(r *Request) bool { return r.Executes() && !r.Idled && busy(r.ID, r.Type) })
}

func (t *Table) find(match func(*Request) bool) *Request {
	for r := range t.Open() {
		if match(r) {
			return r
		}
	}
	return nil
}

// ByID returns the unfinished requests with an id, in order of arrival. The caller must not change the slice.
func (t *Table) ByID(id string) []*Request { return t.byID[id] }

// OfOther reports whether another user has an unfinished request with the id.
func (t *Table) OfOther(id, user string) bool {
	return slices.ContainsFunc(t.byID[id], func(r *Request) bool { return r.User != user })
}

// AwaitingReply returns the first request without a reply that a message of the channel can answer, or nil. parent is
// the message's parent_header. A prompt on stdin belongs to a request of any channel. Requests of two sessions with the
// same id are answered in order of arrival.
func (t *Table) AwaitingReply(parent jupyter.Header, c jupyter.Channel) *Request {
	for _, r := range t.byID[parent.MsgID] {
		if !r.Replied && r.fits(parent) && (r.Channel == c || c == jupyter.Stdin) {
			return r
		}
	}
	return nil
}

// AwaitingIdle returns the first request without an idle that a status with the parent_header can end, or nil.
func (t *Table) AwaitingIdle(parent jupyter.Header) *Request {
	for _, r := range t.byID[parent.MsgID] {
		if !r.Idled && r.fits(parent) {
			return r
		}
	}
	return nil
}

// fits reports whether the request has the type that a parent_header names. Some kernels name none.
func (r *Request) fits(parent jupyter.Header) bool {
	return parent.MsgType == "" || parent.MsgType == r.Type
}

// Len returns how many requests are not finished.
func (t *Table) Len() int { return t.open }

// Pending returns how many requests of a session are not finished; 0 stands for sessions that have ended.
func (t *Table) Pending(session uint64) int { return t.pending[session] }

// Version changes whenever a request is added or finished.
func (t *Table) Version() uint64 { return t.version }
