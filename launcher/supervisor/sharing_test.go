package supervisor

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/connection"
)

// as returns the headers of a user's requests. right is "" for one with the right to use the kernel.
func as(user, right string) http.Header {
	h := http.Header{api.HeaderUser: {user}, "User-Agent": {"x"}}
	if right != "" {
		h.Set(api.HeaderRight, right)
	}
	return h
}

// startShared runs a supervisor whose kernel is ann's.
func startShared(t *testing.T) *running {
	t.Helper()
	return startSupervisor(t, func(c *api.Config) { c.Owner = "ann" })
}

// sendAs sends a request with a given msg_id.
func (c *client) sendAs(id string, ch jupyter.Channel, msgType string) {
	c.t.Helper()
	m := jupyter.New(ch, msgType, c.session, nil, map[string]string{"code": "print 1"})
	m.Header = []byte(strings.Replace(string(m.Header), jupyter.StringField(m.Header, "msg_id"), id, 1))
	c.sendMessage(&m)
}

// TestSharing_SameID: another user's request with the msg_id of the owner's running cell neither ends that cell nor
// gets its prompt and its reply.
func TestSharing_SameID(t *testing.T) {
	for right, answer := range map[string]string{
		api.RightRead: "kernel_info_reply ok", api.RightUse: "complete_reply error DuplicateID",
	} {
		for _, channel := range []jupyter.Channel{jupyter.Control, jupyter.Shell} {
			t.Run(fmt.Sprint(right, " on ", channel), func(t *testing.T) {
				r := startShared(t).ready()
				ann := r.dial(dialOption{session: "a", header: as("ann", "")})
				cell := ann.execute("input Name?")
				ann.collect("input_request", func(g got) bool { return g.msgType == "input_request" })
				bob := r.dial(dialOption{session: "b", header: as("bob", right)})
				request := strings.Replace(strings.Fields(answer)[0], "reply", "request", 1)
				for range 3 {
					bob.sendAs(cell, channel, request)
					all := bob.collect("answer", func(g got) bool { return strings.HasSuffix(g.msgType, "_reply") })
					reply := all[len(all)-1]
					got := strings.TrimSpace(fmt.Sprint(reply.msgType, " ", jupyter.StringField(reply.Content, "status"), " ",
						jupyter.StringField(reply.Content, "ename")))
					if got != answer && (right == api.RightUse || reply.parent != cell) {
						t.Errorf("bob got %q, want %q", got, answer)
					}
				}
				eventually(t, "the owner's cell runs, and no other request is open", func() bool {
					r.s.mu.Lock()
					defer r.s.mu.Unlock()
					u, _ := r.s.use.Usage()
					return u.Busy && r.s.use.State() == api.Busy && r.s.clients.requests.Len() == 1
				})
				m := jupyter.New(jupyter.Stdin, "input_reply", "a", nil, map[string]string{"value": "Ann"})
				ann.sendMessage(&m)
				reply, _ := find(ann.result(cell), "execute_reply", cell)
				if jupyter.StringField(reply.Content, "status") != "ok" {
					t.Errorf("the owner's cell was answered with %s", reply.Content)
				}
			})
		}
	}
}

// TestSharing_SameIDOfOwner: two pages of one user may use the same numbers for their requests.
func TestSharing_SameIDOfOwner(t *testing.T) {
	r := startShared(t).ready()
	one := r.dial(dialOption{session: "1", header: as("ann", "")})
	two := r.dial(dialOption{session: "2", header: as("ann", "")})
	for _, c := range []*client{one, two} {
		c.sendAs("same", jupyter.Shell, "execute_request")
	}
	for _, c := range []*client{one, two} {
		all := c.collect("reply", func(g got) bool { return g.msgType == "execute_reply" })
		if reply := all[len(all)-1]; jupyter.StringField(reply.Content, "status") != "ok" {
			t.Errorf("page %s got %s", c.session, reply.Content)
		}
	}
}

// TestSharing_Log: requests and connections of other users leave no entries in the log, which would evict the owner's
// output.
func TestSharing_Log(t *testing.T) {
	r := startShared(t).ready()
	ann := r.dial(dialOption{session: "a", header: as("ann", "")})
	ann.result(ann.execute("print 1"))
	_ = ann.ws.Close()
	r.until("left", func(st api.Status) bool { return st.Connections == 0 })
	before := r.s.log.Tail()
	for n := range 70 {
		c := r.dial(dialOption{session: fmt.Sprint(n), header: as("bob", api.RightRead)})
		var ids []string
		for range 10 {
			ids = append(ids, c.execute("print 1"), c.send(jupyter.Control, "kernel_info_request", struct{}{}))
		}
		c.result(ids...)
		_ = c.ws.Close()
		r.until("left", func(st api.Status) bool { return st.Connections == 0 })
	}
	if after := r.s.log.Tail(); after != before {
		t.Errorf("the log has %d more entries", after.Seq-before.Seq)
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.clients.sessions.Find("ann\x00false\x00a") == nil {
		t.Error("the owner's session is gone")
	}
}

// TestSharing_Connections: another user's connections and readers of the log leave the owner's places free.
func TestSharing_Connections(t *testing.T) {
	r := startShared(t).ready()
	refused := 0
	for n := range 70 {
		if _, err := r.tryDial(dialOption{session: fmt.Sprint(n), header: as("bob", api.RightRead)}); err != nil {
			refused++
		}
	}
	if refused == 0 {
		t.Error("bob has 70 connections")
	}
	c := r.dial(dialOption{session: "a", header: as("ann", "")})
	c.result(c.execute("print 1"))

	refused = 0
	for range 70 {
		if l := r.openLog("follow=1", as("bob", "")); l.resp.StatusCode != http.StatusOK {
			refused++
		}
	}
	if refused == 0 {
		t.Error("bob reads the log 70 times at once")
	}
	if l := r.openLog("", as("ann", "")); l.resp.StatusCode != http.StatusOK {
		t.Errorf("the owner reads the log: %d", l.resp.StatusCode)
	}
}

// TestSharing_BeforeTheKernelIsUp: a reader's kernel_info_request is answered when the kernel is up.
func TestSharing_BeforeTheKernelIsUp(t *testing.T) {
	r := startShared(t)
	c := r.dial(dialOption{session: "b", header: as("bob", api.RightRead)})
	id := c.send(jupyter.Shell, "kernel_info_request", struct{}{})
	reply, _ := find(c.result(id), "kernel_info_reply", id)
	if jupyter.StringField(reply.Content, "status") != "ok" {
		t.Errorf("got %s", reply.Content)
	}
}

// TestSharing_Asked: the requests of a reader that wait for the kernel are bounded, and none is left when the kernel is
// dead.
func TestSharing_Asked(t *testing.T) {
	s := New(api.Config{LogLimit: 1 << 20}, "test", quiet())
	sent := 0
	c := &clientConn{s: s, readOnly: true, send: func(...jupyter.Message) { sent++ }}
	if err := s.clients.attach(c, ""); err != nil {
		t.Fatal(err)
	}
	s.clients.connected[c] = struct{}{}
	for range 10 * maxAsked {
		m := jupyter.New(jupyter.Shell, "kernel_info_request", "b", nil, struct{}{})
		h, err := jupyter.ParseHeader(m.Header)
		if err != nil {
			t.Fatal(err)
		}
		if end := s.accept(c, m, h); end != nil {
			t.Fatal(end)
		}
	}
	if len(c.asked) != maxAsked {
		t.Errorf("%d requests wait, want %d", len(c.asked), maxAsked)
	}
	s.announce(api.Dead, "test")
	if len(c.asked) != 0 || sent != 10*maxAsked {
		t.Errorf("%d requests wait for a dead kernel, and %d are answered", len(c.asked), sent)
	}
}

// TestSharing_RejectedAgain: a relay repeats a message whose rejection it may not have got. It is rejected again, even
// if the kernel could take it now.
func TestSharing_RejectedAgain(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	r.s.mu.Lock()
	r.s.use.Reset(api.Dead)
	r.s.mu.Unlock()
	c := r.dial(dialOption{session: "a", relay: true})
	for range 2 {
		c.sendAs("again", jupyter.Shell, "execute_request")
		reply, _ := find(c.result("again"), "execute_reply", "again")
		if jupyter.StringField(reply.Content, "status") != "error" {
			t.Errorf("got %s", reply.Content)
		}
		r.s.mu.Lock()
		r.s.use.Reset(api.Starting)
		r.s.use.Ready()
		r.s.mu.Unlock()
	}
}

// TestSharing_LargeMessages: a reader's messages are small, so that unfinished ones take no memory.
func TestSharing_LargeMessages(t *testing.T) {
	r := startShared(t).ready()
	send := func(c *client) error {
		text := strings.Repeat("x", 2*connection.MaxReaderMessage)
		c.send(jupyter.Shell, "kernel_info_request", map[string]string{"x": text})
		for {
			if g, err := c.recv(); err != nil || g.msgType == "kernel_info_reply" {
				return err
			}
		}
	}
	bothFramings(t, func(t *testing.T, v1 bool) {
		err := send(r.dial(dialOption{session: "b", v1: v1, header: as("bob", api.RightRead)}))
		if !websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
			t.Errorf("a reader's message ended with %v", err)
		}
		for _, user := range []string{"ann", "uma"} {
			if err := send(r.dial(dialOption{session: user, v1: v1, header: as(user, "")})); err != nil {
				t.Errorf("%s: %v", user, err)
			}
		}
	})
}

// TestSharing_Shutdown: a shutdown_request ends the kernel for its owner and for admins, and for no other user.
func TestSharing_Shutdown(t *testing.T) {
	for name, test := range map[string]struct {
		user, right string
		ends        bool
	}{
		"owner": {"ann", api.RightOwn, true}, "admin": {"root", api.RightOwn, true},
		"user": {"bob", api.RightUse, false}, "reader": {"bob", api.RightRead, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := startShared(t).ready()
			c := r.dial(dialOption{session: "c", header: as(test.user, test.right)})
			for _, channel := range []jupyter.Channel{jupyter.Control, jupyter.Shell} {
				id := c.send(channel, "shutdown_request", map[string]bool{"restart": false})
				all := c.collect("answer", func(g got) bool { return g.msgType == "shutdown_reply" })
				reply := all[len(all)-1]
				refused := jupyter.StringField(reply.Content, "ename") == "Forbidden"
				if refused == test.ends || reply.parent != id {
					t.Errorf("on %s it was answered with %s", channel, reply.Content)
				}
				if test.ends {
					return
				}
			}
		})
	}
}
