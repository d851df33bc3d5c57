package supervisor

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gaps"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
)

// findGaps notes the number of a message with this msg_id. It is called with every message, before anything else.
func (cs *clients) findGaps(g *gaps.Tracker, m *jupyter.Message, id []byte) {
	if !g.Observe(id, cs.now()) {
		return
	}
	cell, header := cs.lastParentHeader.MsgID, cs.lastParent
	if cs.lastParentHeader.MsgType != "execute_request" {
		if r := cs.runningCell(); r != nil {
			cell, header = r.ID, r.Header
		} else if parent, err := jupyter.ParseHeader(m.Parent); err == nil {
			// The reply of a cell may overtake all its output, its first status too.
			if r := cs.requests.AwaitingReply(parent, m.Channel); r != nil && r.Executes() {
				cell, header = r.ID, r.Header
			}
		}
	}
	g.Attribute(cell, header)
	goroutines.Wake(cs.lossPossible)
}

// settleGaps announces the messages that were lost when a cell ends. It runs before the cell's idle is passed on,
// since front ends stop listening then. idle is the msg_id of that idle.
func (cs *clients) settleGaps(g *gaps.Tracker, cell *requests.Request, idle []byte) {
	if !g.Open() || cell == nil || cell.Type != "execute_request" {
		return
	}
	inFlight := 0 // replies that may be on their way: not those of cells behind this one
	behind := false
	for r := range cs.requests.Open() {
		if !r.Replied && (!behind || !r.Main || r.Channel != jupyter.Shell) {
			inFlight++
		}
		behind = behind || r == cell
	}
	if n := g.Settle(idle, inFlight); n > 0 {
		cs.announceLoss(cell.ID, cell.Header, n)
	}
}

// announceGaps announces the messages that have been missing for too long. It reports whether gaps remain.
func (cs *clients) announceGaps(g *gaps.Tracker) bool {
	lost := g.Overdue(cs.now())
	for i := 0; i < len(lost); {
		first, n := lost[i], uint64(0)
		for ; i < len(lost) && lost[i].Cell == first.Cell; i++ {
			n += lost[i].Missing
		}
		cs.announceLoss(first.Cell, first.Header, n)
	}
	return g.Open()
}

// announceLoss shows all sessions how many messages were lost, in the cell whose request has the given header.
func (cs *clients) announceLoss(cell string, header []byte, n uint64) {
	what := "1 message was"
	if n > 1 {
		what = strconv.FormatUint(n, 10) + " messages were"
	}
	m := cs.notices.Line(header, "%s lost inside the kernel: it produced them faster than it could send them.", what)
	cs.log.Append(allSessions, m, true)
	for _, r := range cs.requests.ByID(cell) {
		r.LossAnnounced = true
	}
	cs.logger.Warn("messages were lost in the kernel's sockets", logkey.Count, n)
}

// whyMissing says for each cause why a client has missed messages of output.
var whyMissing = [...]string{
	messagelog.LogFull: "this page was away or too slow for longer than the gateway keeps output",
	messagelog.NoRoom: "this page was away or too slow, and the disk of the kernel's log had too little room to keep " +
		"output for longer",
	messagelog.DiskSlow: "output came faster than the disk of the kernel's log could store it, and this page had not " +
		"read it yet",
	messagelog.DiskFailed: "the disk of the kernel's log failed",
}

// missing says how many messages of output a client has missed, and why.
func missing(lost messagelog.Loss) string {
	var parts []string
	for cause, n := range lost {
		switch n {
		case 0:
		case 1:
			parts = append(parts, "1 message of output is missing here: "+whyMissing[cause]+".")
		default:
			parts = append(parts, strconv.FormatUint(n, 10)+" messages of output are missing here: "+whyMissing[cause]+".")
		}
	}
	return strings.Join(parts, " ")
}

// sweepInterval is the time between two searches for lost messages while any may be lost.
const sweepInterval = time.Second

// watchLosses finds messages that a kernel's sockets have lost: output, and the idles that end cells. It sleeps while
// no message is missing.
func (s *Supervisor) watchLosses(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.clients.lossPossible:
			if again == nil {
				again = time.After(sweepInterval)
			}
		case <-again:
			again = nil
			if s.findLosses() {
				again = time.After(sweepInterval)
			}
		}
	}
}

// findLosses searches once and reports whether another search is needed.
func (s *Supervisor) findLosses() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.kernel.bridge
	missing := b != nil && s.clients.announceGaps(&b.gaps) // first: an ended cell shows nothing more
	idles := s.clients.endLostIdles()
	return missing || idles
}

// dropsFrom is how many messages a kernel's socket holds at least when it drops one: ZeroMQ's limit is 1,000, and up to
// 70 % lower at times (zmq_setsockopt, ZMQ_SNDHWM).
const dropsFrom = 300

// mayHaveLost reports whether the kernel's socket may have dropped output of a cell without an idle. The messages that
// the socket held at that time have come since. Some kernels send no idle at all for some cells, for example IRkernel
// for those that it aborts.
func (cs *clients) mayHaveLost(r *requests.Request) bool {
	return r.Executes() && !r.Aborted && !r.LossAnnounced && cs.outputs-r.Outputs >= dropsFrom
}

// endLostIdles sends idles that are missing. An idle counts as missing if its reply has come and iopub was then silent
// for idleGrace. Without an idle the cell would look busy forever. endLostIdles reports whether more idles are missing.
func (cs *clients) endLostIdles() (more bool) {
	now := cs.now()
	for r := range cs.requests.Open() {
		if !r.Replied || r.Idled || r.RepliedAt.IsZero() {
			continue
		}
		since := r.RepliedAt
		if cs.lastOutput.After(since) {
			since = cs.lastOutput
		}
		if now.Sub(since) < idleGrace {
			more = true
			continue
		}
		if r.Session != noSession && cs.mayHaveLost(r) {
			m := cs.notices.Line(r.Header, "Output of this cell was lost inside the kernel: it was produced faster than the "+
				"kernel could send it.")
			cs.log.Append(allSessions, m, true)
		}
		cs.abort(r, "", "", "")
	}
	return more
}

// shortened replaces a large message without which a client waits forever, when the log has no room for all of it. A
// status stays what it is: the log keeps it without its buffers.
func shortened(m *jupyter.Message, bytes int64) jupyter.Message {
	if m.Channel == jupyter.IOPub {
		short := *m
		short.Metadata, short.Buffers = []byte("{}"), nil
		return short
	}
	return notice.LeftOut(m, bytes, "the kernel's log had no room for it")
}
