package launchertest

import (
	"encoding/json"
	"net"
	"sync"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// requestQueue is how many requests wait in the kernel before its sockets stop reading. It is libzmq's default.
const requestQueue = 1000

// request is one message from a client.
type request struct {
	identity string
	header   jupyter.Header
	msg      jupyter.Message
}

// input is the answer to an input_request.
type input struct{ value string }

// signatures remembers the signatures of the last messages. Like ipykernel, the fake kernel drops a message whose
// signature it has seen before.
type signatures struct {
	mu   sync.Mutex
	set  map[string]struct{}
	ring []string
	next int
}

// repeated reports whether the signature was seen before, and remembers it.
func (s *signatures) repeated(signature string) bool {
	const kept = 65536
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set == nil {
		s.set = map[string]struct{}{}
	}
	if _, ok := s.set[signature]; ok {
		return true
	}
	s.set[signature] = struct{}{}
	if len(s.ring) < kept {
		s.ring = append(s.ring, signature)
		return false
	}
	delete(s.set, s.ring[s.next])
	s.ring[s.next] = signature
	s.next = (s.next + 1) % kept
	return false
}

func tcpPort(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// receiver returns the handler of a channel's messages: it checks and queues them. As in real kernels, a message
// without a valid signature is dropped silently.
func (k *FakeKernel) receiver(c jupyter.Channel) func(string, [][]byte) {
	return func(identity string, frames [][]byte) {
		m, err := jupyter.ParseFrames(c, frames, k.signer)
		if err != nil || k.opts.NeverReady {
			return
		}
		h, err := jupyter.ParseHeader(m.Header)
		if err != nil {
			return
		}
		if k.conn.Key != "" && k.seen.repeated(signatureOf(frames)) {
			return
		}
		r := request{identity: identity, header: h, msg: m}
		var to chan<- request
		switch c {
		case jupyter.Control:
			to = k.urgent
		case jupyter.Stdin:
			k.answer(r)
			return
		default:
			if to = k.subshell(h.Subshell); to == nil {
				return
			}
		}
		select {
		case to <- r:
		case <-k.ctx.Done():
		}
	}
}

func signatureOf(frames [][]byte) string {
	for i, f := range frames {
		if string(f) == jupyter.Delimiter {
			return string(frames[i+1])
		}
	}
	return ""
}

// answer passes an input_reply to the waiting cell, or drops it if too many answers wait.
func (k *FakeKernel) answer(r request) {
	var c struct {
		Value string `json:"value"`
	}
	if json.Unmarshal(r.msg.Content, &c) != nil {
		return
	}
	select {
	case k.answers <- input{c.Value}:
	default:
	}
}

// subshell returns the queue of a subshell: the main shell's for "", nil if the subshell does not exist.
func (k *FakeKernel) subshell(id string) chan request {
	if id == "" {
		return k.queue
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.subshells[id]
}

// work answers the requests of one queue in order, until the kernel ends or the queue is closed.
func (k *FakeKernel) work(queue chan request, c jupyter.Channel) {
	for {
		select {
		case <-k.ctx.Done():
			return
		case r, ok := <-queue:
			if !ok {
				return
			}
			k.handle(r, c)
		}
	}
}

// handle answers one request between busy and idle.
func (k *FakeKernel) handle(r request, c jupyter.Channel) {
	x := &execution{k: k, r: r, channel: c}
	k.publish("status", r.msg.Header, content{"execution_state": "busy"}, nil)
	answer, ok := k.handlers[r.header.MsgType]
	if ok {
		answer(x)
	}
	if x.loseIdle {
		k.counter.Add(1)
		return
	}
	k.publish("status", r.msg.Header, content{"execution_state": "idle"}, nil)
	if x.after != nil {
		x.after()
	}
	_ = x.run(k.ctx, x.then) // the cell is over: no client gets an error
}

// reply answers the request on the channel it came on.
func (x *execution) reply(msgType string, c content) {
	if _, ok := c["status"]; !ok {
		c["status"] = "ok"
	}
	m := x.k.message(x.channel, msgType, x.r.msg.Header, encode(c))
	to := x.k.shell
	if x.channel == jupyter.Control {
		to = x.k.control
	}
	to.sendTo(x.r.identity, m.Frames(x.k.signer))
}

// handlers are the requests that the kernel knows. As in Jupyter's kernels, most are answered on shell and on control.
var handlers = map[string]func(*execution){
	"kernel_info_request": (*execution).kernelInfo,
	"execute_request":     (*execution).execute,
	"interrupt_request":   (*execution).interruptRequest,
	"shutdown_request":    (*execution).shutdown,
	"complete_request":    (*execution).complete,
	"inspect_request": func(x *execution) {
		x.reply("inspect_reply", content{"found": false, "data": content{}, "metadata": content{}})
	},
	"history_request":         func(x *execution) { x.reply("history_reply", content{"history": []any{}}) },
	"is_complete_request":     func(x *execution) { x.reply("is_complete_reply", content{"status": "complete"}) },
	"comm_info_request":       (*execution).commInfo,
	"comm_open":               (*execution).comm,
	"comm_msg":                (*execution).comm,
	"comm_close":              (*execution).comm,
	"debug_request":           (*execution).debug,
	"create_subshell_request": (*execution).createSubshell,
	"delete_subshell_request": (*execution).deleteSubshell,
	"list_subshell_request":   (*execution).listSubshells,
}

func (x *execution) kernelInfo() {
	features := []string{}
	if x.k.opts.Subshells {
		features = append(features, "kernel subshells")
	}
	language := "fake"
	if x.k.opts.Python {
		language = "python"
	}
	x.reply("kernel_info_reply", content{
		"protocol_version": x.k.opts.Protocol, "implementation": "fake", "implementation_version": "1",
		"language_info": content{"name": language, "version": "1", "mimetype": "text/plain", "file_extension": ".txt"},
		"banner":        "a kernel for tests", "help_links": []any{}, "debugger": false, "supported_features": features,
	})
}

func (x *execution) interruptRequest() {
	x.k.Interrupt()
	x.reply("interrupt_reply", content{})
}

func (x *execution) shutdown() {
	if x.k.opts.IgnoreShutdown {
		return
	}
	var c struct {
		Restart bool `json:"restart"`
	}
	if json.Unmarshal(x.r.msg.Content, &c) != nil {
		return
	}
	x.reply("shutdown_reply", content{"restart": c.Restart})
	x.k.publish("shutdown_reply", x.r.msg.Header, content{"status": "ok", "restart": c.Restart}, nil)
	x.after = func() { x.k.leave(0) }
}

func (x *execution) complete() {
	var c struct {
		CursorPos int `json:"cursor_pos"`
	}
	if json.Unmarshal(x.r.msg.Content, &c) != nil {
		return
	}
	x.reply("complete_reply", content{"matches": []string{"print", "flood"}, "cursor_start": c.CursorPos,
		"cursor_end": c.CursorPos, "metadata": content{}})
}

func (x *execution) commInfo() {
	comms := content{}
	x.k.mu.Lock()
	for id, target := range x.k.comms {
		comms[id] = content{"target_name": target}
	}
	x.k.mu.Unlock()
	x.reply("comm_info_reply", content{"comms": comms})
}

// comm updates the table of comms. It sends a comm_msg back unchanged, with its buffers.
func (x *execution) comm() {
	var c struct {
		ID     string `json:"comm_id"`
		Target string `json:"target_name"`
	}
	if json.Unmarshal(x.r.msg.Content, &c) != nil {
		return
	}
	x.k.mu.Lock()
	switch x.r.header.MsgType {
	case "comm_open":
		x.k.comms[c.ID] = c.Target
	case "comm_close":
		delete(x.k.comms, c.ID)
	}
	x.k.mu.Unlock()
	if x.r.header.MsgType == "comm_msg" {
		x.k.publishRaw("comm_msg", x.r.msg.Header, x.r.msg.Content, x.r.msg.Buffers)
	}
}

// debug answers a Debug Adapter Protocol request with its own arguments.
func (x *execution) debug() {
	var c struct {
		Seq       int             `json:"seq"`
		Command   string          `json:"command"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if json.Unmarshal(x.r.msg.Content, &c) != nil {
		return
	}
	x.k.publish("debug_event", x.r.msg.Header,
		content{"type": "event", "event": "output", "body": content{"output": c.Command}}, nil)
	x.reply("debug_reply",
		content{"type": "response", "request_seq": c.Seq, "success": true, "command": c.Command, "body": c.Arguments})
}

func (x *execution) createSubshell() {
	if !x.k.opts.Subshells {
		return
	}
	id, queue := jupyter.NewID(), make(chan request, requestQueue)
	x.k.mu.Lock()
	x.k.subshells[id] = queue
	x.k.mu.Unlock()
	x.k.spawn(func() { x.k.work(queue, jupyter.Shell) })
	x.reply("create_subshell_reply", content{"subshell_id": id})
}

func (x *execution) deleteSubshell() {
	var c struct {
		ID string `json:"subshell_id"`
	}
	if json.Unmarshal(x.r.msg.Content, &c) != nil {
		return
	}
	x.k.mu.Lock()
	_, ok := x.k.subshells[c.ID]
	delete(x.k.subshells, c.ID) // its goroutine goes on until the kernel ends: it may still get a request
	x.k.mu.Unlock()
	if !ok {
		x.reply("delete_subshell_reply",
			content{"status": "error", "ename": "SubshellNotFound", "evalue": c.ID, "traceback": []string{}})
		return
	}
	x.reply("delete_subshell_reply", content{})
}

func (x *execution) listSubshells() {
	ids := []string{}
	x.k.mu.Lock()
	for id := range x.k.subshells {
		ids = append(ids, id)
	}
	x.k.mu.Unlock()
	x.reply("list_subshell_reply", content{"subshell_id": ids})
}
