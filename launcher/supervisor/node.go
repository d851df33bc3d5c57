package supervisor

import (
	"encoding/json"
	"net/http"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// putNodeNotice stores why the kernel's node will go away soon. The pod and its kernel still run.
func (s *Supervisor) putNodeNotice(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Text *string `json:"text"`
	}
	b, err := readBody(w, r, 16<<10)
	if err == nil {
		err = json.Unmarshal(b, &body)
	}
	if err != nil || body.Text == nil {
		return httpError{http.StatusBadRequest, `the body is not {"text": "..."}`}
	}
	s.setNodeNotice(api.PlainText(*body.Text, waitingText))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// setNodeNotice shows the notice to all sessions, in their last cell. "" removes it there. A page that is away receives
// it when it comes back. The model shows it to pages that are opened later. A notice that is repeated changes nothing.
func (s *Supervisor) setNodeNotice(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text == s.nodeNotice {
		return
	}
	s.nodeNotice = text
	if text == "" {
		s.notices.Node.End("")
		return
	}
	for sess := range s.sessions.All() {
		s.notices.Node.Add(sess.Number, sess.LastCell)
	}
	s.notices.Node.Show("This kernel may be ended soon: " + text +
		". Its variables are lost then, so save what you need.")
}
