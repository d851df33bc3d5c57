package supervisor

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func bothFramings(t *testing.T, test func(t *testing.T, v1 bool)) {
	for _, v1 := range []bool{false, true} {
		t.Run(map[bool]string{false: "default framing", true: "v1 framing"}[v1], func(t *testing.T) { test(t, v1) })
	}
}

func TestSupervisor_Execute(t *testing.T) {
	bothFramings(t, func(t *testing.T, v1 bool) {
		r := startSupervisor(t, nil)
		c := r.dial(dialOption{session: "ann", v1: v1}) // before the kernel is up, so its messages wait
		id := c.execute("print 3")
		all := c.result(id)
		var order []string
		for _, g := range all {
			if g.parent == id && g.Channel == jupyter.IOPub {
				order = append(order, g.msgType)
			}
		}
		if got, want := strings.Join(order, " "), "status execute_input stream stream stream status"; got != want {
			t.Errorf("iopub had %s, want %s", got, want)
		}
		reply, ok := find(all, "execute_reply", id)
		if !ok || jupyter.StringField(reply.Content, "status") != "ok" {
			t.Errorf("reply is %s", reply.Content)
		}
		if m := r.model(); m.ExecutionState != api.Idle || m.Connections != 1 {
			t.Errorf("model is %+v", m)
		}
	})
}

// TestSupervisor_Resume: when a connection is cut, no output is lost, and only unacknowledged output is repeated.
func TestSupervisor_Resume(t *testing.T) {
	bothFramings(t, func(t *testing.T, v1 bool) {
		r := startSupervisor(t, nil).ready()
		c := r.dial(dialOption{session: "ann", v1: v1})
		const lines, cuts = 2000, 10
		id := c.execute(fmt.Sprintf("print %d", lines))
		seen := map[string]int{}
		var last int
		var ended bool
		for cut := 0; !ended; cut++ {
			n := 0
			for !ended {
				g, err := c.recv()
				if err != nil {
					t.Fatal(err)
				}
				if g.parent == id && g.msgType == "stream" {
					var line int
					_, _ = fmt.Sscan(g.text(), &line)
					if seen[g.text()]++; seen[g.text()] == 1 && len(seen) > 1 && line != last+1 {
						t.Fatalf("line %d came after %d", line, last)
					}
					last = max(last, line)
				}
				ended = g.parent == id && g.msgType == "status" &&
					jupyter.StringField(g.Content, "execution_state") == string(api.Idle)
				if n++; n >= lines/cuts && cut < cuts {
					break
				}
			}
			if !ended {
				_ = c.ws.NetConn().Close()
				c = r.dial(dialOption{session: "ann", v1: v1})
			}
		}
		if len(seen) != lines {
			t.Errorf("%d different lines arrived, want %d", len(seen), lines)
		}
	})
}

// TestSupervisor_Twins: JupyterLab 4.6 opens two websockets with one session id, and never reads the first.
func TestSupervisor_Twins(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	unread := r.dial(dialOption{session: "lab"})
	c := r.dial(dialOption{session: "lab"})
	id := c.execute("flood 3000")
	all := c.result(id)
	n := 0
	for _, g := range all {
		if g.msgType == "display_data" {
			n++
		}
	}
	if n != 3000 {
		t.Errorf("%d of 3000 displays arrived", n)
	}
	_ = unread.ws.Close()
}

// TestSupervisor_Connections: a websocket counts at once, until it has left two pings unanswered. Then it counts again
// when its client has answered two, or has sent a message. Only such a client keeps a kernel.
func TestSupervisor_Connections(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.Cull = api.Cull{IdleTimeout: time.Hour, Unattended: true} }).ready()
	counts := func(what string, n int, keeps bool) {
		t.Helper()
		r.until(what, func(st api.Status) bool { return st.Connections == n })
		if m := r.model(); m.Connections != n || (m.CullAt == "") != keeps {
			t.Errorf("%s: %d connections, and the kernel will be culled at %q", what, m.Connections, m.CullAt)
		}
	}
	unread := r.dial(dialOption{session: "lab"})
	if m := r.model(); m.Connections != 1 || m.CullAt == "" {
		t.Errorf("%d connections as it begins, and the kernel will be culled at %q", m.Connections, m.CullAt)
	}
	sends := r.dial(dialOption{session: "sends"})
	sends.result(sends.execute("print 3\nsleep 1100ms")) // the last ping comes a second after the others
	counts("one has left two pings unanswered, and the other has sent a message", 1, true)
	_ = sends.ws.Close()
	counts("the other has left", 0, false)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for err := error(nil); err == nil; _, _, err = unread.ws.ReadMessage() { // which answers pings
		}
	}()
	counts("it has answered two pings", 1, true)
	_ = unread.ws.Close()
	<-closed
	counts("it has left", 0, false)
}

func TestSupervisor_StdinGoesToTheAsker(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	ann := r.dial(dialOption{session: "ann"})
	bob := r.dial(dialOption{session: "bob", v1: true})
	id := ann.execute("input Name?")
	all := ann.collect("input_request", func(g got) bool { return g.msgType == "input_request" })
	ask := all[len(all)-1]
	if ask.Channel != jupyter.Stdin || ask.parent != id {
		t.Errorf("input request is on %s for %s", ask.Channel, ask.parent)
	}
	answer := map[string]string{"value": "Ann", "status": "ok"}
	reply := jupyter.New(jupyter.Stdin, "input_reply", "ann", ask.Header, answer)
	ann.sendMessage(&reply)
	ann.result(id)
	bobs := bob.collect("idle of ann's cell", func(g got) bool {
		return g.parent == id && g.msgType == "status" &&
			jupyter.StringField(g.Content, "execution_state") == string(api.Idle)
	})
	for _, g := range bobs {
		if g.Channel != jupyter.IOPub {
			t.Errorf("bob got ann's %s on %s", g.msgType, g.Channel)
		}
	}
}

// TestSupervisor_EqualIDs: two pages whose messages have the same id each get their own reply.
func TestSupervisor_EqualIDs(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	clients := []*client{r.dial(dialOption{session: "ann"}), r.dial(dialOption{session: "bob"})}
	for i, c := range clients {
		content := map[string]any{"code": fmt.Sprintf("print %d", i+1)}
		m := jupyter.New(jupyter.Shell, "execute_request", c.session, nil, content)
		m.Header = []byte(strings.Replace(string(m.Header), jupyter.StringField(m.Header, "msg_id"), "same", 1))
		c.sendMessage(&m)
	}
	for _, c := range clients {
		c.collect("reply", func(g got) bool { return g.msgType == "execute_reply" && g.parent == "same" })
	}
	for _, c := range clients {
		id := c.execute("print 1")
		for _, g := range c.result(id) {
			if g.msgType == "execute_reply" && g.parent == "same" {
				t.Errorf("%s got a second reply", c.session)
			}
		}
	}
}

// TestSupervisor_RequestsEnd: comm messages, which have no reply, must not stay in the table.
func TestSupervisor_RequestsEnd(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	for range 100 {
		c.send(jupyter.Shell, "comm_msg", map[string]any{"comm_id": "x", "data": map[string]any{}})
	}
	c.result(c.execute("print 1"))
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.clients.requests.Len() != 0 {
		t.Errorf("%d requests are still open", r.s.clients.requests.Len())
	}
}

func TestSupervisor_ControlOvertakes(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	cell := c.execute("sleep 30s")
	r.until("busy", func(st api.Status) bool { return st.State == api.Busy })
	c.running(cell)
	// The copy of kernel_info answers, and the state shown afterwards is the cell's again.
	info := c.send(jupyter.Shell, "kernel_info_request", struct{}{})
	all := c.result(info)
	if _, ok := find(all, "kernel_info_reply", info); !ok {
		t.Error("no kernel_info_reply while the kernel is busy")
	}
	last := c.collect("busy of the cell", func(g got) bool { return g.msgType == "status" && g.parent == cell })
	if state := jupyter.StringField(last[len(last)-1].Content, "execution_state"); state != string(api.Busy) {
		t.Errorf("state after kernel_info is %s", state)
	}
	onControl := c.send(jupyter.Control, "kernel_info_request", struct{}{})
	busyAgain := func(g got) bool {
		return g.msgType == "status" && g.parent == cell &&
			jupyter.StringField(g.Content, "execution_state") == string(api.Busy)
	}
	if all := c.result(onControl); !slices.ContainsFunc(all, busyAgain) { // the reply may come before it
		c.collect("busy behind an idle that is not the cell's", busyAgain)
	}
	if st := r.model().ExecutionState; st != api.Busy {
		t.Errorf("a control request made the kernel %s", st)
	}
	if status, body := r.request("POST", "/interrupt", "{}"); status != http.StatusNoContent {
		t.Fatalf("interrupt: %d %s", status, body)
	}
	reply, _ := find(c.result(cell), "execute_reply", cell)
	if jupyter.StringField(reply.Content, "status") != "error" {
		t.Errorf("interrupted cell replied %s", reply.Content)
	}
}

func TestSupervisor_InterruptByMessage(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.InterruptMode = "message" }).ready()
	c := r.dial(dialOption{session: "ann"})
	cell := c.execute("sleep 30s")
	c.running(cell)
	if status, body := r.request("POST", "/interrupt", ""); status != http.StatusNoContent {
		t.Fatalf("interrupt: %d %s", status, body)
	}
	c.result(cell)
}

// TestSupervisor_LostIdle: a cell without an idle ends nevertheless. It has a notice only if its kernel's sockets may
// have lost output.
func TestSupervisor_LostIdle(t *testing.T) {
	t.Parallel() // it waits more than it works
	for code, notice := range map[string]bool{"print 3\nlose idle": false, "flood 400\nlose idle": true} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			r := startSupervisor(t, nil).ready()
			c := r.dial(dialOption{session: "ann"})
			id := c.execute(code)
			if text := output(c.result(id), id); strings.Contains(text, "[ekg]") != notice {
				t.Errorf("the cell shows %q", text)
			}
			r.until("idle", func(st api.Status) bool { return st.State == api.Idle })
		})
	}
}

func TestSupervisor_NewSessionSeesThePresent(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	c.result(c.execute("print 5"))
	cell := c.execute("sleep 3s")
	r.until("busy", func(st api.Status) bool { return st.State == api.Busy })
	late := r.dial(dialOption{session: "late"})
	first, err := late.recv()
	if err != nil {
		t.Fatal(err)
	}
	if first.msgType != "status" || first.parent != cell ||
		jupyter.StringField(first.Content, "execution_state") != string(api.Busy) {
		t.Errorf("a new page first gets %s %s for %s", first.msgType, first.Content, first.parent)
	}
	all := late.collect("idle", func(g got) bool { return g.msgType == "status" && g.parent == cell })
	if text := output(all, ""); text != "" {
		t.Errorf("a new page got old output %q", text)
	}
}

func TestSupervisor_Routes(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	for _, tc := range []struct {
		method, path string
		header       http.Header
		status       int
	}{
		{"GET", "/api/kernels/" + r.cfg.KernelID, nil, 200},
		{"GET", "/api/kernels/00000000-0000-4000-8000-0000000000bb", nil, 421},
		{"DELETE", "/api/kernels/00000000-0000-4000-8000-0000000000bb", nil, 421},
		{"GET", "/api/kernels/" + r.cfg.KernelID + "/channels", nil, 400},
		{"GET", "/", nil, 404},
		{"POST", "/api/kernels/" + r.cfg.KernelID + "/interrupt", http.Header{api.HeaderRight: {"read"}}, 403},
		{"DELETE", "/api/kernels/" + r.cfg.KernelID, http.Header{api.HeaderRight: {"read"}}, 403},
		{"PUT", "/api/kernels/" + r.cfg.KernelID + "/limits", nil, 400},
	} {
		req, err := http.NewRequest(tc.method, "http://x"+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tc.header != nil {
			req.Header = tc.header
		}
		resp, err := (&http.Transport{DialContext: r.dialer(), DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != tc.status {
			t.Errorf("%s %s: %d, want %d", tc.method, tc.path, resp.StatusCode, tc.status)
		}
	}
}

func TestSupervisor_ReaderOnlyReads(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	reader := r.dial(dialOption{session: "r", header: http.Header{api.HeaderRight: {"read"}, "User-Agent": {"x"}}})
	reader.result(reader.send(jupyter.Shell, "kernel_info_request", struct{}{}))
	id := reader.execute("print 1")
	all := reader.result(id)
	if reply, _ := find(all, "execute_reply", id); jupyter.StringField(reply.Content, "ename") != "Forbidden" {
		t.Errorf("a reader's cell was answered %s", reply.Content)
	}
	if _, ran := find(all, "execute_input", id); ran {
		t.Error("a reader's cell ran")
	}
}
