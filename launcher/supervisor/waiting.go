package supervisor

import (
	"net/http"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/routes"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/starter"
)

// SetWaiting implements routes.Kernel. An older version is ignored without an error.
func (s *Supervisor) SetWaiting(reported api.Waiting) error {
	if starter.PlaceOf(&s.cfg) != process.InContainer {
		return routes.Error{Status: http.StatusNotFound, Text: "the kernel has no container of its own"}
	}
	s.mu.Lock()
	if reported.Version <= s.kernel.waiting.Version {
		s.mu.Unlock()
		return nil
	}
	s.kernel.waiting = reported
	s.timeline.pull(reported.Pulled, s.use.Started)
	s.showWaitingLocked()
	s.mu.Unlock()
	if reported.Class == api.DiedClass && reported.Text != "" {
		s.container.SetEndReason(reported.Text)
	}
	goroutines.Wake(s.containerReported)
	return nil
}

// showWaitingLocked updates the notices in waiting cells. Only the first cell of each session shows one, since the
// others wait for that cell.
func (s *Supervisor) showWaitingLocked() {
	text := s.kernel.waitingText(s.use.State())
	if text == "" {
		s.notices.Waiting.End("")
		return
	}
	for r := range s.clients.requests.Open() {
		if r.Executes() && r.Session != noSession {
			s.notices.Waiting.Add(r.Session, r.Header)
		}
	}
	s.notices.Waiting.Show("The kernel is not there yet: " + text)
}

// SetNodeNotice implements routes.Kernel. All sessions show the notice, in their last cell. "" removes it there. A page
// that is away receives it when it comes back. The model shows it to pages that are opened later. A notice that is
// repeated changes nothing.
func (s *Supervisor) SetNodeNotice(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text == s.kernel.node {
		return
	}
	s.kernel.node = text
	if text == "" {
		s.notices.Node.End("")
		return
	}
	for sess := range s.clients.sessions.All() {
		s.notices.Node.Add(sess.Number, sess.LastCell)
	}
	s.notices.Node.Show("This kernel may be ended soon: " + text +
		". Its variables are lost then, so save what you need.")
}
