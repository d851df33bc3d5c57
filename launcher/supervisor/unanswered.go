package supervisor

import (
	"fmt"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
)

// noticeLocked returns a line on stderr under the cell whose request has the given header.
func (s *Supervisor) noticeLocked(cell []byte, format string, args ...any) jupyter.Message {
	return notice.Line(s.senderSessionLocked(), cell, fmt.Sprintf(format, args...))
}

func (s *Supervisor) statusLocked(state api.State, parent []byte) jupyter.Message {
	return notice.State(s.senderSessionLocked(), parent, string(state))
}

// presentStatusLocked returns the present state with the running cell as its parent.
func (s *Supervisor) presentStatusLocked() jupyter.Message {
	var parent []byte
	if r := s.runningCellLocked(); r != nil {
		parent = r.Header
	}
	return s.statusLocked(s.use.State(), parent)
}

// senderSessionLocked returns the session id of messages that are sent instead of the kernel's. It is the kernel's own,
// since JupyterLab drops queued messages when the sender's session changes.
func (s *Supervisor) senderSessionLocked() string {
	if s.kernelSession != "" {
		return s.kernelSession
	}
	return s.ownSession
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
		m := s.noticeLocked(r.Header, "The connection to the kernel broke for a moment. Output of that moment is lost.")
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
		s.log.Append(r.Session, s.noticeLocked(r.Header, "%s", reason), true)
	}
	s.abortLocked(r, "error", "ConnectionLost", reason)
}

// abortLocked answers one request instead of the kernel.
func (s *Supervisor) abortLocked(r *requests.Request, status, ename, reason string) {
	if r.Session != noSession && !r.Replied && r.Type != "kernel_info_request" { // see notice.Fails
		f := notice.Failure{Status: status, Name: ename, Reason: reason}
		s.log.Append(r.Session, s.errorReplyLocked(r.Channel, r.Type, r.Header, f), true)
	}
	if !r.Idled {
		s.log.Append(allSessions, s.statusLocked(api.Idle, r.Header), true)
	}
	s.use.Done(r.ID, r.Type)
	s.finishLocked(r)
}

// errorReplyLocked returns an error reply that replaces the kernel's.
func (s *Supervisor) errorReplyLocked(
	c jupyter.Channel, requestType string, header []byte, f notice.Failure,
) jupyter.Message {
	return notice.Reply(c, requestType, s.senderSessionLocked(), header, f)
}
