package supervisor

import (
	"fmt"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

// accept handles a client's message to the kernel.
func (s *Supervisor) accept(c *clientConn, m jupyter.Message, h jupyter.Header) *framing.CloseError {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.activateLocked(c)
	if c.relay && c.session.HasAccepted(h.MsgID) {
		return nil
	}
	if end := s.admitLocked(c, m, h); end != nil {
		return end
	}
	if c.relay && !c.readOnly {
		c.session.Accept(h.MsgID)
	}
	return nil
}

// admitLocked answers a message, rejects it, or passes it to the channel's gate.
func (s *Supervisor) admitLocked(c *clientConn, m jupyter.Message, h jupyter.Header) *framing.CloseError {
	kernelInfo := h.MsgType == "kernel_info_request"
	switch {
	case c.readOnly && (!kernelInfo || m.Channel == jupyter.Stdin):
		s.rejectLocked(c.session, &m, h, "Forbidden", "you may only look at this kernel")
		return nil
	case s.clock.State() == api.Dead:
		s.rejectLocked(c.session, &m, h, "KernelDied", s.reason)
		return nil
	case kernelInfo && m.Channel == jupyter.Shell && h.Subshell == "" && s.clock.State() == api.Busy &&
		s.kernelInfo != nil:
		s.answerKernelInfoLocked(c.session, &m)
		return nil
	}
	if c.readOnly {
		m = plainKernelInfo(m.Channel, h)
	}
	if m.Channel == jupyter.Stdin && s.cfg.Cull.Counts(h.MsgType) {
		s.usedLocked()
	}
	r := s.registerLocked(c.session, &m, h)
	if err := s.gates[m.Channel].push(m, r); err != nil {
		if r != nil {
			s.finishLocked(r)
		}
		return &framing.CloseError{Code: websocket.CloseTryAgainLater, Reason: err.Error()}
	}
	s.showWaitingLocked()
	return nil
}

// plainKernelInfo rebuilds the kernel_info_request of a client with the right to read. A kernel that reads JSON in
// another way (repeated or escaped names) must not find another request in it.
func plainKernelInfo(c jupyter.Channel, h jupyter.Header) jupyter.Message {
	m := jupyter.New(c, "kernel_info_request", "", nil, struct{}{})
	m.Header = fmt.Appendf(nil,
		`{"msg_id":"%s","session":"%s","msg_type":"kernel_info_request","username":"","date":"%s","version":"5.3"}`,
		h.MsgID, h.Session, time.Now().UTC().Format(api.TimeFormat))
	return m
}

// rejectLocked answers a request that does not reach the kernel.
func (s *Supervisor) rejectLocked(sess *session.Session, m *jupyter.Message, h jupyter.Header, ename, reason string) {
	if h.MsgID == "" || m.Channel == jupyter.Stdin {
		return
	}
	if h.MsgType == "execute_request" {
		s.log.Append(sess.Number, s.noticeLocked(m.Header, "%s", reason), true)
	}
	if hasReply(h.MsgType) && h.MsgType != "kernel_info_request" { // see notice.Fails
		f := notice.Failure{Status: "error", Name: ename, Reason: reason}
		s.log.Append(sess.Number, s.errorReplyLocked(m.Channel, h.MsgType, m.Header, f), true)
	}
	s.log.Append(sess.Number, s.statusLocked(api.Idle, m.Header), true)
}

// answerKernelInfoLocked answers for a busy kernel, which would answer only behind its running cell. Every front end
// asks this first and shows nothing until it has the answer. The present status follows, because the idle of this
// answer is not the kernel's.
func (s *Supervisor) answerKernelInfoLocked(sess *session.Session, m *jupyter.Message) {
	s.log.Append(sess.Number, s.statusLocked(api.Busy, m.Header), true)
	reply := jupyter.New(jupyter.Shell, "kernel_info_reply", s.senderSessionLocked(), m.Header, struct{}{})
	reply.Content = s.kernelInfo
	s.log.Append(sess.Number, reply, true)
	s.log.Append(sess.Number, s.statusLocked(api.Idle, m.Header), true)
	s.log.Append(sess.Number, s.presentStatusLocked(), true)
}
