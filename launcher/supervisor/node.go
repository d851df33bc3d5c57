package supervisor

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
