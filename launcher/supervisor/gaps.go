package supervisor

import (
	"bytes"
	"strconv"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

const (
	sendLimit   = 1000             // messages that a kernel's socket lets wait before it drops more: ZeroMQ's default
	burstWindow = 10 * time.Second // so many of them at least must have been numbered in this time or twice of it
	gapGrace    = 2 * time.Second  // a gap that nothing narrows for so long is a loss
	maxGaps     = 64               // beyond, the two oldest are taken together
	gapLeeway   = 2                // numbers given out but not yet sent when a cell ends: its other threads'
)

// gaps finds what a kernel has sent and nobody got. ipykernel, and what is built on its base class, ends each msg_id in
// a counter over all channels: session, process id and number (jupyter_client.session.Session.msg_id). A number may come
// late, since channels overtake each other and ipykernel numbers its output before it queues it, and it may never be
// sent at all (a display hook took the message; another client, on the kernel's ports themselves, got the reply). So
// numbers are missed only where a kernel sends enough at once to exceed its send limit. It is owned by a bridge and
// guarded by Supervisor.mu.
type gaps struct {
	line []byte // of the msg_ids, what stands before the counter; empty before the first
	next uint64 // above every number that has come
	open []gap  // oldest first

	// The numbers at the beginning of the present window and of the one before it.
	since        time.Time
	mark, before uint64
}

// gap is a range of numbers of which some have not come.
type gap struct {
	first, last uint64
	missing     uint64
	at          time.Time // when it opened, or when something last showed that its messages may be on the way
	cell        string    // msg_id of the request whose output came before it; "" if unknown
	header      []byte    // the request's header
}

// observe takes the msg_id of a message, and reports whether it opened a gap.
func (g *gaps) observe(msgID []byte, now time.Time) bool {
	i := bytes.LastIndexByte(msgID, '_')
	if i < 0 {
		return false
	}
	n, err := strconv.ParseUint(string(msgID[i+1:]), 10, 62)
	if err != nil {
		return false
	}
	if !bytes.Equal(g.line, msgID[:i]) {
		if bytes.Count(msgID[:i], []byte("_")) == 0 {
			return false // something else than session and process id: who knows what it counts
		}
		*g = gaps{line: bytes.Clone(msgID[:i]), next: n + 1, since: now, mark: n, before: n}
		return false
	}
	if n < g.next {
		g.fill(n, now)
		return false
	}
	g.turn(now)
	opened := n > g.next && n-g.before >= sendLimit // else the kernel cannot have dropped any
	if opened {
		g.add(gap{first: g.next, last: n - 1, missing: n - g.next, at: now})
	}
	g.next = n + 1
	return opened
}

// turn begins a new window where the present one is over.
func (g *gaps) turn(now time.Time) {
	switch passed := now.Sub(g.since); {
	case passed >= 2*burstWindow:
		g.before, g.mark, g.since = g.next, g.next, now
	case passed >= burstWindow:
		g.before, g.mark, g.since = g.mark, g.next, now
	}
}

func (g *gaps) add(opened gap) {
	if len(g.open) == maxGaps {
		g.open[1].first = g.open[0].first
		g.open[1].missing += g.open[0].missing
		g.open = append(g.open[:0], g.open[1:]...)
	}
	g.open = append(g.open, opened)
}

// fill notes a number that has come late. What is above it may still be behind it in the same queue.
func (g *gaps) fill(n uint64, now time.Time) {
	for i := len(g.open) - 1; i >= 0 && n <= g.open[i].last; i-- {
		g.open[i].at = now
		if n < g.open[i].first {
			continue
		}
		if g.open[i].missing--; g.open[i].missing == 0 {
			g.open = append(g.open[:i], g.open[i+1:]...)
		}
		return
	}
}

// attribute says whose output the newest gap is in.
func (g *gaps) attribute(cell string, header []byte) {
	last := &g.open[len(g.open)-1]
	last.cell, last.header = cell, header
}

// settle is called when the end of a cell has come on iopub, behind all that was said there before. It returns how many
// messages are lost, and takes them out of the gaps. As many as inFlight may still come on other channels; and what has
// a higher number than the end, since a later cell's reply can overtake it, is behind it in the same queue.
func (g *gaps) settle(end []byte, inFlight int) uint64 {
	n, ok := g.number(end)
	if !ok {
		return 0
	}
	var missing uint64
	later := make([]gap, 0, len(g.open))
	for _, o := range g.open {
		awaited := uint64(0)
		if o.last > n {
			awaited = min(o.missing, o.last-max(n, o.first-1))
		}
		missing += o.missing - awaited
		if awaited > 0 {
			o.first, o.missing = max(o.first, n+1), awaited
			later = append(later, o)
		}
	}
	if missing <= uint64(inFlight)+gapLeeway {
		return 0
	}
	g.open = later
	return missing - uint64(inFlight)
}

// number reads the counter of a msg_id of the same line as those before.
func (g *gaps) number(msgID []byte) (uint64, bool) {
	i := bytes.LastIndexByte(msgID, '_')
	if i < 0 || !bytes.Equal(g.line, msgID[:i]) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(msgID[i+1:]), 10, 62)
	return n, err == nil
}

// overdue closes the gaps that nothing has narrowed for gapGrace, and returns them.
func (g *gaps) overdue(now time.Time) (closed []gap) {
	var kept []gap
	for _, o := range g.open {
		if now.Sub(o.at) >= gapGrace {
			closed = append(closed, o)
		} else {
			kept = append(kept, o)
		}
	}
	g.open = kept
	return closed
}

// missed finds gaps in what the kernel has numbered. It is called with every message, before anything else. s.mu is
// held.
func (s *Supervisor) missed(b *bridge, msgID []byte) {
	if !b.gaps.observe(msgID, s.now()) {
		return
	}
	cell, header := s.lastParentHeader.MsgID, s.lastParent
	if s.lastParentHeader.MsgType != "execute_request" {
		if r := s.running(); r != nil {
			cell, header = r.id, r.header
		}
	}
	b.gaps.attribute(cell, header)
	poke(s.janitor)
}

// settleGaps announces what has been lost when a cell ends, before its idle is passed on: front ends stop listening
// then. idle is that one's msg_id. s.mu is held.
func (s *Supervisor) settleGaps(b *bridge, cell *request, idle []byte) {
	if len(b.gaps.open) == 0 || cell == nil || cell.msgType != "execute_request" {
		return
	}
	inFlight := 0 // replies that may have been sent and not been read yet: not those of cells behind this one
	behind := false
	for _, r := range s.order {
		if !r.replied && (!behind || !r.main || r.channel != wire.Shell) {
			inFlight++
		}
		behind = behind || r == cell
	}
	if n := b.gaps.settle(idle, inFlight); n > 0 {
		s.announceLoss(cell.id, cell.header, n)
	}
}

// announceGaps announces what has been missing for too long. It reports whether there is more to wait for. s.mu is held.
func (s *Supervisor) announceGaps() bool {
	if s.bridge == nil {
		return false
	}
	lost := s.bridge.gaps.overdue(s.now())
	for i := 0; i < len(lost); {
		first, n := lost[i], uint64(0)
		for ; i < len(lost) && lost[i].cell == first.cell; i++ {
			n += lost[i].missing
		}
		s.announceLoss(first.cell, first.header, n)
	}
	return len(s.bridge.gaps.open) > 0
}

func (s *Supervisor) announceLoss(cell string, header []byte, n uint64) {
	what := "1 message was"
	if n > 1 {
		what = strconv.FormatUint(n, 10) + " messages were"
	}
	s.log.append(nil, s.notice(header, "%s lost inside the kernel: it produced them faster than it could send them.", what), true)
	for _, r := range s.requests[cell] {
		r.lossTold = true
	}
	s.logger.Warn("messages were lost in the kernel's sockets", "count", n)
}
