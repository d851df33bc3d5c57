// Package gaps finds messages that a kernel has sent and that never arrived. A Tracker finds a Gap by the numbers in
// the kernel's msg_ids. Package supervisor tells it each msg_id, and announces the gaps in notebooks. This package
// starts no goroutine.
package gaps

import (
	"bytes"
	"strconv"
	"time"
)

const (
	sendLimit   = 1000             // messages that wait in a kernel's socket before it drops more: ZeroMQ's default
	burstWindow = 10 * time.Second // sendLimit messages must have been numbered in this time or twice of it
	grace       = 2 * time.Second  // a gap that nothing narrows for so long is a loss
	maxGaps     = 64               // if there are more, the two oldest are merged
	leeway      = 2                // numbers that other threads have taken and not yet sent when a cell ends
)

// Tracker follows the numbers of one kernel's messages. ipykernel, and kernels that build on its base class, end each
// msg_id in a counter over all channels: session, process id and number (jupyter_client.session.Session.msg_id).
//
// A number may come late: channels overtake each other, and ipykernel numbers its output before it queues it. A number
// may never be sent: a display hook took the message, or another client, on the kernel's own ports, got the reply. So
// numbers count as missing only where a kernel sends enough at once to exceed its send limit.
//
// The zero value is ready. It is not for concurrent use.
type Tracker struct {
	prefix []byte // of the msg_ids: the part before the counter; empty before the first
	next   uint64 // above every number that has come
	open   []Gap  // oldest first

	// The numbers at the beginning of the present window and of the one before it.
	since        time.Time
	mark, before uint64
}

// Gap is a range of numbers that have not all come.
type Gap struct {
	Missing uint64 // how many have not come
	Cell    string // msg_id of the request whose output came before it; "" if unknown
	Header  []byte // the request's header

	first, last uint64
	at          time.Time // when it opened, or when a message last showed that others may be on the way
}

// Observe takes the msg_id of a message, and reports whether it opened a gap. The caller then calls Attribute.
func (g *Tracker) Observe(msgID []byte, now time.Time) bool {
	i := bytes.LastIndexByte(msgID, '_')
	if i < 0 {
		return false
	}
	n, err := strconv.ParseUint(string(msgID[i+1:]), 10, 62)
	if err != nil {
		return false
	}
	if !bytes.Equal(g.prefix, msgID[:i]) {
		if bytes.Count(msgID[:i], []byte("_")) == 0 {
			return false // not a session and a process id: the counter may mean anything
		}
		*g = Tracker{prefix: bytes.Clone(msgID[:i]), next: n + 1, since: now, mark: n, before: n}
		return false
	}
	if n < g.next {
		g.fill(n, now)
		return false
	}
	g.turn(now)
	opened := n > g.next && n-g.before >= sendLimit // otherwise the kernel cannot have dropped any
	if opened {
		g.add(Gap{first: g.next, last: n - 1, Missing: n - g.next, at: now})
	}
	g.next = n + 1
	return opened
}

// turn begins a new window if the present one is over.
func (g *Tracker) turn(now time.Time) {
	switch passed := now.Sub(g.since); {
	case passed >= 2*burstWindow:
		g.before, g.mark, g.since = g.next, g.next, now
	case passed >= burstWindow:
		g.before, g.mark, g.since = g.mark, g.next, now
	}
}

func (g *Tracker) add(opened Gap) {
	if len(g.open) == maxGaps {
		g.open[1].first = g.open[0].first
		g.open[1].Missing += g.open[0].Missing
		g.open = append(g.open[:0], g.open[1:]...)
	}
	g.open = append(g.open, opened)
}

// fill notes a number that has come late. Higher numbers may still follow in the same queue.
func (g *Tracker) fill(n uint64, now time.Time) {
	for i := len(g.open) - 1; i >= 0 && n <= g.open[i].last; i-- {
		g.open[i].at = now
		if n < g.open[i].first {
			continue
		}
		if g.open[i].Missing--; g.open[i].Missing == 0 {
			g.open = append(g.open[:i], g.open[i+1:]...)
		}
		return
	}
}

// Attribute notes the cell whose output the newest gap is in: its request's msg_id and header.
func (g *Tracker) Attribute(cell string, header []byte) {
	last := &g.open[len(g.open)-1]
	last.Cell, last.Header = cell, header
}

// Open reports whether there are gaps.
func (g *Tracker) Open() bool { return len(g.open) > 0 }

// Settle is called when the end of a cell has come on iopub, behind all earlier output. It returns how many messages
// are lost, and removes them from the gaps. Up to inFlight messages may still come on other channels. Numbers above the
// end's number follow it in the same queue, since a later cell's reply can overtake it.
func (g *Tracker) Settle(end []byte, inFlight int) uint64 {
	n, ok := g.number(end)
	if !ok {
		return 0
	}
	var missing uint64
	later := make([]Gap, 0, len(g.open))
	for _, o := range g.open {
		awaited := uint64(0)
		if o.last > n {
			awaited = min(o.Missing, o.last-max(n, o.first-1))
		}
		missing += o.Missing - awaited
		if awaited > 0 {
			o.first, o.Missing = max(o.first, n+1), awaited
			later = append(later, o)
		}
	}
	if missing <= uint64(inFlight)+leeway {
		return 0
	}
	g.open = later
	return missing - uint64(inFlight)
}

// number reads the counter of a msg_id with the same prefix as those before.
func (g *Tracker) number(msgID []byte) (uint64, bool) {
	i := bytes.LastIndexByte(msgID, '_')
	if i < 0 || !bytes.Equal(g.prefix, msgID[:i]) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(msgID[i+1:]), 10, 62)
	return n, err == nil
}

// Overdue removes the gaps that nothing has narrowed for two seconds, and returns them.
func (g *Tracker) Overdue(now time.Time) (closed []Gap) {
	var kept []Gap
	for _, o := range g.open {
		if now.Sub(o.at) >= grace {
			closed = append(closed, o)
		} else {
			kept = append(kept, o)
		}
	}
	g.open = kept
	return closed
}
