package relay

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/jupyter/zmtp"
)

// fromProgram handles a message of a program. While the gateway takes no more, it waits, and nothing more is read from
// that program.
func (r *relay) fromProgram(channel jupyter.Channel, p *zmtp.Peer, frames [][]byte) {
	m, err := jupyter.ParseFrames(channel, frames, r.signer)
	var h jupyter.Header
	if err == nil {
		h, err = jupyter.ParseHeader(m.Header)
	}
	if err == nil && (len(m.Header) > framing.MaxHeader || !json.Valid(m.Header)) {
		err = errors.New("its header is not JSON, or too long") // the supervisor would end the connection
	}
	switch {
	case err != nil:
		r.warned.Do(func() { r.o.Say(fmt.Sprintf("a message on the %s socket is ignored: %v", channel, err)) })
		return
	case channel == jupyter.Stdin:
	case h.MsgType == "shutdown_request":
		r.shutdown(p, &m)
		return
	case h.MsgType == "interrupt_request" && channel == jupyter.Control:
		// The gateway knows how its kernel is interrupted: by a signal, or by this message.
		content := map[string]any{"status": "ok"}
		if err := r.interrupt(); err != nil {
			content = map[string]any{"status": "error", "ename": "NotInterrupted", "evalue": err.Error(),
				"traceback": []string{}}
			r.o.Say("the kernel was not interrupted: " + err.Error())
		}
		r.answer(p, jupyter.New(channel, "interrupt_reply", r.session, m.Header, content))
		return
	default:
		if !r.asked.add(channel, h, m.Header, p) {
			r.refuse(p, &m, h, "TooMany", "too many requests wait for the kernel")
			return
		}
	}
	if err := r.wire.Send(r.life, m); errors.Is(err, notebook.ErrGone) {
		r.end(err)
	}
}

// answer sends a message to the program that has asked for it.
func (r *relay) answer(p *zmtp.Peer, m jupyter.Message) {
	frames := m.Frames(r.signer)
	if !p.Send(frames) { // the program may have connected again
		r.sockets[m.Channel].Send(p.Identity(), frames)
	}
}

// refuse answers a request that the kernel does not get, and ends its cell.
func (r *relay) refuse(p *zmtp.Peer, m *jupyter.Message, h jupyter.Header, name, reason string) {
	if notice.Fails(h.MsgType) {
		r.answer(p, notice.Reply(m.Channel, h.MsgType, r.session, m.Header,
			notice.Failure{Status: "error", Name: name, Reason: reason}))
	}
	idle := notice.State(r.session, m.Header, "idle")
	r.publish(&idle)
}

// refused answers a request that is too large for the supervisor.
func (r *relay) refused(m jupyter.Message) {
	text := fmt.Sprintf("the gateway takes no message of %d bytes", m.Size())
	r.o.Say(text)
	h, _ := jupyter.ParseHeader(m.Header) // it was checked
	if p := r.asked.take(m.Channel, h.MsgID); p != nil {
		r.refuse(p, &m, h, "TooLarge", text)
	}
}

// shutdown answers a shutdown_request, and ends the relay.
func (r *relay) shutdown(p *zmtp.Peer, m *jupyter.Message) {
	var asks struct {
		Restart bool `json:"restart"`
	}
	if err := json.Unmarshal(m.Content, &asks); err != nil {
		r.o.Say("a shutdown_request is ignored: " + err.Error())
		return
	}
	content := map[string]any{"status": "ok", "restart": asks.Restart}
	r.answer(p, jupyter.New(m.Channel, "shutdown_reply", r.session, m.Header, content))
	all := jupyter.New(jupyter.IOPub, "shutdown_reply", r.session, m.Header, content)
	r.publish(&all)
	if asks.Restart {
		r.end(errRestart)
		return
	}
	r.end(errShutdown)
}

// receive passes the kernel's messages on, until the relay ends.
func (r *relay) receive() error {
	for {
		m, _, err := r.wire.Receive(r.life)
		switch {
		case r.life.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		if err := r.fromKernel(&m); err != nil {
			return err
		}
	}
}

// fromKernel passes a message of the kernel on. The error says that the kernel is dead.
func (r *relay) fromKernel(m *jupyter.Message) error {
	parent, err := jupyter.ParseHeader(m.Parent)
	if err != nil {
		return nil // no request has this parent. The supervisor checks headers, so this does not happen
	}
	switch m.Channel {
	case jupyter.IOPub:
		r.publish(m)
		return r.death(m)
	case jupyter.Stdin:
		if p := r.asked.find(parent.MsgID); p != nil {
			r.sockets[jupyter.Stdin].Send(p.Identity(), m.Frames(r.signer))
		}
	default:
		if p := r.asked.take(m.Channel, parent.MsgID); p != nil {
			r.answer(p, *m)
		}
	}
	return nil
}

// death returns why the kernel is dead, if a message says that it is.
func (r *relay) death(m *jupyter.Message) error {
	if jupyter.StringField(m.Header, "msg_type") != "status" ||
		jupyter.StringField(m.Content, "execution_state") != "dead" {
		return nil
	}
	_, reason, err := r.o.Gateway.State(r.life, r.kernel)
	if err != nil {
		reason = err.Error()
	}
	return fmt.Errorf("the kernel %s is dead: %s", r.kernel, reason)
}

// publish sends a message to all programs that listen to iopub.
func (r *relay) publish(m *jupyter.Message) {
	var left func() [][]byte
	if isOutput(jupyter.StringField(m.Header, "msg_type")) {
		left = func() [][]byte {
			line := notice.Line(r.session, m.Parent,
				"Output is left out here: this program is too far behind. `ekg log` has what the gateway keeps.")
			return append([][]byte{topic(&line)}, line.Frames(r.signer)...)
		}
	}
	r.sockets[jupyter.IOPub].Publish(append([][]byte{topic(m)}, m.Frames(r.signer)...), left)
}

// welcome tells a program that it is subscribed: what comes from now on reaches it.
func (r *relay) welcome(p *zmtp.Peer, prefix []byte) {
	m := jupyter.New(jupyter.IOPub, "iopub_welcome", r.session, nil, map[string]string{"subscription": string(prefix)})
	p.Send(append([][]byte{prefix}, m.Frames(r.signer)...))
}
