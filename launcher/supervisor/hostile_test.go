package supervisor

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/connection"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

var reads = http.Header{api.HeaderRight: {"read"}, "User-Agent": {"x"}}

// TestReader_SameID: a rejected request must not end another client's request that has the same id.
func TestReader_SameID(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	ann := r.dial(dialOption{session: "ann"})
	cell := ann.execute("sleep 30s")
	ann.running(cell)
	reader := r.dial(dialOption{session: "r", header: reads})
	m := jupyter.New(jupyter.Shell, "execute_request", "r", nil, map[string]string{"code": "print 1"})
	m.Header = []byte(strings.Replace(string(m.Header), jupyter.StringField(m.Header, "msg_id"), cell, 1))
	reader.sendMessage(&m)
	all := reader.collect("refusal", func(g got) bool { return g.msgType == "execute_reply" })
	if ename := jupyter.StringField(all[len(all)-1].Content, "ename"); ename != "Forbidden" {
		t.Errorf("a reader's request was answered with %q", ename)
	}
	if st := r.model().ExecutionState; st != api.Busy {
		t.Errorf("a reader made the kernel %s", st)
	}
	r.request("POST", "/interrupt", "")
	reply, _ := find(ann.result(cell), "execute_reply", cell)
	if ename := jupyter.StringField(reply.Content, "ename"); ename != "KeyboardInterrupt" {
		t.Errorf("the cell was answered with %q, want the kernel's own answer", ename)
	}
}

// TestReader_Disguise: a reader's message must not reach a kernel in a form that the kernel could take for another
// request. Examples are a header whose member names are written with escapes, and an answer on stdin.
func TestReader_Disguise(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	reader := r.dial(dialOption{session: "r", header: reads})
	m := jupyter.New(jupyter.Shell, "kernel_info_request", "r", nil, map[string]string{"code": "print 1"})
	m.Header = []byte(strings.Replace(string(m.Header), `"username"`, `"msg\u005ftype":"execute_request","username"`, 1))
	reader.sendMessage(&m)
	reply, ok := find(reader.result(jupyter.StringField(m.Header, "msg_id")), "kernel_info_reply", "")
	if !ok || strings.Contains(string(reply.Parent), "execute_request") {
		t.Errorf("the kernel was sent the header %s", reply.Parent)
	}

	ann := r.dial(dialOption{session: "ann"})
	cell := ann.execute("input Name?")
	ann.collect("input_request", func(g got) bool { return g.msgType == "input_request" })
	answer := jupyter.New(jupyter.Stdin, "kernel_info_request", "r", nil, map[string]string{"value": "Mallory"})
	reader.sendMessage(&answer)
	reader.result(reader.send(jupyter.Control, "kernel_info_request", struct{}{}))
	reply2 := jupyter.New(jupyter.Stdin, "input_reply", "ann", nil, map[string]string{"value": "Ann"})
	ann.sendMessage(&reply2)
	if text := output(ann.result(cell), cell); text != "Ann\n" {
		t.Errorf("the cell was given %q", text)
	}
}

// TestReader_Session: every message that a page caused shows the page's session id. The id alone must not be enough to
// get the page's replies or to acknowledge them.
func TestReader_Session(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	ann := r.dial(dialOption{session: "ann"})
	reader := r.dial(dialOption{session: "ann", header: reads})
	other := r.dial(dialOption{session: "ann", header: http.Header{api.HeaderUser: {"bob"}, "User-Agent": {"x"}}})
	cell := ann.execute("print 1")
	ann.result(cell)
	for _, c := range []*client{reader, other} {
		for _, g := range c.result(c.send(jupyter.Shell, "kernel_info_request", struct{}{})) {
			if g.msgType == "execute_reply" {
				t.Error("another client got ann's reply")
			}
		}
	}
}

// TestSupervisor_MalformedHeader: a client's header becomes the parent_header of messages to all clients. It must not
// break their JSON.
func TestSupervisor_MalformedHeader(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	for name, header := range map[string]string{
		"brackets that do not match": `{"msg_id":"x","msg_type":"execute_request","e":[}}`,
		"an unknown value":           `{"msg_id":"x","msg_type":"execute_request","e":bogus}`,
		"far too long":               `{"msg_id":"x","msg_type":"execute_request","e":"` + strings.Repeat("x", 1<<20) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := r.dial(dialOption{session: "bad", v1: true})
			m := jupyter.New(jupyter.Shell, "execute_request", "bad", nil, map[string]string{"code": "print 1"})
			m.Header = []byte(header)
			c.sendMessage(&m)
			for {
				if _, err := c.recv(); err != nil {
					if !websocket.IsCloseError(err, websocket.CloseInvalidFramePayloadData) {
						t.Errorf("ended with %v", err)
					}
					return
				}
			}
		})
	}
}

// TestSupervisor_ForgetsBigRequests: a request that waits for its answer must not keep its content in memory.
func TestSupervisor_ForgetsBigRequests(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	c.send(jupyter.Shell, "execute_request", map[string]string{"code": "sleep 30s\n#" + strings.Repeat("x", 1<<20)})
	r.until("busy", func(st api.Status) bool { return st.State == api.Busy })
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	for q := range r.s.clients.requests.Open() {
		if cap(q.Header) > 64<<10 {
			t.Errorf("the header of a request keeps %d bytes alive", cap(q.Header))
		}
	}
}

// TestSupervisor_ForgetsConnections: the log holds the sessions of its entries, and must not hold their connections.
func TestSupervisor_ForgetsConnections(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{})
	c.result(c.execute("print 1"))
	var held weak.Pointer[clientConn]
	r.s.mu.Lock()
	for served := range r.s.clients.connected {
		held = weak.Make(served)
	}
	r.s.mu.Unlock()
	_ = c.ws.Close()
	r.until("left", func(st api.Status) bool { return st.Connections == 0 })
	for deadline := time.Now().Add(5 * time.Second); held.Value() != nil; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatal("a connection that has ended is still held")
		}
		runtime.Gosched()
	}
}

// TestSupervisor_ForgetsOrphans: requests without an answer must not pile up when their sessions have ended.
func TestSupervisor_ForgetsOrphans(t *testing.T) {
	s := New(api.Config{LogLimit: 1 << 20}, "test", quiet())
	for i := range 3 {
		c := &clientConn{s: s}
		if err := s.clients.attach(c, ""); err != nil {
			t.Fatal(err)
		}
		for n := range maxOutstanding {
			m := jupyter.New(jupyter.Shell, "odd_request", "", nil, struct{}{})
			s.clients.register(c.session, &m, jupyter.Header{MsgID: fmt.Sprint(i, n), MsgType: "odd_request"})
		}
		s.clients.detach(c, session.End{})
	}
	if s.clients.requests.Len() > maxOutstanding {
		t.Errorf("%d requests of no session are kept, want at most %d", s.clients.requests.Len(), maxOutstanding)
	}
	s.clients.abortAll("error", "KernelDied", "test")
	if s.clients.requests.Len() != 0 {
		t.Errorf("%d requests, %d of no session, are left", s.clients.requests.Len(), s.clients.requests.Pending(noSession))
	}
}

// TestSupervisor_NoErrorForKernelInfo: @jupyterlab/services gives up after an error reply to kernel_info_request.
func TestSupervisor_NoErrorForKernelInfo(t *testing.T) {
	s := New(api.Config{LogLimit: 1 << 20}, "test", quiet())
	c := &clientConn{s: s}
	if err := s.clients.attach(c, "ann"); err != nil {
		t.Fatal(err)
	}
	start := s.log.Tail()
	for _, msgType := range []string{"kernel_info_request", "execute_request"} {
		m := jupyter.New(jupyter.Shell, msgType, "ann", nil, struct{}{})
		s.clients.register(c.session, &m, jupyter.Header{MsgID: msgType, MsgType: msgType})
	}
	s.clients.abortAll("error", "KernelDied", "test")
	entries, _, _ := s.log.Read(start, c.session.Number, 1<<20, nil)
	var types []string
	for _, e := range entries {
		types = append(types, jupyter.StringField(e.Message.Header, "msg_type"))
	}
	if want := []string{"status", "execute_reply", "status"}; !slices.Equal(types, want) {
		t.Errorf("got %v, want %v", types, want)
	}
}

// TestSession_RestartIsAFloor: a late answer to an old ping must not move a session back before a restart.
func TestSession_RestartIsAFloor(t *testing.T) {
	s := New(api.Config{LogLimit: 1 << 20}, "test", quiet())
	c := &clientConn{s: s}
	if err := s.clients.attach(c, "ann"); err != nil {
		t.Fatal(err)
	}
	s.clients.sessions.Activate(c.attachment)
	c.attachment.NoteInput()
	old := s.log.Append(allSessions, numbered(1, 1), false)
	s.log.Append(allSessions, numbered(2, 1), false)
	s.beginLife(nil, &operation{})
	tail := s.log.Tail()
	c.attachment.Acknowledge(old, 1)
	if got := c.session.Resume(); got != tail {
		t.Errorf("session resumes at %v, the new life begins behind %v", got, tail)
	}
	later := s.log.Append(allSessions, numbered(3, 1), false)
	c.attachment.Acknowledge(later, 2)
	if got := c.session.Resume(); got != later {
		t.Errorf("session resumes at %v, want %v", got, later)
	}
}

// TestConn_PongInAFlood: a peer's pings are answered even if there is always more to send.
func TestConn_PongInAFlood(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann", v1: true})
	c.result(c.execute("print 1"))
	const entries = 10000
	for n := range entries {
		r.s.mu.Lock()
		r.s.log.Append(allSessions, numbered(n, 1000), false)
		r.s.mu.Unlock()
	}
	if err := c.ws.WriteControl(websocket.PingMessage, []byte("x"), time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	seen, at := 0, 0
	c.ws.SetPongHandler(func(string) error { at = seen; return nil })
	for ; seen < entries; seen++ {
		if _, err := c.recv(); err != nil {
			t.Fatal(err)
		}
	}
	if at == 0 || at > entries*3/4 {
		t.Errorf("the pong came after %d messages of %d", at, entries)
	}
}

// TestSupervisor_StopWithDeafClient: a client that does not read must not keep a stopped kernel's supervisor alive.
func TestSupervisor_StopWithDeafClient(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := startSupervisor(t, nil).ready()
	deaf := r.dial(dialOption{session: "deaf"})
	ann := r.dial(dialOption{session: "ann"})
	ann.result(ann.execute("flood 20000"))
	begun := time.Now()
	if status, body := r.request("DELETE", "", ""); status != http.StatusNoContent {
		t.Fatalf("delete: %d %s", status, body)
	}
	select {
	case <-r.done:
	case <-time.After(testLimit):
		t.Fatal("the supervisor does not end")
	}
	if took := time.Since(begun); took > connection.EndTimeout+5*time.Second {
		t.Errorf("it took %v", took)
	}
	_ = deaf.ws.Close()
}

// TestSupervisor_Oversized: a message over the limit ends its connection with the code that says so.
func TestSupervisor_Oversized(t *testing.T) {
	r := startSupervisorTuned(t, nil, func(s *Supervisor) { s.maxMessage = 1 << 20 }).ready()
	bothFramings(t, func(t *testing.T, v1 bool) {
		c := r.dial(dialOption{session: "big", v1: v1})
		c.result(c.send(jupyter.Shell, "execute_request", map[string]string{"code": "#" + strings.Repeat("x", 1<<19)}))
		c.send(jupyter.Shell, "execute_request", map[string]string{"code": "#" + strings.Repeat("x", 8<<20)})
		for {
			if _, err := c.recv(); err != nil {
				if !websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
					t.Errorf("ended with %v", err)
				}
				return
			}
		}
	})
}

// TestSupervisor_LateFailure: a dead kernel's reason says why it died, even if the reason was a slow start before.
func TestSupervisor_LateFailure(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := startSupervisorTuned(t, func(c *api.Config) {
		c.Argv = []string{"/bin/sh", "-c", "sleep 0.5; echo no such module >&2; exit 3"}
	}, func(s *Supervisor) { s.slowStart = 50 * time.Millisecond })
	r.until("slow", func(st api.Status) bool { return st.State == api.Starting && st.Reason != "" })
	st := r.until("dead", func(st api.Status) bool { return st.State == api.Dead })
	if !strings.Contains(st.Reason, "no such module") {
		t.Errorf("reason is %q", st.Reason)
	}
}

// TestBridge_Complaints: a kernel's bad messages must not fill the log and the memory with complaints.
func TestBridge_Complaints(t *testing.T) {
	s := New(api.Config{LogLimit: 1 << 20}, "test", quiet())
	b := &bridge{log: s.logger, signer: jupyter.NewSigner([]byte("key")), deliver: s.deliver}
	for n := range 1000 {
		b.parse(jupyter.IOPub, make([][]byte, n))
		b.parse(jupyter.IOPub, append([][]byte{[]byte(jupyter.Delimiter)}, make([][]byte, n%5)...))
		b.parse(jupyter.IOPub, append([][]byte{[]byte(jupyter.Delimiter)}, make([][]byte, 5+n)...))
	}
	kinds := 0
	b.complaints.Range(func(any, any) bool { kinds++; return true })
	if kinds == 0 || kinds > 8 {
		t.Errorf("%d kinds of complaints are remembered", kinds)
	}
}

// TestServer_SlowBody: a body that never comes must not hold a request without end.
func TestServer_SlowBody(t *testing.T) {
	s := New(api.Config{KernelID: testKernelID, LogLimit: 1 << 20}, "test", quiet())
	for method, route := range map[string]string{"DELETE": "", "PUT": "/limits"} {
		w := &deadlineWriter{header: http.Header{}}
		left := time.Duration(0)
		body := readerFunc(func([]byte) (int, error) {
			left = time.Until(w.deadline)
			return 0, os.ErrDeadlineExceeded
		})
		req, err := http.NewRequest(method, "http://x/api/kernels/"+testKernelID+route, body)
		if err != nil {
			t.Fatal(err)
		}
		if s.Handler().ServeHTTP(w, req); w.status != http.StatusBadRequest {
			t.Errorf("%s: a body that did not come is answered with %d", method, w.status)
		}
		if left <= 0 || left > time.Minute {
			t.Errorf("%s: a body may take %v", method, left)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// TestStatus_HalfOpen: a gateway that has vanished must not hold a status stream without end.
func TestStatus_HalfOpen(t *testing.T) {
	s := New(api.Config{KernelID: testKernelID, LogLimit: 1 << 20}, "test", quiet())
	w := &deadlineWriter{header: http.Header{}}
	req, err := http.NewRequest("GET", "http://x/api/kernels/"+testKernelID+"/status", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.endClients("test")
	s.Handler().ServeHTTP(w, req)
	if left := time.Until(w.deadline); left < api.StatusInterval || left > 4*api.StatusInterval {
		t.Errorf("a line may take %v", left)
	}
	var st api.Status
	if err := json.Unmarshal([]byte(w.body.String()), &st); err != nil {
		t.Errorf("%v in %q", err, w.body.String())
	}
}

// deadlineWriter is a response that remembers its last deadline.
type deadlineWriter struct {
	header   http.Header
	body     strings.Builder
	status   int
	deadline time.Time
}

func (w *deadlineWriter) Header() http.Header                { return w.header }
func (w *deadlineWriter) Write(b []byte) (int, error)        { return w.body.Write(b) }
func (w *deadlineWriter) WriteHeader(status int)             { w.status = status }
func (w *deadlineWriter) Flush()                             {}
func (w *deadlineWriter) SetWriteDeadline(t time.Time) error { w.deadline = t; return nil }
func (w *deadlineWriter) SetReadDeadline(t time.Time) error  { w.deadline = t; return nil }

// TestSupervisor_BadFrames: a peer that sends invalid frames gets a close frame. A reset must not destroy that frame.
func TestSupervisor_BadFrames(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	ann := r.dial(dialOption{session: "ann"})
	const mask = "\x00\x00\x00\x00"
	for name, frame := range map[string]string{
		"not masked": "\x81\x02{}", "a reserved bit": "\xc1\x82" + mask + "{}", "a reserved kind": "\x83\x80" + mask,
		"a ping that is too long": "\x89\xfe\x00\x80" + mask, "the rest of nothing": "\x80\x80" + mask,
		"within a message":     "\x01\x81" + mask + "{" + "\x81\x81" + mask + "}",
		"an impossible length": "\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff" + mask,
	} {
		for _, behind := range []string{"", strings.Repeat("x", 100<<10)} {
			c := r.dial(dialOption{session: "bad"})
			if _, err := c.ws.NetConn().Write([]byte(frame + behind)); err != nil {
				t.Logf("%s: %v", name, err) // it has hung up meanwhile
			}
			for {
				if _, err := c.recv(); err != nil {
					if !websocket.IsCloseError(err, websocket.CloseProtocolError, websocket.CloseMessageTooBig) {
						t.Errorf("%s: ended with %v", name, err)
					}
					break
				}
			}
			_ = c.ws.Close()
		}
	}
	ann.result(ann.execute("print 1"))
}
