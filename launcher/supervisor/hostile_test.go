package supervisor

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

var reads = http.Header{HeaderRight: {"read"}, "User-Agent": {"x"}}

// TestReader_sameID: a request that is refused must not be taken for another's of the same id, which would end it.
func TestReader_sameID(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	ann := r.dial(dialOption{session: "ann"})
	cell := ann.execute("sleep 30s")
	ann.running(cell)
	reader := r.dial(dialOption{session: "r", header: reads})
	m := wire.New(wire.Shell, "execute_request", "r", nil, map[string]string{"code": "print 1"})
	m.Header = []byte(strings.Replace(string(m.Header), wire.StringField(m.Header, "msg_id"), cell, 1))
	reader.sendMessage(&m)
	all := reader.collect("refusal", func(g got) bool { return g.msgType == "execute_reply" })
	if ename := wire.StringField(all[len(all)-1].Content, "ename"); ename != "Forbidden" {
		t.Errorf("a reader's request was answered with %q", ename)
	}
	if st := r.model().ExecutionState; st != stateBusy {
		t.Errorf("a reader made the kernel %s", st)
	}
	r.request("POST", "/interrupt", "")
	reply, _ := find(ann.result(cell), "execute_reply", cell)
	if ename := wire.StringField(reply.Content, "ename"); ename != "KeyboardInterrupt" {
		t.Errorf("the cell was answered with %q, want the kernel's own answer", ename)
	}
}

// TestReader_disguise: what a reader may send must not reach a kernel in a form that the kernel could read as something
// else: a header whose member names are written with escapes, or an answer on stdin.
func TestReader_disguise(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	reader := r.dial(dialOption{session: "r", header: reads})
	m := wire.New(wire.Shell, "kernel_info_request", "r", nil, map[string]string{"code": "print 1"})
	m.Header = []byte(strings.Replace(string(m.Header), `"username"`, `"msg\u005ftype":"execute_request","username"`, 1))
	reader.sendMessage(&m)
	reply, ok := find(reader.result(wire.StringField(m.Header, "msg_id")), "kernel_info_reply", "")
	if !ok || strings.Contains(string(reply.Parent), "execute_request") {
		t.Errorf("the kernel was sent the header %s", reply.Parent)
	}

	ann := r.dial(dialOption{session: "ann"})
	cell := ann.execute("input Name?")
	ann.collect("input_request", func(g got) bool { return g.msgType == "input_request" })
	answer := wire.New(wire.Stdin, "kernel_info_request", "r", nil, map[string]string{"value": "Mallory"})
	reader.sendMessage(&answer)
	reader.result(reader.send(wire.Control, "kernel_info_request", struct{}{}))
	reply2 := wire.New(wire.Stdin, "input_reply", "ann", nil, map[string]string{"value": "Ann"})
	ann.sendMessage(&reply2)
	if text := output(ann.result(cell), cell); text != "Ann\n" {
		t.Errorf("the cell was given %q", text)
	}
}

// TestReader_session: a page's session id stands in every message that it caused; knowing it must not be enough to get
// its replies and to acknowledge them in its place.
func TestReader_session(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	ann := r.dial(dialOption{session: "ann"})
	reader := r.dial(dialOption{session: "ann", header: reads})
	other := r.dial(dialOption{session: "ann", header: http.Header{HeaderUser: {"bob"}, "User-Agent": {"x"}}})
	cell := ann.execute("print 1")
	ann.result(cell)
	for _, c := range []*client{reader, other} {
		for _, g := range c.result(c.send(wire.Shell, "kernel_info_request", struct{}{})) {
			if g.msgType == "execute_reply" {
				t.Error("somebody else got ann's reply")
			}
		}
	}
}

// TestSupervisor_malformedHeader: a client's header becomes the parent of messages to all, whose JSON it must not break.
func TestSupervisor_malformedHeader(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	for name, header := range map[string]string{
		"brackets that do not match": `{"msg_id":"x","msg_type":"execute_request","e":[}}`,
		"a value that is none":       `{"msg_id":"x","msg_type":"execute_request","e":bogus}`,
		"far too long":               `{"msg_id":"x","msg_type":"execute_request","e":"` + strings.Repeat("x", 1<<20) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := r.dial(dialOption{session: "bad", v1: true})
			m := wire.New(wire.Shell, "execute_request", "bad", nil, map[string]string{"code": "print 1"})
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

// TestSupervisor_forgetsBigRequests: what is kept of a request until its answer must not keep its content alive.
func TestSupervisor_forgetsBigRequests(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	c.send(wire.Shell, "execute_request", map[string]string{"code": "sleep 30s\n#" + strings.Repeat("x", 1<<20)})
	r.until("busy", func(st Status) bool { return st.State == stateBusy })
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	for _, q := range r.s.order {
		if cap(q.header) > 64<<10 {
			t.Errorf("the header of a request keeps %d bytes alive", cap(q.header))
		}
	}
}

// TestSupervisor_forgetsConnections: the log holds the sessions of its entries, and must not hold their connections.
func TestSupervisor_forgetsConnections(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{})
	c.result(c.execute("print 1"))
	var held weak.Pointer[conn]
	r.s.mu.Lock()
	for _, sess := range r.s.sessions {
		for served := range sess.conns {
			held = weak.Make(served)
		}
	}
	r.s.mu.Unlock()
	c.ws.Close()
	r.until("left", func(st Status) bool { return st.Connections == 0 })
	for deadline := time.Now().Add(5 * time.Second); held.Value() != nil; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatal("a connection that has ended is still held")
		}
		runtime.Gosched()
	}
}

// TestSupervisor_forgetsOrphans: requests without answer whose sessions are gone must not pile up.
func TestSupervisor_forgetsOrphans(t *testing.T) {
	s := New(Config{LogLimit: 1 << 20}, "test", quiet())
	for i := range 3 {
		c := &conn{s: s}
		if err := s.attach(c, "", s.now()); err != nil {
			t.Fatal(err)
		}
		for n := range maxOutstanding {
			m := wire.New(wire.Shell, "odd_request", "", nil, struct{}{})
			s.register(c.session, &m, wire.Header{MsgID: fmt.Sprint(i, n), MsgType: "odd_request"})
		}
		s.detach(c, s.now())
	}
	if s.live > maxOutstanding {
		t.Errorf("%d requests of nobody are kept, want at most %d", s.live, maxOutstanding)
	}
	s.abortOutstanding("error", "KernelDied", "test")
	if s.live != 0 || s.orphans != 0 || len(s.requests) != 0 {
		t.Errorf("%d requests, %d of nobody, are left", s.live, s.orphans)
	}
}

// TestSession_restartIsAFloor: an answer to an old ping that comes after a restart must not take a session's place in
// the log back to the life before.
func TestSession_restartIsAFloor(t *testing.T) {
	s := New(Config{LogLimit: 1 << 20}, "test", quiet())
	c := &conn{s: s}
	if err := s.attach(c, "ann", s.now()); err != nil {
		t.Fatal(err)
	}
	s.takePart(c)
	old := s.log.append(nil, numbered(1, 1), false)
	s.log.append(nil, numbered(2, 1), false)
	s.begin(nil, &operation{})
	tail := s.log.tail()
	s.acknowledge(c, old)
	if got := c.session.resume; got != tail {
		t.Errorf("session resumes at %v, the new life begins behind %v", got, tail)
	}
	later := s.log.append(nil, numbered(3, 1), false)
	s.acknowledge(c, later)
	if got := c.session.resume; got != later {
		t.Errorf("session resumes at %v, want %v", got, later)
	}
}

// TestConn_pongInAFlood: while there is always more to send, pings of the peer are answered nevertheless.
func TestConn_pongInAFlood(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann", v1: true})
	c.result(c.execute("print 1"))
	const entries = 10000
	for n := range entries {
		r.s.log.append(nil, numbered(n, 1000), false)
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

// TestSupervisor_stopWithDeafClient: a client that does not read must not keep the supervisor of a stopped kernel alive.
func TestSupervisor_stopWithDeafClient(t *testing.T) {
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
	if took := time.Since(begun); took > farewell+closeGrace+5*time.Second {
		t.Errorf("it took %v", took)
	}
	deaf.ws.Close()
}

// TestSupervisor_oversized: a message over the limit ends its connection with the code that says so.
func TestSupervisor_oversized(t *testing.T) {
	r := startSupervisorTuned(t, nil, func(s *Supervisor) { s.maxMessage = 1 << 20 }).ready()
	bothFramings(t, func(t *testing.T, v1 bool) {
		c := r.dial(dialOption{session: "big", v1: v1})
		c.result(c.send(wire.Shell, "execute_request", map[string]string{"code": "#" + strings.Repeat("x", 1<<19)}))
		c.send(wire.Shell, "execute_request", map[string]string{"code": "#" + strings.Repeat("x", 8<<20)})
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

// TestSupervisor_lateFailure: why a kernel died stands in its reason, also where it took so long that it was waited for.
func TestSupervisor_lateFailure(t *testing.T) {
	t.Parallel() // it waits more than it works
	r := startSupervisorTuned(t, func(c *Config) {
		c.Argv = []string{"/bin/sh", "-c", "sleep 0.5; echo no such module >&2; exit 3"}
	}, func(s *Supervisor) { s.slowStart = 50 * time.Millisecond })
	r.until("slow", func(st Status) bool { return st.State == stateStarting && st.Reason != "" })
	st := r.until("dead", func(st Status) bool { return st.State == stateDead })
	if !strings.Contains(st.Reason, "no such module") {
		t.Errorf("reason is %q", st.Reason)
	}
}

// TestBridge_complaints: a kernel chooses what it says, and must not fill log and memory with complaints about it.
func TestBridge_complaints(t *testing.T) {
	s := New(Config{LogLimit: 1 << 20}, "test", quiet())
	b := &bridge{log: s.logger, signer: wire.NewSigner([]byte("key")), deliver: s.deliver}
	for n := range 1000 {
		b.parse(wire.IOPub, make([][]byte, n))
		b.parse(wire.IOPub, append([][]byte{[]byte(wire.Delimiter)}, make([][]byte, n%5)...))
		b.parse(wire.IOPub, append([][]byte{[]byte(wire.Delimiter)}, make([][]byte, 5+n)...))
	}
	kinds := 0
	b.complaints.Range(func(any, any) bool { kinds++; return true })
	if kinds == 0 || kinds > 8 {
		t.Errorf("%d kinds of complaints are remembered", kinds)
	}
}

// TestFlowConn_deadline: patience must not run over, however much a peer has not acknowledged.
func TestFlowConn_deadline(t *testing.T) {
	for _, owed := range []int64{0, 1 << 20, 1 << 34, 1 << 45} {
		f := newFlowConn(nil, func() int64 { return owed })
		if left := time.Until(f.deadline()); left < patience-time.Second {
			t.Errorf("with %d bytes unacknowledged a peer is given %v", owed, left)
		}
	}
}

// TestServer_slowBody: a body that never comes must not hold a request for ever.
func TestServer_slowBody(t *testing.T) {
	s := New(Config{LogLimit: 1 << 20}, "test", quiet())
	for name, handler := range map[string]func(http.ResponseWriter, *http.Request) error{
		"delete": s.deleteKernel, "limits": s.putLimits,
	} {
		w := &deadlineWriter{header: http.Header{}}
		left := time.Duration(0)
		body := readerFunc(func([]byte) (int, error) {
			left = time.Until(w.deadline)
			return 0, os.ErrDeadlineExceeded
		})
		req, err := http.NewRequest("PUT", "http://x/", body)
		if err != nil {
			t.Fatal(err)
		}
		if err := handler(w, req); err == nil {
			t.Errorf("%s: a body that did not come is accepted", name)
		}
		if left <= 0 || left > time.Minute {
			t.Errorf("%s: a body may take %v", name, left)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// TestStatus_halfOpen: a gateway that has vanished must not hold a status stream for ever.
func TestStatus_halfOpen(t *testing.T) {
	s := New(Config{LogLimit: 1 << 20}, "test", quiet())
	w := &deadlineWriter{header: http.Header{}}
	req, err := http.NewRequest("GET", "http://x/", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.endClients("test")
	if err := s.getStatus(w, req); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(w.deadline); left < StatusInterval || left > 4*StatusInterval {
		t.Errorf("a line may take %v", left)
	}
	var st Status
	if err := json.Unmarshal([]byte(w.body.String()), &st); err != nil {
		t.Errorf("%v in %q", err, w.body.String())
	}
}

// deadlineWriter is a response that remembers the last deadline it was given.
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

// TestSupervisor_badFrames: a peer whose frames are none is told so with a close frame, which must not be lost to a reset.
func TestSupervisor_badFrames(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	ann := r.dial(dialOption{session: "ann"})
	const mask = "\x00\x00\x00\x00"
	for name, frame := range map[string]string{
		"not masked": "\x81\x02{}", "a reserved bit": "\xc1\x82" + mask + "{}", "a reserved kind": "\x83\x80" + mask, "a ping that is too long": "\x89\xfe\x00\x80" + mask, "the rest of nothing": "\x80\x80" + mask,
		"within a message": "\x01\x81" + mask + "{" + "\x81\x81" + mask + "}", "more than there can be": "\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff" + mask,
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
			c.ws.Close()
		}
	}
	ann.result(ann.execute("print 1"))
}
