package supervisor

import (
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
)

// presentStatusLocked returns the present state with the running cell as its parent.
func (s *Supervisor) presentStatusLocked() jupyter.Message {
	var parent []byte
	if r := s.runningCellLocked(); r != nil {
		parent = r.Header
	}
	return s.notices.State(s.use.State(), parent)
}

// abortAllLocked answers all unfinished requests instead of the kernel, whose process has ended. Clients that wait for
// a reply and an idle get both.
func (s *Supervisor) abortAllLocked(status, ename, reason string) {
	for r := range s.requests.Open() {
		s.abortLocked(r, status, ename, reason)
	}
}

// markDoubtful marks the requests that the kernel had when the connection broke. The kernel answers most of them on a
// new connection. Messages that it sent in between are lost: see settleDoubtfulLocked.
func (s *Supervisor) markDoubtful() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.requests.Open() {
		r.Doubtful = r.Doubtful || r.Sent.Load()
	}
	if r := s.runningCellLocked(); r != nil && r.Session != noSession {
		m := s.notices.Line(r.Header, "The connection to the kernel broke for a moment. Output of that moment is lost.")
		s.log.Append(r.Session, m, true)
	}
}

// settleDoubtfulLocked is called when the kernel has answered the first request on a new connection. The kernel answers
// requests of the main shell, and of control, in order. So an earlier request without an answer was lost, or its answer
// was.
func (s *Supervisor) settleDoubtfulLocked(c jupyter.Channel) {
	for r := range s.requests.Open() {
		if !r.Doubtful || r.Finished() || r.Channel != c || !r.Main {
			continue
		}
		if !r.Replied {
			s.loseLocked(r, "the connection to the kernel broke; it may have run, but its answer is lost")
		} else if r.RepliedAt.IsZero() {
			s.abortLocked(r, "", "", "") // requests without a reply lack only the idle
		}
	}
}

// giveUpDoubtful ends the requests that the kernel got under an identity that it does not answer any more.
func (s *Supervisor) giveUpDoubtful() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.requests.Open() {
		if r.Doubtful && !r.Finished() {
			s.loseLocked(r, "the connection to the kernel broke and had to be replaced; answers and output in flight are lost")
		}
	}
}

// loseLocked ends a request whose answer will not come, and shows the reason in its cell.
func (s *Supervisor) loseLocked(r *requests.Request, reason string) {
	if r.Session != noSession && r.Executes() {
		s.log.Append(r.Session, s.notices.Line(r.Header, "%s", reason), true)
	}
	s.abortLocked(r, "error", "ConnectionLost", reason)
}

// abortLocked answers one request instead of the kernel.
func (s *Supervisor) abortLocked(r *requests.Request, status, ename, reason string) {
	if r.Session != noSession && !r.Replied && r.Type != "kernel_info_request" { // see notice.Fails
		f := notice.Failure{Status: status, Name: ename, Reason: reason}
		s.log.Append(r.Session, s.notices.Reply(r.Channel, r.Type, r.Header, f), true)
	}
	if !r.Idled {
		s.log.Append(allSessions, s.notices.State(api.Idle, r.Header), true)
	}
	s.use.Done(r.ID, r.Type)
	s.finishLocked(r)
}
