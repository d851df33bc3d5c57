package supervisor

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gate"
)

// TestRelay_ExactlyOnce: a relay that resumes from the last cursor that it has passed on gets every line once. Its
// connection may end often, and it never acknowledges anything.
func TestRelay_ExactlyOnce(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann", relay: true})
	c.ws.SetPingHandler(func(string) error { return nil })
	const lines = 2000
	id := c.execute(fmt.Sprintf("print %d", lines))
	var text strings.Builder
	replies := 0
	for n, ended := 0, false; !ended || replies == 0; n++ { // the idle may overtake the reply
		if n%150 == 149 {
			cursor := c.cursor
			_ = c.ws.NetConn().Close()
			c = r.dial(dialOption{session: "ann", relay: true, cursor: cursor})
			c.ws.SetPingHandler(func(string) error { return nil })
		}
		g, err := c.recv()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case g.parent != id:
		case g.msgType == "stream":
			text.WriteString(output([]got{g}, id))
		case g.msgType == "execute_reply":
			replies++
		case g.msgType == "status":
			ended = jupyter.StringField(g.Content, "execution_state") == string(api.Idle)
		}
	}
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i)
	}
	if text.String() != want.String() || replies != 1 {
		t.Errorf("%d bytes of text, want %d; %d replies", text.Len(), want.Len(), replies)
	}
}

// TestRelay_Cursors: a cursor leads to its position or to none. A connection without a usable cursor resumes from the
// session's last acknowledgement.
func TestRelay_Cursors(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann", relay: true})
	c.ws.SetPingHandler(func(string) error { return nil })
	begin := c.cursor
	first := c.execute("echo one")
	c.result(first)
	behindOne := c.cursor
	second := c.execute("echo two")
	c.result(second)
	_ = c.ws.Close()
	other := startSupervisor(t, nil).ready()
	foreign := other.dial(dialOption{session: "ann", relay: true})
	foreign.result(foreign.execute("echo else"))
	beyond := []byte(behindOne)
	copy(beyond[16:], "00000000ffffffff")
	for name, test := range map[string]struct {
		cursor string
		first  bool
	}{
		"none": {begin, true}, "behind the first cell": {behindOne, false}, "no hexadecimal": {strings.Repeat("x", 48), true},
		"too short": {behindOne[:40], true}, "of another log": {foreign.cursor, true},
		"beyond the end": {string(beyond), true},
	} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			c := r.dial(dialOption{session: "ann", relay: true, cursor: test.cursor})
			defer func() { _ = c.ws.Close() }()
			c.ws.SetPingHandler(func(string) error { return nil })
			if got := output(c.result(second), ""); got != "two\n" && !test.first || got != "one\ntwo\n" && test.first {
				t.Errorf("got %q", got)
			}
		})
	}
	r.t = t
	t.Run("of a life before a requested restart", func(t *testing.T) {
		if status, body := r.request("POST", "/restart", "{}"); status != http.StatusOK {
			t.Fatalf("restart: %d %s", status, body)
		}
		c := r.dial(dialOption{session: "ann", relay: true, cursor: behindOne})
		if got := output(c.result(c.execute("echo three")), ""); got != "three\n" {
			t.Errorf("got %q", got)
		}
	})
}

// TestRelay_Reader: a client with the right to read gets only new messages, whatever cursor it makes up.
func TestRelay_Reader(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	ann := r.dial(dialOption{session: "ann", relay: true})
	ann.result(ann.execute("echo hello"))
	begin := ann.cursor
	ann.result(ann.execute("echo secret"))
	bob := r.dial(dialOption{session: "bob", relay: true, cursor: begin, header: reads})
	if got := output(bob.result(bob.send(jupyter.Shell, "kernel_info_request", struct{}{})), ""); got != "" {
		t.Errorf("it reads %q", got)
	}
	// Rejected messages are not remembered.
	bob.result(bob.execute("echo mine"))
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	for sess := range r.s.clients.sessions.All() {
		if n := sess.Accepted(); n != 0 && n != 2 {
			t.Errorf("%d messages count as accepted", n)
		}
	}
}

// TestRelay_Acknowledges: messages that a relay has passed on, and its browser has not acknowledged, are repeated to
// the browser's next connection. No others are repeated.
func TestRelay_Acknowledges(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann", relay: true})
	one := c.execute("echo one")
	c.result(one)
	r.acknowledged("ann", c) // pings are answered by the library
	c.ws.SetPingHandler(func(string) error { return nil })
	two := c.execute("echo two")
	c.result(two)
	_ = c.ws.Close()
	c = r.dial(dialOption{session: "ann", relay: true, cursor: c.cursor})
	var old []string
	c.ws.SetPingHandler(func(data string) error { old = append(old, data); return nil })
	three := c.execute("echo three")
	if got := output(c.result(three), ""); got != "three\n" {
		t.Errorf("behind the cursor came %q", got)
	}
	if len(old) == 0 {
		t.Error("no ping asks about what was passed on before")
	}
	_ = c.ws.Close()
	c = r.dial(dialOption{session: "ann", relay: true})
	c.ws.SetPingHandler(func(string) error { return nil })
	c.result(c.send(jupyter.Shell, "kernel_info_request", struct{}{})) // so that the connection is active
	// The pings of an earlier connection prove nothing on this one.
	for _, data := range old {
		if err := c.ws.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(testLimit)); err != nil {
			t.Fatal(err)
		}
	}
	c.result(c.send(jupyter.Shell, "kernel_info_request", struct{}{})) // the pongs have been read
	_ = c.ws.Close()
	r.gone("ann")
	c = r.dial(dialOption{session: "ann", relay: true})
	if got := output(c.result(three), ""); got != "two\nthree\n" {
		t.Errorf("the browser after it got %q", got)
	}
}

// acknowledged waits until the session has acknowledged everything, and connects the client again.
func (r *running) acknowledged(session string, c *client) {
	r.t.Helper()
	// A ping follows each message within ackLatest, and the library answers it when it reads.
	if err := c.ws.SetReadDeadline(time.Now().Add(testLimit)); err != nil {
		r.t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		c.ws.ReadMessage() //nolint:errcheck // it ends with the connection, which cannot be used afterwards
	}()
	want := r.s.log.Tail()
	eventually(r.t, "everything is acknowledged", func() bool {
		r.s.mu.Lock()
		defer r.s.mu.Unlock()
		return r.s.clients.sessions.Find("\x00false\x00"+session).Resume().Seq >= want.Seq
	})
	_ = c.ws.NetConn().Close()
	<-read
	*c = *r.dial(dialOption{session: session, relay: c.relay, v1: c.v1 && !c.relay, cursor: c.cursor})
}

// TestRelay_RepeatedInput: a message that a relay repeats runs once, over reconnects and restarts. Messages that other
// clients repeat run again.
func TestRelay_RepeatedInput(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	count := func(c *client) int {
		t.Helper()
		all := c.result(c.execute("print 1"))
		runs := 0
		for _, g := range all {
			if g.msgType == "execute_input" && jupyter.StringField(g.Content, "code") == "echo once" {
				runs++
			}
		}
		return runs
	}
	m := jupyter.New(jupyter.Shell, "execute_request", "ann", nil, map[string]any{"code": "echo once", "silent": false})
	send := func(c *client) { // a kernel ignores a copy of earlier bytes, so no two messages are the same
		m.Metadata = fmt.Appendf(nil, `{"n": %d}`, time.Now().UnixNano())
		c.sendMessage(&m)
	}
	c := r.dial(dialOption{session: "ann", relay: true})
	send(c)
	send(c)
	if n := count(c); n != 1 {
		t.Errorf("it ran %d times", n)
	}
	cursor := c.cursor
	_ = c.ws.Close()
	c = r.dial(dialOption{session: "ann", relay: true, cursor: cursor})
	send(c)
	if n := count(c); n != 0 {
		t.Errorf("it ran %d times more after the connection was cut", n)
	}
	if status, body := r.request("POST", "/restart", "{}"); status != http.StatusOK {
		t.Fatalf("restart: %d %s", status, body)
	}
	send(c)
	if n := count(c); n != 0 {
		t.Errorf("it ran %d times more after a restart", n)
	}
	bob := r.dial(dialOption{session: "bob", v1: true})
	send(bob)
	send(bob)
	if n := count(bob); n != 2 {
		t.Errorf("what no relay sent ran %d times, want 2", n)
	}
}

// TestRelay_PongProvesAcceptance: an answered ping proves that everything before it was accepted. No ping is answered
// behind a rejected message.
func TestRelay_PongProvesAcceptance(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.Argv = fakeKernelArgv("--never-ready") })
	c := r.dial(dialOption{session: "ann", relay: true})
	var pongs []string
	c.ws.SetPongHandler(func(data string) error { pongs = append(pongs, data); return nil })
	accepted := func() int {
		r.s.mu.Lock()
		defer r.s.mu.Unlock()
		return c.acceptedBy(r)
	}
	ping := func(name string) {
		if err := c.ws.WriteControl(websocket.PingMessage, []byte(name), time.Now().Add(testLimit)); err != nil {
			t.Fatal(err)
		}
	}
	// A gate that is shut holds exactly this many messages.
	for range gate.LimitMessages {
		c.execute("echo 1")
	}
	ping("taken")
	c.execute("echo too much")
	c.execute("echo behind it")
	ping("refused")
	for {
		if _, err := c.recv(); err != nil {
			if !websocket.IsCloseError(err, websocket.CloseTryAgainLater) {
				t.Errorf("the connection ended with %v", err)
			}
			break
		}
	}
	if len(pongs) != 1 || pongs[0] != "taken" {
		t.Errorf("answered pings: %q", pongs)
	}
	if n := accepted(); n != gate.LimitMessages {
		t.Errorf("%d messages count as accepted, want %d", n, gate.LimitMessages)
	}
}

// acceptedBy returns how many messages of the client's session count as accepted. s.mu is held.
func (c *client) acceptedBy(r *running) int {
	return r.s.clients.sessions.Find("\x00false\x00" + c.session).Accepted()
}
