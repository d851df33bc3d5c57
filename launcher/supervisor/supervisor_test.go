package supervisor

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

func bothFramings(t *testing.T, test func(t *testing.T, v1 bool)) {
	for _, v1 := range []bool{false, true} {
		t.Run(map[bool]string{false: "default framing", true: "v1 framing"}[v1], func(t *testing.T) { test(t, v1) })
	}
}

func TestSupervisor_execute(t *testing.T) {
	bothFramings(t, func(t *testing.T, v1 bool) {
		r := startSupervisor(t, nil)
		c := r.dial(dialOption{session: "ann", v1: v1}) // before the kernel is up: what is sent waits
		id := c.execute("print 3")
		all := c.result(id)
		var order []string
		for _, g := range all {
			if g.parent == id && g.Channel == wire.IOPub {
				order = append(order, g.msgType)
			}
		}
		if got, want := strings.Join(order, " "), "status execute_input stream stream stream status"; got != want {
			t.Errorf("iopub had %s, want %s", got, want)
		}
		reply, ok := find(all, "execute_reply", id)
		if !ok || wire.StringField(reply.Content, "status") != "ok" {
			t.Errorf("reply is %s", reply.Content)
		}
		if m := r.model(); m.ExecutionState != stateIdle || m.Connections != 1 {
			t.Errorf("model is %+v", m)
		}
	})
}

// TestSupervisor_resume catches output lost or repeated beyond what was unacknowledged when a connection is cut.
func TestSupervisor_resume(t *testing.T) {
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
					fmt.Sscan(g.text(), &line)
					if seen[g.text()]++; seen[g.text()] == 1 && len(seen) > 1 && line != last+1 {
						t.Fatalf("line %d came after %d", line, last)
					}
					last = max(last, line)
				}
				ended = g.parent == id && g.msgType == "status" && wire.StringField(g.Content, "execution_state") == stateIdle
				if n++; n >= lines/cuts && cut < cuts {
					break
				}
			}
			if !ended {
				c.ws.NetConn().Close()
				c = r.dial(dialOption{session: "ann", v1: v1})
			}
		}
		if len(seen) != lines {
			t.Errorf("%d different lines arrived, want %d", len(seen), lines)
		}
	})
}

// TestSupervisor_twins: JupyterLab 4.6 opens two websockets with one session id, and never reads the first.
func TestSupervisor_twins(t *testing.T) {
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
	if m := r.model(); m.Connections != 1 {
		t.Errorf("%d connections are counted, want only the one that speaks", m.Connections)
	}
	unread.ws.Close()
}

func TestSupervisor_stdinGoesToTheAsker(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	ann := r.dial(dialOption{session: "ann"})
	bob := r.dial(dialOption{session: "bob", v1: true})
	id := ann.execute("input Name?")
	all := ann.collect("input_request", func(g got) bool { return g.msgType == "input_request" })
	ask := all[len(all)-1]
	if ask.Channel != wire.Stdin || ask.parent != id {
		t.Errorf("input request is on %s for %s", ask.Channel, ask.parent)
	}
	reply := wire.New(wire.Stdin, "input_reply", "ann", ask.Header, map[string]string{"value": "Ann", "status": "ok"})
	ann.sendMessage(&reply)
	ann.result(id)
	bobs := bob.collect("idle of ann's cell", func(g got) bool {
		return g.parent == id && g.msgType == "status" && wire.StringField(g.Content, "execution_state") == stateIdle
	})
	for _, g := range bobs {
		if g.Channel != wire.IOPub {
			t.Errorf("bob got ann's %s on %s", g.msgType, g.Channel)
		}
	}
}

// TestSupervisor_equalIDs: two pages whose messages have the same id each get their own reply.
func TestSupervisor_equalIDs(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	clients := []*client{r.dial(dialOption{session: "ann"}), r.dial(dialOption{session: "bob"})}
	for i, c := range clients {
		m := wire.New(wire.Shell, "execute_request", c.session, nil, map[string]any{"code": fmt.Sprintf("print %d", i+1)})
		m.Header = []byte(strings.Replace(string(m.Header), wire.StringField(m.Header, "msg_id"), "same", 1))
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

// TestSupervisor_requestsEnd catches requests that stay in the table for ever: comm messages have no reply.
func TestSupervisor_requestsEnd(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	for range 100 {
		c.send(wire.Shell, "comm_msg", map[string]any{"comm_id": "x", "data": map[string]any{}})
	}
	c.result(c.execute("print 1"))
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.live != 0 || len(r.s.requests) != 0 {
		t.Errorf("%d requests are still open", r.s.live)
	}
}

func TestSupervisor_controlOvertakes(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	cell := c.execute("sleep 30s")
	r.until("busy", func(st Status) bool { return st.State == stateBusy })
	c.running(cell)
	// The copy of kernel_info answers, and the state shown afterwards is the cell's again.
	info := c.send(wire.Shell, "kernel_info_request", struct{}{})
	all := c.result(info)
	if _, ok := find(all, "kernel_info_reply", info); !ok {
		t.Error("no kernel_info_reply while the kernel is busy")
	}
	last := c.collect("busy of the cell", func(g got) bool { return g.msgType == "status" && g.parent == cell })
	if state := wire.StringField(last[len(last)-1].Content, "execution_state"); state != stateBusy {
		t.Errorf("state after kernel_info is %s", state)
	}
	onControl := c.send(wire.Control, "kernel_info_request", struct{}{})
	busyAgain := func(g got) bool {
		return g.msgType == "status" && g.parent == cell && wire.StringField(g.Content, "execution_state") == stateBusy
	}
	if all := c.result(onControl); !slices.ContainsFunc(all, busyAgain) { // the reply may come before it
		c.collect("busy behind an idle that is not the cell's", busyAgain)
	}
	if st := r.model().ExecutionState; st != stateBusy {
		t.Errorf("a control request made the kernel %s", st)
	}
	if status, body := r.request("POST", "/interrupt", "{}"); status != http.StatusNoContent {
		t.Fatalf("interrupt: %d %s", status, body)
	}
	reply, _ := find(c.result(cell), "execute_reply", cell)
	if wire.StringField(reply.Content, "status") != "error" {
		t.Errorf("interrupted cell replied %s", reply.Content)
	}
}

func TestSupervisor_interruptByMessage(t *testing.T) {
	r := startSupervisor(t, func(c *Config) { c.InterruptMode = "message" }).ready()
	c := r.dial(dialOption{session: "ann"})
	cell := c.execute("sleep 30s")
	c.running(cell)
	if status, body := r.request("POST", "/interrupt", ""); status != http.StatusNoContent {
		t.Fatalf("interrupt: %d %s", status, body)
	}
	c.result(cell)
}

func TestSupervisor_restart(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	before := r.until("idle", func(st Status) bool { return st.State == stateIdle })
	cell := c.execute("sleep 60s")
	r.until("busy", func(st Status) bool { return st.State == stateBusy })
	if status, body := r.request("POST", "/restart", "{}"); status != http.StatusOK {
		t.Fatalf("restart: %d %s", status, body)
	}
	next := c.execute("print 1") // at once: it waits for the new kernel, on the old websocket
	all := c.result(next)
	aborted, ok := find(all, "execute_reply", cell)
	if !ok || wire.StringField(aborted.Content, "status") != "aborted" {
		t.Errorf("the cell that ran was answered %s", aborted.Content)
	}
	after, _ := r.s.currentStatus()
	if after.Epoch != before.Epoch+1 || after.KernelPID == before.KernelPID {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

func TestSupervisor_crash(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	id := c.execute("crash")
	all := c.collect("restarting", func(g got) bool {
		return g.msgType == "status" && wire.StringField(g.Content, "execution_state") == stateRestarting
	})
	if text := output(all, id); !strings.Contains(text, "SIGKILL") {
		t.Errorf("the cell shows %q", text)
	}
	// JupyterLab drops what is queued when the session of the messages it receives changes.
	ours, _ := find(all, "stream", id)
	theirs, _ := find(all, "execute_input", id)
	if got, want := wire.StringField(ours.Header, "session"), wire.StringField(theirs.Header, "session"); got != want {
		t.Errorf("our notice is of session %q, the kernel's messages are of %q", got, want)
	}
	if reply, ok := find(all, "execute_reply", id); !ok || wire.StringField(reply.Content, "status") != "error" {
		t.Errorf("the crashed cell was answered %s", reply.Content)
	}
	next := c.execute("print 1")
	c.result(next)
	if m := r.model(); m.ExecutionState != stateIdle {
		t.Errorf("model after the crash is %+v", m)
	}
}

func TestSupervisor_crashesTooOften(t *testing.T) {
	r := startSupervisor(t, func(c *Config) { c.RestartLimit = 1 }).ready()
	c := r.dial(dialOption{session: "ann"})
	for range 2 {
		c.execute("exit 7")
		r.until("ended", func(st Status) bool { return st.State == stateRestarting || st.State == stateDead })
		st := r.until("up or dead", func(st Status) bool { return st.State == stateIdle || st.State == stateDead })
		if st.State == stateDead {
			break
		}
	}
	m := r.model()
	if m.ExecutionState != stateDead || !strings.Contains(m.Reason, "7") {
		t.Fatalf("model is %+v", m)
	}
	var end Ending
	b, err := os.ReadFile(r.cfg.EndFile)
	if err != nil || json.Unmarshal(b, &end) != nil || end.Reason != m.Reason || end.Stopped {
		t.Errorf("ending is %s, %v", b, err)
	}
	// Nothing that is sent to a dead kernel waits for ever.
	id := c.execute("print 1")
	reply, _ := find(c.result(id), "execute_reply", id)
	if wire.StringField(reply.Content, "ename") != "KernelDied" {
		t.Errorf("dead kernel answered %s", reply.Content)
	}
	if status, body := r.request("POST", "/restart", ""); status != http.StatusOK {
		t.Fatalf("restart of a dead kernel: %d %s", status, body)
	}
	r.ready()
	c.result(c.execute("print 1"))
	if _, err := os.Stat(r.cfg.EndFile); !os.IsNotExist(err) {
		t.Errorf("the record of the end is still there: %v", err)
	}
}

// TestSupervisor_banner: what a kernel says while it starts is no reason for its end. ipykernel tells how to connect.
func TestSupervisor_banner(t *testing.T) {
	r := startSupervisor(t, func(c *Config) {
		c.Argv = append([]string{"/bin/sh", "-c", `echo To connect another client: --existing x >&2; exec "$@"`, "sh"}, fakeKernelArgv()...)
		c.RestartLimit = 0
	}).ready()
	c := r.dial(dialOption{session: "ann"})
	c.execute("exit 4")
	st := r.until("dead", func(st Status) bool { return st.State == stateDead })
	if strings.Contains(st.Reason, "--existing") || !strings.Contains(st.Reason, "4") {
		t.Errorf("reason is %q", st.Reason)
	}
}

func TestSupervisor_startFails(t *testing.T) {
	for _, tc := range []struct {
		name string
		argv []string
		want string
	}{
		{"program missing", []string{"/nonexistent/python", "-f", "{connection_file}"}, "/nonexistent/python"},
		{"program exits at once", []string{"/bin/sh", "-c", "echo no such module >&2; exit 3"}, "no such module"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := startSupervisor(t, func(c *Config) { c.Argv = tc.argv })
			st := r.until("dead", func(st Status) bool { return st.State == stateDead })
			if !strings.Contains(st.Reason, tc.want) {
				t.Errorf("reason is %q", st.Reason)
			}
			if st.Epoch != 1 {
				t.Errorf("it was tried %d times", st.Epoch)
			}
		})
	}
}

func TestSupervisor_restartOfABrokenProgram(t *testing.T) {
	r := startSupervisor(t, func(c *Config) { c.Argv = []string{"/nonexistent/python"} })
	r.until("dead", func(st Status) bool { return st.State == stateDead })
	status, body := r.request("POST", "/restart", "")
	if status != http.StatusInternalServerError || !strings.Contains(body, "/nonexistent/python") {
		t.Errorf("restart: %d %s", status, body)
	}
}

func TestSupervisor_stop(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	st, _ := r.s.currentStatus()
	if status, body := r.request("DELETE", "", `{"reason":"it was idle for too long"}`); status != http.StatusNoContent {
		t.Fatalf("delete: %d %s", status, body)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", st.KernelPID)); !os.IsNotExist(err) {
		t.Errorf("the kernel's process is still there: %v", err)
	}
	for {
		if _, err := c.recv(); err != nil {
			if !websocket.IsCloseError(err, websocket.CloseNormalClosure) || !strings.Contains(err.Error(), "idle for too long") {
				t.Errorf("websocket ended with %v", err)
			}
			break
		}
	}
	select {
	case <-r.done:
	case <-time.After(testLimit):
		t.Fatal("the supervisor does not end")
	}
	var end Ending
	b, err := os.ReadFile(r.cfg.EndFile)
	if err != nil || json.Unmarshal(b, &end) != nil || !end.Stopped || end.Reason != "it was idle for too long" {
		t.Errorf("ending is %s, %v", b, err)
	}
}

// TestSupervisor_bigMessages: 100 MB both ways; to a jupyter server a notice instead of what would end its connection.
func TestSupervisor_bigMessages(t *testing.T) {
	size := 100_000_000
	if raceEnabled {
		size = 12_000_000 // the detector's shadow memory makes the full size take a minute; it runs without it, too
	}
	r := startSupervisor(t, func(c *Config) { c.LogLimit = 300 << 20 }).ready()
	relay := r.dial(dialOption{session: "relay", header: http.Header{"User-Agent": {"Tornado/6.5"}}})
	bothFramings(t, func(t *testing.T, v1 bool) {
		c := r.dial(dialOption{session: fmt.Sprint("big", v1), v1: v1})
		id := c.execute(fmt.Sprintf("big %d", size))
		big, ok := find(c.result(id), "display_data", id)
		if !ok || big.Size() < size {
			t.Errorf("display data has %d bytes", big.Size())
		}
		c.result(c.send(wire.Shell, "execute_request", map[string]string{"code": "#" + strings.Repeat("x", size)}))
		rid := relay.execute("print 1")
		all := relay.result(rid)
		if _, ok := find(all, "display_data", ""); ok {
			t.Error("the relay was sent the big message")
		}
		if text := output(all, id); !strings.Contains(text, "display_data") {
			t.Errorf("the relay was told %q", text)
		}
	})
}

func TestSupervisor_buffers(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	relay := r.dial(dialOption{session: "relay", header: http.Header{"User-Agent": {"Tornado/6.5"}}})
	relay.result(relay.execute("print 1"))
	bothFramings(t, func(t *testing.T, v1 bool) {
		c := r.dial(dialOption{session: fmt.Sprint("buf", v1), v1: v1})
		id := c.execute("buffers 1000")
		comm, _ := find(c.result(id), "comm_msg", id)
		if len(comm.Buffers) != 1 || len(comm.Buffers[0]) != 1000 {
			t.Errorf("%d buffers", len(comm.Buffers))
		}
		theirs := relay.collect("comm", func(g got) bool { return g.msgType == "comm_msg" && g.parent == id })
		if b := theirs[len(theirs)-1].Buffers; len(b) != 0 {
			t.Error("a binary frame went to a jupyter server")
		}
	})
}

func TestSupervisor_malformed(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	other := r.dial(dialOption{session: "other"})
	for _, tc := range []struct {
		name string
		v1   bool
		kind int
		data string
		code int
	}{
		{"text that is not JSON", false, websocket.TextMessage, "hello", websocket.CloseInvalidFramePayloadData},
		{"binary garbage", false, websocket.BinaryMessage, "\xff\xff\xff\xff\x00", websocket.CloseInvalidFramePayloadData},
		{"v1 with 2^62 offsets", true, websocket.BinaryMessage, "\x00\x00\x00\x00\x00\x00\x00\x40" + strings.Repeat("\x00", 80), websocket.CloseInvalidFramePayloadData},
		{"text on v1", true, websocket.TextMessage, "{}", websocket.CloseUnsupportedData},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := r.dial(dialOption{session: "bad", v1: tc.v1})
			if err := c.ws.WriteMessage(tc.kind, []byte(tc.data)); err != nil {
				t.Fatal(err)
			}
			for {
				if _, err := c.recv(); err != nil {
					if !websocket.IsCloseError(err, tc.code) {
						t.Errorf("ended with %v, want close code %d", err, tc.code)
					}
					break
				}
			}
			other.result(other.execute("print 1"))
		})
	}
}

// TestSupervisor_slowReader: a client that does not read is told how much it missed, gets every reply, costs no more
// memory than the log's limit, and delays nobody.
func TestSupervisor_slowReader(t *testing.T) {
	r := startSupervisor(t, func(c *Config) { c.LogLimit = 4 << 20 }).ready()
	slow := r.dial(dialOption{session: "slow"})
	id := slow.execute("print 1")
	slow.result(id)
	const displays = 40000
	cell := slow.execute(fmt.Sprintf("flood %d", displays))
	fast := r.dial(dialOption{session: "fast"})
	fast.result(fast.execute("print 1")) // behind the flood on shell: when it is answered the flood is over
	if size, limit := r.s.log.sizes(); size > limit {
		t.Errorf("log holds %d bytes, its limit is %d", size, limit)
	}
	all := slow.result(cell)
	seen, missing := 0, 0
	for _, g := range all {
		if g.msgType == "display_data" {
			seen++
		}
		if g.msgType == "stream" {
			var n int
			if _, err := fmt.Sscanf(strings.TrimPrefix(g.text(), "[ekg] "), "%d messages", &n); err == nil {
				missing += n
			}
		}
	}
	if missing == 0 || seen == displays {
		t.Fatalf("nothing was lost: %d seen, %d missing; the test proves nothing", seen, missing)
	}
	if seen+missing < displays {
		t.Errorf("%d seen and %d announced as missing of %d", seen, missing, displays)
	}
}

// TestSupervisor_lostIdle: where the kernel's sockets lose the end of a cell, the cell ends nevertheless and says so.
func TestSupervisor_lostIdle(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	id := c.execute("lose idle")
	all := c.result(id)
	if text := output(all, id); !strings.Contains(text, "lost") {
		t.Errorf("the cell shows %q", text)
	}
	r.until("idle", func(st Status) bool { return st.State == stateIdle })
}

func TestSupervisor_newSessionSeesThePresent(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	c.result(c.execute("print 5"))
	cell := c.execute("sleep 3s")
	r.until("busy", func(st Status) bool { return st.State == stateBusy })
	late := r.dial(dialOption{session: "late"})
	first, err := late.recv()
	if err != nil {
		t.Fatal(err)
	}
	if first.msgType != "status" || first.parent != cell || wire.StringField(first.Content, "execution_state") != stateBusy {
		t.Errorf("a new page first gets %s %s for %s", first.msgType, first.Content, first.parent)
	}
	all := late.collect("idle", func(g got) bool { return g.msgType == "status" && g.parent == cell })
	if text := output(all, ""); text != "" {
		t.Errorf("a new page got old output %q", text)
	}
}

func TestSupervisor_routes(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	for _, tc := range []struct {
		method, path string
		header       http.Header
		status       int
	}{
		{"GET", "/api/kernels/" + testKernelID, nil, 200},
		{"GET", "/api/kernels/00000000-0000-4000-8000-0000000000bb", nil, 421},
		{"DELETE", "/api/kernels/00000000-0000-4000-8000-0000000000bb", nil, 421},
		{"GET", "/api/kernels/" + testKernelID + "/channels", nil, 400},
		{"GET", "/", nil, 404},
		{"POST", "/api/kernels/" + testKernelID + "/interrupt", http.Header{HeaderRight: {"read"}}, 403},
		{"DELETE", "/api/kernels/" + testKernelID, http.Header{HeaderRight: {"read"}}, 403},
		{"PUT", "/api/kernels/" + testKernelID + "/limits", nil, 400},
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
		resp.Body.Close()
		if resp.StatusCode != tc.status {
			t.Errorf("%s %s: %d, want %d", tc.method, tc.path, resp.StatusCode, tc.status)
		}
	}
}

func TestSupervisor_readerOnlyReads(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	reader := r.dial(dialOption{session: "r", header: http.Header{HeaderRight: {"read"}, "User-Agent": {"x"}}})
	reader.result(reader.send(wire.Shell, "kernel_info_request", struct{}{}))
	id := reader.execute("print 1")
	all := reader.result(id)
	if reply, _ := find(all, "execute_reply", id); wire.StringField(reply.Content, "ename") != "Forbidden" {
		t.Errorf("a reader's cell was answered %s", reply.Content)
	}
	if _, ran := find(all, "execute_input", id); ran {
		t.Error("a reader's cell ran")
	}
}

// TestSupervisor_blackHole: a peer that vanishes without a word is given up, and its session goes on elsewhere.
func TestSupervisor_blackHole(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	hole := &stuckConn{release: make(chan struct{})}
	c := r.dial(dialOption{session: "ann", conn: func(n net.Conn) net.Conn { hole.Conn = n; return hole }})
	c.result(c.execute("print 1"))
	id := c.execute("print 200")
	r.until("idle", func(st Status) bool { return st.State == stateIdle && st.LogBytes > 0 })
	back := r.dial(dialOption{session: "ann"}) // the old connection still stands
	all := back.result(id)
	if n := strings.Count(output(all, id), "\n"); n != 200 {
		t.Errorf("%d of 200 lines came on the new connection", n)
	}
	close(hole.release)
}

// stuckConn is a client's connection; release exists to keep it open without reading.
type stuckConn struct {
	net.Conn
	release chan struct{}
}
