package supervisor

import (
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/prompts"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

// ask offers a prompt of the kernel to all sessions that it is for.
func (cs *clients) ask(r *requests.Request, m jupyter.Message) {
	p := cs.prompts.Add(r, m.Clone()) // it outlives the messages around it
	for sess := range cs.sessions.All() {
		cs.offer(p, sess)
	}
}

// offer adds a prompt to the log for a session that has not got it, if the prompt is for the session.
func (cs *clients) offer(p *prompts.Prompt, sess *session.Session) {
	if p.Offer(sess) {
		p.Offered(sess, cs.log.Append(sess.Number, p.Message, true))
	}
}

// offerAgain offers the waiting prompts to a client that has connected. A client that has acknowledged a prompt
// may have lost it since, as a program that was started again.
//
// A page that still shows a prompt would show it twice. A relay's page has it, since the page acknowledges by itself.
// An unmodified jupyter server acknowledges before its page has it. The server closes its websocket when the page's
// connection is gone; if the websocket broke instead, the page had no reason to lose the prompt.
func (cs *clients) offerAgain(c *clientConn) {
	mayLack := !c.relay && (c.framing != framing.JupyterServer || c.session.Closed())
	for _, p := range cs.prompts.Waiting() {
		if mayLack && p.Acknowledged(c.session, c.attachment.Cursor) {
			c.send(p.Message)
		}
		cs.offer(p, c.session)
	}
}

// matchInput returns the prompt that a client's input_reply answers, or nil. It reports false if the kernel must
// not get the reply, because it would take it as the answer to another prompt. The client then gets a remark.
func (cs *clients) matchInput(c *clientConn, m *jupyter.Message) (*prompts.Prompt, bool) {
	p, refusal := cs.prompts.Match(jupyter.StringField(m.Parent, "msg_id"), c.session)
	if refusal == nil {
		return p, p != nil || cs.answersUnknown(c)
	}
	if refusal.Cell != nil {
		c.send(cs.notices.Line(refusal.Cell, "%s", refusal.Reason))
	}
	return nil, false
}

// answersUnknown reports whether a client may answer a prompt that the supervisor does not know. The owner may,
// unless another user's cell runs: a widget's callback may ask while no cell runs. Another user may only if the user's
// own cell runs and its prompt may be lost: an earlier supervisor saw it, or the connection to the kernel broke. The
// kernel may ask another user before it reads the answer.
func (cs *clients) answersUnknown(c *clientConn) bool {
	r := cs.runningCell()
	if r != nil && r.User != c.user {
		return false
	}
	return cs.owns(c.user) || r != nil && r.Doubtful
}
