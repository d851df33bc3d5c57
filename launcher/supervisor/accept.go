package supervisor

import (
	"fmt"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// accept takes a client's message towards the kernel.
func (s *Supervisor) accept(c *conn, m wire.Message, h wire.Header) *closeFrame {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takePart(c)
	if c.repeated(h.MsgID) {
		return nil
	}
	if end := s.admit(c, m, h); end != nil {
		return end
	}
	c.remember(h.MsgID)
	return nil
}

// admit decides what becomes of a message. s.mu is held.
func (s *Supervisor) admit(c *conn, m wire.Message, h wire.Header) *closeFrame {
	kernelInfo := h.MsgType == "kernel_info_request"
	switch {
	case c.readOnly && (!kernelInfo || m.Channel == wire.Stdin):
		s.refuse(c.session, &m, h, "Forbidden", "you may only look at this kernel")
		return nil
	case s.clock.state == stateDead:
		s.refuse(c.session, &m, h, "KernelDied", s.reason)
		return nil
	case kernelInfo && m.Channel == wire.Shell && h.Subshell == "" && s.clock.state == stateBusy && s.kernelInfo != nil:
		s.answerKernelInfo(c.session, &m)
		return nil
	}
	if c.readOnly {
		m = plainKernelInfo(m.Channel, h)
	}
	if m.Channel == wire.Stdin && s.clock.counts(h.MsgType) {
		s.used()
	}
	r := s.register(c.session, &m, h)
	if err := s.gates[m.Channel].push(m, r); err != nil {
		if r != nil {
			s.finish(r)
		}
		return &closeFrame{websocket.CloseTryAgainLater, err.Error()}
	}
	s.showWaiting()
	return nil
}

// plainKernelInfo makes a reader's kernel_info_request anew, from what was understood of it: a kernel that reads JSON
// in another way (repeated or escaped names) must not find a different request in it.
func plainKernelInfo(c wire.Channel, h wire.Header) wire.Message {
	m := wire.New(c, "kernel_info_request", "", nil, struct{}{})
	m.Header = fmt.Appendf(nil, `{"msg_id":"%s","session":"%s","msg_type":"kernel_info_request","username":"","date":"%s","version":"5.3"}`,
		h.MsgID, h.Session, time.Now().UTC().Format(TimeFormat))
	return m
}

// refuse answers a request that the kernel does not get.
func (s *Supervisor) refuse(sess *session, m *wire.Message, h wire.Header, ename, reason string) {
	if h.MsgID == "" || m.Channel == wire.Stdin {
		return
	}
	if h.MsgType == "execute_request" {
		s.log.append(sess, s.notice(m.Header, "%s", reason), true)
	}
	if hasReply(h.MsgType) {
		s.log.append(sess, s.errorReply(m.Channel, h.MsgType, m.Header, "error", ename, reason), true)
	}
	s.log.append(sess, s.status(stateIdle, m.Header), true)
}

// answerKernelInfo answers for a busy kernel, which would only do so behind its running cell. Every front end asks this
// first and shows nothing before it knows. The present status follows, since the idle of this answer is not it.
func (s *Supervisor) answerKernelInfo(sess *session, m *wire.Message) {
	s.log.append(sess, s.status(stateBusy, m.Header), true)
	reply := wire.New(wire.Shell, "kernel_info_reply", s.voiceSession(), m.Header, struct{}{})
	reply.Content = s.kernelInfo
	s.log.append(sess, reply, true)
	s.log.append(sess, s.status(stateIdle, m.Header), true)
	s.log.append(sess, s.statusMessage(), true)
}
