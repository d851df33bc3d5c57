package supervisor

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/savedstate"
)

// prompt reads until the cell asks, and returns the input_request.
func (c *client) prompt(cell string) got {
	c.t.Helper()
	all := c.collect("input_request", func(g got) bool { return g.msgType == "input_request" && g.parent == cell })
	return all[len(all)-1]
}

// answer sends an input_reply. Its parent is ask, or missing if ask has no header.
func (c *client) answer(ask got, value string) {
	c.t.Helper()
	content := map[string]string{"value": value, "status": "ok"}
	m := jupyter.New(jupyter.Stdin, "input_reply", c.session, ask.Header, content)
	c.sendMessage(&m)
}

// seen reads all messages that the supervisor has for the client so far. The client has then answered the pings.
func (c *client) seen() []got {
	c.t.Helper()
	var all []got
	for range 2 {
		all = append(all, c.result(c.send(jupyter.Shell, "kernel_info_request", struct{}{}))...)
	}
	return all
}

func countPrompts(all []got) (n int) {
	for _, g := range all {
		if g.msgType == "input_request" {
			n++
		}
	}
	return n
}

// asks waits until the kernel is busy with the cell that has asked. The supervisor then answers kernel_info_requests
// instead of the kernel.
func (r *running) asks() {
	r.t.Helper()
	r.until("busy", func(st api.Status) bool { return st.State == api.Busy })
}

// promptAcknowledged waits until the session of a client has acknowledged the only prompt.
func (r *running) promptAcknowledged(c *client) {
	r.t.Helper()
	r.asks()
	c.seen()
	eventually(r.t, "the prompt is acknowledged", func() bool {
		r.s.mu.Lock()
		defer r.s.mu.Unlock()
		sess := r.s.clients.sessions.Find("\x00false\x00" + c.session)
		return len(r.s.clients.prompts.Waiting()) == 1 && r.s.clients.prompts.Waiting()[0].Acknowledged(sess, sess.Resume())
	})
}

// TestInput_Returns: a client that has acknowledged a prompt and connects again gets it again. Its answer arrives.
// A relay does not get it: its browser has acknowledged the prompt.
func TestInput_Returns(t *testing.T) {
	for name, o := range map[string]dialOption{
		"v1": {session: "s", v1: true}, "JSON": {session: "s"}, "relay": {session: "s", relay: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := startSupervisor(t, nil).ready()
			c := r.dial(o)
			cell := c.execute("input Name?")
			ask := c.prompt(cell)
			r.promptAcknowledged(c)
			_ = c.ws.Close()
			again := r.dial(o)
			if o.relay {
				if n := countPrompts(again.seen()); n != 0 {
					t.Errorf("a relay got %d prompts again", n)
				}
			} else if g := again.prompt(cell); string(g.Header) != string(ask.Header) || g.Channel != jupyter.Stdin {
				t.Errorf("got %s on %s, want %s", g.Header, g.Channel, ask.Header)
			}
			again.answer(ask, "this")
			if got := output(again.result(cell), cell); got != "this\n" {
				t.Errorf("the cell printed %q", got)
			}
			if n := countPrompts(again.seen()); n != 0 {
				t.Errorf("%d prompts came after the answer", n)
			}
		})
	}
}

// TestInput_JupyterServer: an unmodified jupyter server acknowledges a prompt before its page has it. It gets the
// prompt again if it has closed its websocket, as for a page that is gone, and not if the websocket broke.
func TestInput_JupyterServer(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	o := dialOption{session: "s", header: http.Header{"User-Agent": {"Tornado/6.5"}}}
	c := r.dial(o)
	cell := c.execute("input Name?")
	ask := c.prompt(cell)
	r.promptAcknowledged(c)
	for _, closed := range []bool{false, true} {
		if closed {
			code := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
			if err := c.ws.WriteControl(websocket.CloseMessage, code, time.Now().Add(testLimit)); err != nil {
				t.Fatal(err)
			}
			for err := error(nil); err == nil; _, err = c.recv() {
			}
		}
		_ = c.ws.Close()
		r.until("no connection", func(st api.Status) bool { return st.Connections == 0 })
		c = r.dial(o)
		if n := countPrompts(c.seen()); (n == 1) != closed {
			t.Errorf("closed %v: %d prompts came again", closed, n)
		}
	}
	c.answer(ask, "this")
	if got := output(c.result(cell), cell); got != "this\n" {
		t.Errorf("the cell printed %q", got)
	}
}

// TestInput_NewPage: a page that is opened while a cell runs gets the prompts that wait, and those that come. Its
// answer arrives. A second answer, from the first page, reaches no later prompt.
func TestInput_NewPage(t *testing.T) {
	r := startShared(t).ready()
	ann := r.dial(dialOption{session: "old", header: as("ann", "")})
	cell := ann.execute("input A\ninput B\ninput C")
	first := ann.prompt(cell)
	page := r.dial(dialOption{session: "new", v1: true, header: as("ann", "")})
	page.answer(page.prompt(cell), "one")
	second := page.prompt(cell)
	ann.answer(first, "late")
	all := ann.collect("remark", func(g got) bool { return strings.Contains(g.text(), "[ekg]") && g.parent == cell })
	if text := all[len(all)-1].text(); !strings.Contains(text, "answered in another page") {
		t.Errorf("the remark is %q", text)
	}
	ann.answer(got{}, "two") // it names no prompt, and one of its user waits
	third := page.prompt(cell)
	if string(third.Header) == string(second.Header) {
		t.Error("the third prompt is the second")
	}
	_ = ann.ws.Close()
	page.answer(third, "three")
	all = page.collect("idle", func(g got) bool {
		return g.parent == cell && jupyter.StringField(g.Content, "execution_state") == string(api.Idle)
	})
	if got := output(all, cell); !strings.HasSuffix(got, "three\n") {
		t.Errorf("the cell printed %q", got)
	}
	page.answer(third, "four")
	page.collect("remark", func(g got) bool { return strings.Contains(g.text(), "it was answered before") })
	back := r.dial(dialOption{session: "old", header: as("ann", "")})
	if got := output(back.result(cell), cell); !strings.HasSuffix("one\ntwo\nthree\n", got) || got == "" {
		t.Errorf("the cell printed %q", got)
	}
}

// TestInput_LatePrompt: the page is reloaded before the cell asks.
func TestInput_LatePrompt(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	ann := r.dial(dialOption{session: "old"})
	cell := ann.execute("sleep 500ms\ninput A")
	ann.running(cell)
	_ = ann.ws.Close()
	page := r.dial(dialOption{session: "new"})
	other := r.dial(dialOption{}) // without a session id
	ask := page.prompt(cell)
	other.prompt(cell)
	other.answer(got{}, "this")
	other.seen()
	page.answer(got{}, "late") // nothing waits, and another page has answered
	page.collect("remark", func(g got) bool { return strings.Contains(g.text(), "answered in another page") })
	page.answer(ask, "late")
	page.collect("remark", func(g got) bool { return strings.Contains(g.text(), "answered in another page") })
	back := r.dial(dialOption{session: "old"})
	if got := output(back.result(cell), cell); got != "this\n" {
		t.Errorf("the cell printed %q", got)
	}
}

// TestInput_OthersGetNone: no reader, no other user, and no page that was there before the cell gets a prompt. Another
// user's answer does not reach the kernel.
func TestInput_OthersGetNone(t *testing.T) {
	r := startShared(t).ready()
	ann := r.dial(dialOption{session: "a", header: as("ann", "")})
	others := map[string]http.Header{
		"anns-reader": as("ann", api.RightRead), "bob": as("bob", api.RightUse), "bobs-reader": as("bob", api.RightRead),
	}
	clients := map[string]*client{"ann's older page": r.dial(dialOption{session: "older", header: as("ann", "")})}
	for name, h := range others {
		clients[name+" before"] = r.dial(dialOption{session: "b" + name, header: h})
	}
	for _, c := range clients {
		c.seen()
	}
	cell := ann.execute("input Name?")
	ask := ann.prompt(cell)
	r.asks()
	for name, h := range others {
		clients[name+" after"] = r.dial(dialOption{session: "c" + name, header: h})
		clients[name+" without a session"] = r.dial(dialOption{header: h})
	}
	for name, c := range clients {
		if n := countPrompts(c.seen()); n != 0 {
			t.Errorf("%s got %d prompts", name, n)
		}
	}
	for _, parent := range []got{ask, {}} {
		clients["bob after"].answer(parent, "bob")
		clients["bobs-reader after"].answer(parent, "bob")
	}
	for _, c := range clients {
		c.seen()
	}
	ann.answer(ask, "ann")
	if got := output(ann.result(cell), cell); got != "ann\n" {
		t.Errorf("the cell printed %q", got)
	}
}

// TestInput_UnknownPrompt: an answer to a prompt that the supervisor does not know passes only from the user whom the
// kernel may ask. The kernel may ask another user before it reads the answer. A user who is not the owner was asked
// only if the supervisor may have missed the prompt.
func TestInput_UnknownPrompt(t *testing.T) {
	s := New(api.Config{LogLimit: 1 << 20, Owner: "ann"}, "test", quiet())
	s.use.Ready()
	clients := map[string]*clientConn{}
	for _, user := range []string{"ann", "bob"} {
		clients[user] = &clientConn{s: s, user: user, send: func(...jupyter.Message) {}}
		if err := s.clients.attach(clients[user], user); err != nil {
			t.Fatal(err)
		}
	}
	passes := func(user string) bool {
		_, ok := s.clients.matchInput(clients[user], &jupyter.Message{Channel: jupyter.Stdin})
		return ok
	}
	if !passes("ann") || passes("bob") {
		t.Errorf("while no cell runs: ann's passes %v, bob's %v", passes("ann"), passes("bob"))
	}
	for _, user := range []string{"bob", "ann"} {
		m := jupyter.New(jupyter.Shell, "execute_request", user, nil, struct{}{})
		s.clients.register(clients[user].session, &m, jupyter.Header{MsgID: user, MsgType: "execute_request"})
		s.use.Observe("status", jupyter.Header{MsgID: user, MsgType: "execute_request"}, api.Busy)
		if passes("ann") != (user == "ann") || passes("bob") {
			t.Errorf("while %s's cell runs: ann's passes %v, bob's %v", user, passes("ann"), passes("bob"))
		}
		s.clients.runningCell().Doubtful = true
		if passes("ann") != (user == "ann") || passes("bob") != (user == "bob") {
			t.Errorf("while %s's doubtful cell runs: ann's passes %v, bob's %v", user, passes("ann"), passes("bob"))
		}
		s.clients.abortAll("error", "Test", "test")
	}
}

// TestInput_Interrupted: a prompt that an interrupt has ended is offered no more, and its answer is refused.
func TestInput_Interrupted(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	ann := r.dial(dialOption{session: "a"})
	cell := ann.execute("input Name?")
	ask := ann.prompt(cell)
	if status, body := r.request("POST", "/interrupt", ""); status != 204 {
		t.Fatalf("%d %s", status, body)
	}
	ann.result(cell)
	page := r.dial(dialOption{session: "new"})
	if n := countPrompts(page.seen()); n != 0 {
		t.Errorf("a new page got %d prompts", n)
	}
	ann.answer(ask, "late")
	ann.collect("remark", func(g got) bool { return strings.Contains(g.text(), "waits for it no more") })
}

// TestInput_Adopted: the supervisor is replaced while a cell asks. The page and a new page get the prompt, and an
// answer arrives.
func TestInput_Adopted(t *testing.T) {
	p := startPod(t, nil).ready()
	c := p.attach("ann")
	cell := c.execute("input Name?")
	ask := c.prompt(cell)
	eventually(t, "the prompt is on disk", func() bool {
		b, err := os.ReadFile(filepath.Join(p.cfg.SpillDir, savedstate.FileName))
		return err == nil && bytes.Contains(b, []byte("Name?"))
	})
	p.supervisor.kill()
	p.startSupervisor()
	c = p.attach("ann")
	page := p.attach("new")
	for _, g := range []got{c.prompt(cell), page.prompt(cell)} {
		if jupyter.StringField(g.Header, "msg_id") != jupyter.StringField(ask.Header, "msg_id") ||
			jupyter.StringField(g.Content, "prompt") != "Name?" {
			t.Errorf("the prompt is %s %s, was %s %s", g.Header, g.Content, ask.Header, ask.Content)
		}
	}
	page.answer(ask, "this")
	if got := output(c.result(cell), cell); !strings.HasSuffix(got, "this\n") {
		t.Errorf("the cell printed %q", got)
	}
}
