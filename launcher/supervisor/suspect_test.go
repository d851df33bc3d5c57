package supervisor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const cutsAllowed = 3 // as in package session

// refusing is a client behind a proxy with a limit: its connection ends when a message of more than limit bytes
// arrives. It reads until the cell or the connection has ended, and returns all messages so far.
func (r *running) refusing(limit int, code int, session, cell string, before []got) (all []got, ended bool) {
	r.t.Helper()
	all = before
	c := r.dial(dialOption{session: session, v1: true})
	defer func() { _ = c.ws.NetConn().Close() }()
	c.send(jupyter.Shell, "kernel_info_request", struct{}{}) // so that the connection is active
	replied := func(g got) bool { return g.parent == cell && g.msgType == "execute_reply" }
	idle := false
	for !slices.ContainsFunc(all, replied) || !idle { // the reply may come before the output
		g, err := c.recv()
		if err != nil {
			r.t.Fatalf("%v; so far: %s", err, summary(all))
		}
		if g.Size() > limit {
			if code != 0 {
				err := c.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""), time.Now().Add(testLimit))
				if err != nil {
					r.t.Fatal(err)
				}
				for err == nil { // as libraries do: until the other side hangs up
					_, err = c.recv()
				}
			}
			return all, false
		}
		all = append(all, g)
		idle = idle ||
			g.parent == cell && g.msgType == "status" && jupyter.StringField(g.Content, "execution_state") == string(api.Idle)
	}
	return all, true
}

// gone waits until the supervisor has noticed that the session has no connection.
func (r *running) gone(session string) {
	r.t.Helper()
	eventually(r.t, "the end of "+session+"'s connections", func() bool {
		r.s.mu.Lock()
		defer r.s.mu.Unlock()
		return !r.s.clients.sessions.Find("\x00false\x00" + session).Connected()
	})
}

// TestCuts_Poison: a message that breaks connection after connection must not keep a session from all later messages.
func TestCuts_Poison(t *testing.T) {
	for name, test := range map[string]struct{ code, cuts int }{
		"cut":                    {0, 3},
		"close without a reason": {websocket.CloseNormalClosure, 3},
		"message too big":        {websocket.CloseMessageTooBig, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := startSupervisor(t, nil).ready()
			c := r.dial(dialOption{session: "ann", v1: true})
			c.result(c.execute("echo first"))
			r.acknowledged("ann", c)
			cell := c.execute("echo before\nbig 2m\necho between\nbig 1m\necho after")
			all := c.running(cell)
			_ = c.ws.NetConn().Close()
			r.gone("ann")
			cuts := 0
			for ended := false; !ended; {
				if all, ended = r.refusing(1<<20+1<<18, test.code, "ann", cell, all); !ended {
					cuts++
				}
				r.gone("ann")
				if cuts > 10 {
					t.Fatal("the message is sent again and again")
				}
			}
			// The supervisor may have begun to send the message on the first connection, which was then cut with it.
			if cuts != test.cuts && !(test.cuts == cutsAllowed && cuts == test.cuts-1) {
				t.Errorf("it took %d connections, want %d", cuts, test.cuts)
			}
			text := output(all, cell)
			if !strings.Contains(text, "[ekg] A message of type display_data and 2") || strings.Count(text, "[ekg]") != 1 ||
				!strings.Contains(text, "between\n") || !strings.Contains(text, "after\n") {
				t.Errorf("the cell shows %q", text)
			}
			if n := countType(all, "display_data"); n != 1 {
				t.Errorf("%d displays came, want the smaller one", n)
			}
			// Other sessions still get it.
			bob := r.dial(dialOption{session: "bob", v1: true})
			if all := bob.result(bob.execute("big 2m")); countType(all, "display_data") != 1 {
				t.Error("another session does not get such a message")
			}
		})
	}
}

// TestCuts_Innocent: connections that break over small messages, or after large ones have arrived, replace nothing.
func TestCuts_Innocent(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann", v1: true})
	first := c.execute("big 2m")
	c.result(first)
	r.acknowledged("ann", c)
	c.ws.SetPingHandler(func(string) error { return nil })
	const lines = 100
	cell := c.execute(fmt.Sprintf("print %d", lines))
	for range 2 * cutsAllowed {
		c.result(cell)
		_ = c.ws.NetConn().Close()
		r.gone("ann")
		c = r.dial(dialOption{session: "ann", v1: true})
		c.ws.SetPingHandler(func(string) error { return nil })
		c.send(jupyter.Shell, "kernel_info_request", struct{}{})
	}
	all := c.result(cell)
	if n := countType(all, "stream"); n != lines || strings.Contains(output(all, cell), "[ekg]") {
		t.Errorf("%d messages, %q: %s", n, output(all, cell), summary(all))
	}
}

// TestCuts_Deaf: a client that acknowledges nothing may have received the message each time. So the end of its
// connections proves nothing.
func TestCuts_Deaf(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	cell := ""
	for range 2 * cutsAllowed {
		c := r.dial(dialOption{session: "ann", v1: true})
		c.ws.SetPingHandler(func(string) error { return nil })
		info := c.send(jupyter.Shell, "kernel_info_request", struct{}{}) // so that the connection is active
		if cell == "" {
			cell = c.execute("big 2m")
		}
		if all := c.result(info, cell); countType(all, "display_data") != 1 {
			t.Fatalf("it got %s", summary(all))
		}
		_ = c.ws.NetConn().Close()
		r.gone("ann")
	}
}

func countType(all []got, msgType string) int {
	n := 0
	for _, g := range all {
		if g.msgType == msgType {
			n++
		}
	}
	return n
}
