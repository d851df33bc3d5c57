package supervisor

import (
	"fmt"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/prompts"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
)

// maxAsked bounds the kernel_info_requests of one reader that wait for the kernel.
const maxAsked = 16

// accept handles a client's message to the kernel.
func (s *Supervisor) accept(c *clientConn, m jupyter.Message, h jupyter.Header) *framing.CloseError {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients.sessions.Activate(c.attachment)
	c.attachment.NoteInput()
	s.memory.Passes(m.Size())
	if c.readOnly {
		s.answerReaderLocked(c, asked{m, h})
		return nil
	}
	if c.relay {
		switch accepted, rejected := c.session.HasAccepted(h.MsgID); {
		case rejected: // the answer may be lost
			s.clients.reject(c, &m, h, "Rejected", "this was not run, since the kernel could not take it: run it again")
			return nil
		case accepted:
			return nil
		}
	}
	name, reason := s.rejectionLocked(c, &m, h)
	if name != "" {
		s.clients.reject(c, &m, h, name, reason)
	} else if end := s.admitLocked(c, m, h); end != nil {
		return end
	}
	if c.relay {
		c.session.Accept(h.MsgID, name != "")
	}
	return nil
}

// rejectionLocked returns the name and the text of the error with which a message is rejected, or "". The client has
// the right to use the kernel.
//
// The kernel's answers carry only the msg_id of the request. So a user who repeats the id of another user's request
// would get its reply, and could end it.
func (s *Supervisor) rejectionLocked(c *clientConn, m *jupyter.Message, h jupyter.Header) (name, reason string) {
	switch {
	case s.use.State() == api.Dead:
		return "KernelDied", s.kernel.reason
	case m.Channel != jupyter.Stdin && s.clients.requests.OfOther(h.MsgID, c.session.User):
		return "DuplicateID", "another user's request with this msg_id is not finished"
	case h.MsgType == "shutdown_request" && c.guest:
		return "Forbidden", "only the kernel's owner may shut it down; you may restart it"
	case h.MsgType == "debug_request" && s.parker.Lacks(m, h.MsgType): // a call of CUDA would block control
		s.parker.ExpectCell()
		return "Parked", "the kernel has given its GPU back. If the GPU is free, it takes it now: look again in a moment, " +
			"or run a cell"
	}
	return "", ""
}

// admitLocked answers a message, or passes it to the channel's gate.
func (s *Supervisor) admitLocked(c *clientConn, m jupyter.Message, h jupyter.Header) *framing.CloseError {
	if h.MsgType == "kernel_info_request" && m.Channel == jupyter.Shell && h.Subshell == "" &&
		(s.use.State() == api.Busy || !s.parker.Owns()) && s.kernel.info != nil {
		for _, answer := range s.kernelInfoLocked(&m) {
			s.log.Append(c.session.Number, answer, true)
		}
		return nil
	}
	var prompt *prompts.Prompt
	if m.Channel == jupyter.Stdin && h.MsgType == "input_reply" {
		p, ok := s.clients.matchInput(c, &m)
		if !ok {
			return nil
		}
		prompt = p
		s.use.Used()
	}
	s.kernel.death.notice(&m, h)
	s.parker.Hold(&m, h.MsgType)
	r := s.clients.register(c.session, &m, h)
	var behind *requests.Request
	switch {
	case m.Channel == jupyter.Shell:
		behind = s.clients.failedBefore(c, h)
	case h.MsgType == "interrupt_request":
		s.clients.passFailed(nil)
	}
	if err := s.kernel.gates[m.Channel].PushBehind(m, r, behind); err != nil {
		if r != nil {
			s.clients.finish(r)
		}
		return &framing.CloseError{Code: websocket.CloseTryAgainLater, Reason: err.Error()}
	}
	if prompt != nil {
		s.clients.prompts.Answered(prompt, c.session)
	}
	s.showWaitingLocked()
	return nil
}

// asked is a kernel_info_request of a reader that is not answered yet.
type asked struct {
	m jupyter.Message
	h jupyter.Header
}

// answerReaderLocked answers a client that has the right to read. No message of such a client reaches the kernel, the
// log, the clock or the requests: with the msg_id of the owner's running cell it could end that cell. A
// kernel_info_request waits until the kernel is up.
func (s *Supervisor) answerReaderLocked(c *clientConn, q asked) {
	switch {
	case q.h.MsgType != "kernel_info_request" || q.m.Channel == jupyter.Stdin:
		s.clients.reject(c, &q.m, q.h, "Forbidden", "you may only look at this kernel")
	case s.use.State() == api.Dead:
		s.clients.reject(c, &q.m, q.h, "KernelDied", s.kernel.reason)
	case s.kernel.info != nil && s.upLocked():
		m := plainKernelInfo(q.m.Channel, q.h)
		c.send(s.kernelInfoLocked(&m)...)
	case len(c.asked) >= maxAsked:
		s.clients.reject(c, &q.m, q.h, "TooMany", "too many requests of this page wait for the kernel")
	default:
		q.m = plainKernelInfo(q.m.Channel, q.h) // the message keeps its whole frame in memory
		c.asked = append(c.asked, q)
	}
}

// plainKernelInfo rebuilds the kernel_info_request of a reader. No reply repeats more of it than front ends need.
func plainKernelInfo(c jupyter.Channel, h jupyter.Header) jupyter.Message {
	return jupyter.Message{Channel: c, Header: fmt.Appendf(nil,
		`{"msg_id":"%s","session":"%s","msg_type":"kernel_info_request","username":"","date":"%s","version":"5.3"}`,
		h.MsgID, h.Session, time.Now().UTC().Format(api.TimeFormat))}
}

// answerReadersLocked answers the kernel_info_requests of readers that have waited for the kernel to be up, or to be
// dead.
func (s *Supervisor) answerReadersLocked() {
	for c := range s.clients.connected {
		waiting := c.asked
		c.asked = nil
		for _, q := range waiting {
			s.answerReaderLocked(c, q)
		}
	}
}

func (s *Supervisor) upLocked() bool {
	return s.use.State() == api.Idle || s.use.State() == api.Busy
}

// kernelInfoLocked returns the supervisor's own answer to a kernel_info_request. A busy kernel would answer only behind
// its running cell. Every front end asks this first and shows nothing until it has the answer. The present status
// follows, because the idle of this answer is not the kernel's.
func (s *Supervisor) kernelInfoLocked(m *jupyter.Message) []jupyter.Message {
	reply := jupyter.New(m.Channel, "kernel_info_reply", s.notices.Sender(), m.Header, struct{}{})
	reply.Content = s.kernel.info
	return []jupyter.Message{s.notices.State(api.Busy, m.Header), reply, s.notices.State(api.Idle, m.Header),
		s.clients.presentStatus()}
}
