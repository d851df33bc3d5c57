package supervisor

import (
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/prompts"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

// askLocked offers a prompt of the kernel to all sessions that it is for.
func (s *Supervisor) askLocked(r *requests.Request, m jupyter.Message) {
	p := s.prompts.Add(r, m.Clone()) // it outlives the messages around it
	for sess := range s.sessions.All() {
		s.offerLocked(p, sess)
	}
}

// offerLocked adds a prompt to the log for a session that has not got it, if the prompt is for the session.
func (s *Supervisor) offerLocked(p *prompts.Prompt, sess *session.Session) {
	if p.Offer(sess) {
		p.Offered(sess, s.log.Append(sess.Number, p.Message, true))
	}
}

// offerAgainLocked offers the waiting prompts to a client that has connected. A client that has acknowledged a prompt
// may have lost it since, as a program that was started again.
//
// A page that still shows a prompt would show it twice. A relay's page has it, since the page acknowledges by itself.
// An unmodified jupyter server acknowledges before its page has it. The server closes its websocket when the page's
// connection is gone; if the websocket broke instead, the page had no reason to lose the prompt.
func (s *Supervisor) offerAgainLocked(c *clientConn) {
	mayLack := !c.relay && (c.framing != framing.JupyterServer || c.session.Closed())
	for _, p := range s.prompts.Waiting() {
		if mayLack && p.Acknowledged(c.session, c.attachment.Cursor) {
			c.send(p.Message)
		}
		s.offerLocked(p, c.session)
	}
}

// matchInputLocked returns the prompt that a client's input_reply answers, or nil. It reports false if the kernel must
// not get the reply, because it would take it as the answer to another prompt. The client then gets a remark.
func (s *Supervisor) matchInputLocked(c *clientConn, m *jupyter.Message) (*prompts.Prompt, bool) {
	p, refusal := s.prompts.Match(jupyter.StringField(m.Parent, "msg_id"), c.session)
	if refusal == nil {
		return p, p != nil || s.answersUnknownLocked(c)
	}
	if refusal.Cell != nil {
		c.send(s.notices.Line(refusal.Cell, "%s", refusal.Reason))
	}
	return nil, false
}

// answersUnknownLocked reports whether a client may answer a prompt that the supervisor does not know. The owner may,
// unless another user's cell runs: a widget's callback may ask while no cell runs. Another user may only if the user's
// own cell runs and its prompt may be lost: an earlier supervisor saw it, or the connection to the kernel broke. The
// kernel may ask another user before it reads the answer.
func (s *Supervisor) answersUnknownLocked(c *clientConn) bool {
	r := s.runningCellLocked()
	if r != nil && r.User != c.user {
		return false
	}
	return s.OwnedBy(c.user) || r != nil && r.Doubtful
}
