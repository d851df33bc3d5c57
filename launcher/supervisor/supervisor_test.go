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
	if m := r.model(); m.Connections != 1 {
		t.Errorf("%d connections are counted, want only the one that speaks", m.Connections)
	}
	_ = unread.ws.Close()
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
	reply := jupyter.New(
		jupyter.Stdin,
		"input_reply",
		"ann",
		ask.Header,
		map[string]string{"value": "Ann", "status": "ok"},
	)
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
		m := jupyter.New(
			jupyter.Shell,
			"execute_request",
			c.session,
			nil,
			map[string]any{"code": fmt.Sprintf("print %d", i+1)},
		)
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
	if r.s.requests.Len() != 0 {
		t.Errorf("%d requests are still open", r.s.requests.Len())
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

func TestSupervisor_Restart(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	before := r.until("idle", func(st api.Status) bool { return st.State == api.Idle })
	cell := c.execute("sleep 60s")
	r.until("busy", func(st api.Status) bool { return st.State == api.Busy })
	if status, body := r.request("POST", "/restart", "{}"); status != http.StatusOK {
		t.Fatalf("restart: %d %s", status, body)
	}
	next := c.execute("print 1") // at once: it waits for the new kernel, on the old websocket
	all := c.result(next)
	aborted, ok := find(all, "execute_reply", cell)
	if !ok || jupyter.StringField(aborted.Content, "status") != "aborted" {
		t.Errorf("the cell that ran was answered %s", aborted.Content)
	}
	after, _ := r.s.currentStatus()
	if after.Epoch != before.Epoch+1 || after.KernelPID == before.KernelPID {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

func TestSupervisor_Crash(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	id := c.execute("crash")
	all := c.collect("restarting", func(g got) bool {
		return g.msgType == "status" && jupyter.StringField(g.Content, "execution_state") == string(api.Restarting)
	})
	if text := output(all, id); !strings.Contains(text, "SIGKILL") {
		t.Errorf("the cell shows %q", text)
	}
	// JupyterLab drops queued messages when the session of the messages that it receives changes.
	ours, _ := find(all, "stream", id)
	theirs, _ := find(all, "execute_input", id)
	if got, want := jupyter.StringField(ours.Header, "session"),
		jupyter.StringField(theirs.Header, "session"); got != want {
		t.Errorf("our notice is of session %q, the kernel's messages are of %q", got, want)
	}
	if reply, ok := find(all, "execute_reply", id); !ok || jupyter.StringField(reply.Content, "status") != "error" {
		t.Errorf("the crashed cell was answered %s", reply.Content)
	}
	next := c.execute("print 1")
	c.result(next)
	if m := r.model(); m.ExecutionState != api.Idle {
		t.Errorf("model after the crash is %+v", m)
	}
}

func TestSupervisor_CrashesTooOften(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.RestartLimit = 1 }).ready()
	c := r.dial(dialOption{session: "ann"})
	for range 2 {
		c.execute("exit 7")
		r.until("ended", func(st api.Status) bool { return st.State == api.Restarting || st.State == api.Dead })
		st := r.until("up or dead", func(st api.Status) bool { return st.State == api.Idle || st.State == api.Dead })
		if st.State == api.Dead {
			break
		}
	}
	m := r.model()
	if m.ExecutionState != api.Dead || !strings.Contains(m.Reason, "7") {
		t.Fatalf("model is %+v", m)
	}
	var end api.Ending
	b, err := os.ReadFile(r.cfg.EndFile)
	if err != nil || json.Unmarshal(b, &end) != nil || end.Reason != m.Reason || end.Stopped {
		t.Errorf("ending is %s, %v", b, err)
	}
	// Every message to a dead kernel is answered.
	id := c.execute("print 1")
	reply, _ := find(c.result(id), "execute_reply", id)
	if jupyter.StringField(reply.Content, "ename") != "KernelDied" {
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

// TestSupervisor_Banner: output of a kernel's start is not the reason for its end. ipykernel prints how to connect.
func TestSupervisor_Banner(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) {
		c.Argv = append(
			[]string{"/bin/sh", "-c", `echo To connect another client: --existing x >&2; exec "$@"`, "sh"},
			fakeKernelArgv()...)
		c.RestartLimit = 0
	}).ready()
	c := r.dial(dialOption{session: "ann"})
	c.execute("exit 4")
	st := r.until("dead", func(st api.Status) bool { return st.State == api.Dead })
	if strings.Contains(st.Reason, "--existing") || !strings.Contains(st.Reason, "4") {
		t.Errorf("reason is %q", st.Reason)
	}
}

func TestSupervisor_StartFails(t *testing.T) {
	for _, tc := range []struct {
		name string
		argv []string
		want string
	}{
		{"program missing", []string{"/nonexistent/python", "-f", "{connection_file}"}, "/nonexistent/python"},
		{"program exits at once", []string{"/bin/sh", "-c", "echo no such module >&2; exit 3"}, "no such module"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := startSupervisor(t, func(c *api.Config) { c.Argv = tc.argv })
			st := r.until("dead", func(st api.Status) bool { return st.State == api.Dead })
			if !strings.Contains(st.Reason, tc.want) {
				t.Errorf("reason is %q", st.Reason)
			}
			if st.Epoch != 1 {
				t.Errorf("it was tried %d times", st.Epoch)
			}
		})
	}
}

func TestSupervisor_RestartOfABrokenProgram(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.Argv = []string{"/nonexistent/python"} })
	r.until("dead", func(st api.Status) bool { return st.State == api.Dead })
	status, body := r.request("POST", "/restart", "")
	if status != http.StatusInternalServerError || !strings.Contains(body, "/nonexistent/python") {
		t.Errorf("restart: %d %s", status, body)
	}
}

func TestSupervisor_Stop(t *testing.T) {
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
			if !websocket.IsCloseError(err, websocket.CloseNormalClosure) ||
				!strings.Contains(err.Error(), "idle for too long") {
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
	var end api.Ending
	b, err := os.ReadFile(r.cfg.EndFile)
	if err != nil || json.Unmarshal(b, &end) != nil || !end.Stopped || end.Reason != "it was idle for too long" {
		t.Errorf("ending is %s, %v", b, err)
	}
}

// TestSupervisor_BigMessages: 100 MB pass in both directions. A jupyter server gets a notice instead of a message that
// would end its connection.
func TestSupervisor_BigMessages(t *testing.T) {
	size := 100_000_000
	if raceEnabled {
		size = 12_000_000 // the detector's shadow memory makes the full size take a minute; it runs without it, too
	}
	r := startSupervisor(t, func(c *api.Config) { c.LogLimit = 300 << 20 }).ready()
	relay := r.dial(dialOption{session: "relay", header: http.Header{"User-Agent": {"Tornado/6.5"}}})
	bothFramings(t, func(t *testing.T, v1 bool) {
		c := r.dial(dialOption{session: fmt.Sprint("big", v1), v1: v1})
		id := c.execute(fmt.Sprintf("big %d", size))
		big, ok := find(c.result(id), "display_data", id)
		if !ok || big.Size() < size {
			t.Errorf("display data has %d bytes", big.Size())
		}
		c.result(c.send(jupyter.Shell, "execute_request", map[string]string{"code": "#" + strings.Repeat("x", size)}))
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

func TestSupervisor_Buffers(t *testing.T) {
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

func TestSupervisor_Malformed(t *testing.T) {
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
		{"v1 with 2^62 offsets", true, websocket.BinaryMessage, "\x00\x00\x00\x00\x00\x00\x00\x40" +
			strings.Repeat("\x00", 80), websocket.CloseInvalidFramePayloadData},
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

// TestSupervisor_SlowReader: a client that does not read gets every reply, and a notice of how much it missed. It costs
// no more memory than the log's limit, and delays no other client.
func TestSupervisor_SlowReader(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.LogLimit = 4 << 20 }).ready()
	slow := r.dial(dialOption{session: "slow"})
	id := slow.execute("print 1")
	slow.result(id)
	const displays = 40000
	cell := slow.execute(fmt.Sprintf("flood %d", displays))
	fast := r.dial(dialOption{session: "fast"})
	fast.result(fast.execute("print 1")) // behind the flood on shell: when it is answered the flood is over
	if size, limit := r.s.log.Sizes(); size > limit {
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

// TestSupervisor_LostIdle: if the kernel's sockets lose the end of a cell, the cell ends nevertheless, with a notice.
func TestSupervisor_LostIdle(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	id := c.execute("lose idle")
	all := c.result(id)
	if text := output(all, id); !strings.Contains(text, "lost") {
		t.Errorf("the cell shows %q", text)
	}
	r.until("idle", func(st api.Status) bool { return st.State == api.Idle })
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
		{"GET", "/api/kernels/" + testKernelID, nil, 200},
		{"GET", "/api/kernels/00000000-0000-4000-8000-0000000000bb", nil, 421},
		{"DELETE", "/api/kernels/00000000-0000-4000-8000-0000000000bb", nil, 421},
		{"GET", "/api/kernels/" + testKernelID + "/channels", nil, 400},
		{"GET", "/", nil, 404},
		{"POST", "/api/kernels/" + testKernelID + "/interrupt", http.Header{api.HeaderRight: {"read"}}, 403},
		{"DELETE", "/api/kernels/" + testKernelID, http.Header{api.HeaderRight: {"read"}}, 403},
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

// TestSupervisor_BlackHole: a peer that vanishes silently is given up, and its session continues on another connection.
func TestSupervisor_BlackHole(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	hole := &stuckConn{release: make(chan struct{})}
	c := r.dial(dialOption{session: "ann", conn: func(n net.Conn) net.Conn { hole.Conn = n; return hole }})
	c.result(c.execute("print 1"))
	id := c.execute("print 200")
	r.until("idle", func(st api.Status) bool { return st.State == api.Idle && st.LogBytes > 0 })
	back := r.dial(dialOption{session: "ann"}) // the old connection is still open
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
