package supervisor

import (
	"fmt"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// relayLimit is the largest message an unmodified jupyter server takes from its gateway, in bytes of payload (Tornado's
// default; it closes with 1009 and the message is lost). Larger ones are replaced by a notice.
const relayLimit = 10 << 20

type streamContent struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

type statusContent struct {
	ExecutionState string `json:"execution_state"`
}

// notice is a line on stderr under the cell whose header is given.
func (s *Supervisor) notice(cell []byte, format string, args ...any) wire.Message {
	text := fmt.Sprintf("[ekg] "+format+"\n", args...)
	return wire.New(wire.IOPub, "stream", s.voiceSession(), cell, streamContent{"stderr", text})
}

func (s *Supervisor) status(state string, parent []byte) wire.Message {
	return wire.New(wire.IOPub, "status", s.voiceSession(), parent, statusContent{state})
}

// statusMessage is the present state with the running cell as its parent.
func (s *Supervisor) statusMessage() wire.Message {
	var parent []byte
	if r := s.running(); r != nil {
		parent = r.header
	}
	return s.status(s.clock.state, parent)
}

// voiceSession is the session id of messages made in the kernel's place: the kernel's own, since JupyterLab drops what
// is queued when the session of the messages it receives changes.
func (s *Supervisor) voiceSession() string {
	if s.kernelSession != "" {
		return s.kernelSession
	}
	return s.ownSession
}

// tooLargeForRelay stands for a message that a jupyter server would refuse.
func tooLargeForRelay(m *wire.Message) wire.Message {
	return leftOut(m, fmt.Sprintf("the jupyter server between this page and the gateway takes at most %d; see docs/jupyter-ekg.md", relayLimit))
}

// abortOutstanding answers, in the kernel's place, everything that is still open when its process has ended: clients
// that wait for a reply and an idle get both. s.mu is held.
func (s *Supervisor) abortOutstanding(status, ename, reason string) {
	for _, r := range s.order {
		if !r.finished() {
			s.abort(r, status, ename, reason)
		}
	}
	s.order = nil
}

// doubtOutstanding marks what the kernel had been sent when the connection broke. Most of it will be answered on a new
// connection. What the kernel said while there was none is lost: see settleDoubts.
func (s *Supervisor) doubtOutstanding() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.order {
		r.doubt = r.doubt || r.sent.Load()
	}
	if r := s.running(); r != nil && r.session != nil {
		s.log.append(r.session, s.notice(r.header, "The connection to the kernel broke for a moment. Output of that moment is lost."), true)
	}
}

// settleDoubts is called when the kernel has answered the first question on a new connection. It answers the main
// shell's requests, and control's, in order: what it was sent before and has not answered by now was lost on the way,
// or its answer was. s.mu is held.
func (s *Supervisor) settleDoubts(c wire.Channel) {
	for _, r := range s.order {
		if !r.doubt || r.finished() || r.channel != c || !r.main {
			continue
		}
		if !r.replied {
			s.lose(r, "the connection to the kernel broke; it may have run, but its answer is lost")
		} else if r.quiet.IsZero() {
			s.abort(r, "", "", "") // of those that have no reply only the idle can be missing
		}
	}
}

// giveUpOutstanding ends what the kernel had been sent under an identity that it no longer answers.
func (s *Supervisor) giveUpOutstanding() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.order {
		if r.doubt && !r.finished() {
			s.lose(r, "the connection to the kernel broke and had to be made anew; answers and output in flight are lost")
		}
	}
}

// lose ends a request whose answer will not come, and says so where its output is shown. s.mu is held.
func (s *Supervisor) lose(r *request, reason string) {
	if r.session != nil && r.msgType == "execute_request" {
		s.log.append(r.session, s.notice(r.header, "%s", reason), true)
	}
	s.abort(r, "error", "ConnectionLost", reason)
}

// abort answers one request in the kernel's place. s.mu is held.
func (s *Supervisor) abort(r *request, status, ename, reason string) {
	if r.session != nil && !r.replied {
		s.log.append(r.session, s.errorReply(r.channel, r.msgType, r.header, status, ename, reason), true)
	}
	if !r.idled {
		s.log.append(nil, s.status(stateIdle, r.header), true)
	}
	s.clock.done(r.id)
	s.lookAgain()
	s.finish(r)
}

// errorReply is an answer that the kernel does not give.
func (s *Supervisor) errorReply(c wire.Channel, requestType string, header []byte, status, ename, reason string) wire.Message {
	return wire.New(c, replyType(requestType), s.voiceSession(), header, map[string]any{
		"status": status, "ename": ename, "evalue": reason, "traceback": []string{}})
}

func replyType(requestType string) string {
	if n := len(requestType) - len("_request"); n > 0 && requestType[n:] == "_request" {
		return requestType[:n] + "_reply"
	}
	return requestType
}
