package supervisor

import (
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
)

// presentStatus returns the present state with the running cell as its parent.
func (cs *clients) presentStatus() jupyter.Message {
	var parent []byte
	if r := cs.runningCell(); r != nil {
		parent = r.Header
	}
	return cs.notices.State(cs.use.State(), parent)
}

// abortAll answers all unfinished requests instead of the kernel, whose process has ended. Clients that wait for
// a reply and an idle get both.
func (cs *clients) abortAll(status, ename, reason string) {
	for r := range cs.requests.Open() {
		cs.abort(r, status, ename, reason)
	}
}

// markDoubtful marks the requests that the kernel had when the connection broke. The kernel answers most of them on a
// new connection. Messages that it sent in between are lost: see settleDoubtful.
func (cs *clients) markDoubtful() {
	for r := range cs.requests.Open() {
		r.Doubtful = r.Doubtful || r.Sent.Load()
	}
	cs.broken = cs.runningCell()
}

// settleDoubtful is called when the kernel has answered the first request on a new connection. The kernel answers
// requests of the main shell, and of control, in order. So an earlier request without an answer was lost, or its answer
// was.
func (cs *clients) settleDoubtful(c jupyter.Channel) {
	if r := cs.broken; r != nil && r.Session != noSession {
		m := cs.notices.Line(r.Header, "The connection to the kernel broke for a moment. Output of that moment is lost.")
		cs.log.Append(r.Session, m, true)
	}
	cs.broken = nil
	for r := range cs.requests.Open() {
		if !r.Doubtful || r.Finished() || r.Channel != c || !r.Main {
			continue
		}
		if !r.Replied {
			cs.lose(r, "the connection to the kernel broke; it may have run, but its answer is lost")
		} else if r.RepliedAt.IsZero() {
			cs.abort(r, "", "", "") // requests without a reply lack only the idle
		}
	}
}

// giveUpDoubtful ends the requests that the kernel got under an identity that it does not answer any more.
func (cs *clients) giveUpDoubtful() {
	cs.broken = nil
	for r := range cs.requests.Open() {
		if r.Doubtful && !r.Finished() {
			cs.lose(r, "the connection to the kernel broke and had to be replaced; answers and output in flight are lost")
		}
	}
}

// lose ends a request whose answer will not come, and shows the reason in its cell.
func (cs *clients) lose(r *requests.Request, reason string) {
	if r.Session != noSession && r.Executes() {
		cs.log.Append(r.Session, cs.notices.Line(r.Header, "%s", reason), true)
	}
	cs.abort(r, "error", "ConnectionLost", reason)
}

// abort answers one request instead of the kernel.
func (cs *clients) abort(r *requests.Request, status, ename, reason string) {
	if r.Session != noSession && !r.Replied && r.Type != "kernel_info_request" { // see notice.Fails
		f := notice.Failure{Status: status, Name: ename, Reason: reason}
		cs.log.Append(r.Session, cs.notices.Reply(r.Channel, r.Type, r.Header, f), true)
	}
	if !r.Idled {
		cs.log.Append(allSessions, cs.notices.State(api.Idle, r.Header), true)
	}
	cs.use.Done(r.ID, r.Type)
	cs.finish(r)
}
