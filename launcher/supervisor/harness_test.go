package supervisor

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/listener"
)

func quiet() *slog.Logger { return loggerTo(io.Discard) }

func loggerTo(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// patience of tests with real processes.
const testLimit = 20 * time.Second

// testKernelID is for kernels without processes. The end of a kernel kills all processes that carry its id, so every
// other kernel of the tests has an id of its own.
const testKernelID = "0a7e3f52-5a2c-4a63-8a58-0d7c61e1a001"

// eventually waits for an effect of another process.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// running is a supervisor under test.
type running struct {
	t      *testing.T
	s      *Supervisor
	cfg    api.Config
	socket string
	done   chan struct{}
	cancel context.CancelFunc
}

// startSupervisor runs a supervisor in this process and ends it with the test. Its kernel is the fake kernel unless
// change sets another.
func startSupervisor(t *testing.T, change func(*api.Config)) *running {
	t.Helper()
	return startSupervisorTuned(t, change, nil)
}

// startSupervisorTuned is startSupervisor with a function that changes times and limits.
func startSupervisorTuned(t *testing.T, change func(*api.Config), tune func(*Supervisor)) *running {
	t.Helper()
	dir, err := os.MkdirTemp("", "ekg-t") // t.TempDir is too long for socket paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := api.Config{
		Protocol: api.ProtocolVersion, KernelID: uuid.NewString(), SpecName: "fake",
		Argv: fakeKernelArgv(),
		Env: map[string]string{"PATH": os.Getenv("PATH"), "HOME": dir, fakeKernelVariable: "1",
			"GORACE": "atexit_sleep_ms=0"}, // otherwise the race detector delays the end of every kernel by a second
		WorkingDir: dir, InterruptMode: "signal", Listen: "unix:" + filepath.Join(dir, "s"),
		ConnectionFile: filepath.Join(dir, "connection.json"), Transport: "ipc", RunDir: dir,
		LockFile: filepath.Join(dir, "lock"), EndFile: filepath.Join(dir, "ended.json"),
		LogLimit: 64 << 20, SpillDir: dir, StopGrace: time.Second, DeadLinger: time.Minute, RestartLimit: 3,
	}
	if change != nil {
		change(&cfg)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	l, err := listener.Open(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	logger := quiet()
	if testing.Verbose() {
		logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := New(cfg, "test", logger)
	if tune != nil {
		tune(s)
	}
	r := &running{t: t, s: s, cfg: cfg, socket: filepath.Join(dir, "s"), done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(r.done)
		if err := Serve(ctx, r.s, l); err != nil {
			t.Errorf("serve: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-r.done:
		case <-time.After(testLimit):
			t.Error("supervisor does not end")
		}
	})
	return r
}

func (r *running) dialer() func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", r.socket)
	}
}

// url returns the address of a route of the kernel.
func (r *running) url(path string) string {
	return "http://" + r.cfg.KernelID + "/api/kernels/" + r.cfg.KernelID + path
}

// request sends one REST request about the kernel and returns status and body.
func (r *running) request(method, path, body string) (int, string) {
	r.t.Helper()
	tr := &http.Transport{DialContext: r.dialer(), DisableKeepAlives: true}
	req, err := http.NewRequest(method, r.url(path), strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (r *running) model() api.Model {
	r.t.Helper()
	_, body := r.request("GET", "", "")
	var m api.Model
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		r.t.Fatalf("%v in %s", err, body)
	}
	return m
}

// until waits until cond holds for the status.
func (r *running) until(what string, cond func(api.Status) bool) api.Status {
	r.t.Helper()
	deadline := time.After(testLimit)
	for {
		st, change := r.s.Status()
		if cond(st) {
			return st
		}
		select {
		case <-change:
		case <-deadline:
			r.t.Fatalf("never %s: %+v", what, st)
		}
	}
}

func (r *running) ready() *running {
	r.t.Helper()
	r.until("idle", func(st api.Status) bool { return st.State == api.Idle })
	return r
}

// client is a websocket client of one of the framings.
type client struct {
	t       *testing.T
	ws      *websocket.Conn
	v1      bool
	relay   bool
	session string
	cursor  string // of the last message, for relays
}

type dialOption struct {
	session string
	v1      bool
	relay   bool   // jupyter.SubprotocolRelay
	cursor  string // to resume behind; only for relays
	nan     bool   // jupyter.RelayNaN
	header  http.Header
	conn    func(net.Conn) net.Conn
	deflate bool // offer compression
}

func (r *running) dial(o dialOption) *client {
	r.t.Helper()
	c, err := r.tryDial(o)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *running) tryDial(o dialOption) (*client, error) {
	d := websocket.Dialer{NetDialContext: func(ctx context.Context, n, a string) (net.Conn, error) {
		c, err := r.dialer()(ctx, n, a)
		if err == nil && o.conn != nil {
			c = o.conn(c)
		}
		return c, err
	}, EnableCompression: o.deflate}
	want := ""
	switch {
	case o.relay:
		want = jupyter.SubprotocolRelay
	case o.v1:
		want = jupyter.SubprotocolV1
	}
	if want != "" {
		d.Subprotocols = []string{want}
	}
	header := o.header
	if header == nil {
		header = http.Header{"User-Agent": {"test"}}
	}
	u := "ws" + strings.TrimPrefix(r.url("/channels"), "http")
	if o.session != "" {
		u += "?session_id=" + o.session + "&cursor=" + o.cursor
	}
	if o.nan {
		u += "&" + jupyter.RelayNaN
	}
	ws, resp, err := d.Dial(u, header)
	if err != nil {
		if resp != nil {
			b, _ := io.ReadAll(resp.Body)
			err = fmt.Errorf("%w: %d %s", err, resp.StatusCode, b)
		}
		return nil, err
	}
	if ws.Subprotocol() != want {
		r.t.Errorf("subprotocol is %q, want %q", ws.Subprotocol(), want)
	}
	r.t.Cleanup(func() { _ = ws.Close() })
	return &client{t: r.t, ws: ws, v1: o.v1 || o.relay, relay: o.relay, session: o.session}, nil
}

// send sends a request and returns its msg_id.
func (c *client) send(ch jupyter.Channel, msgType string, content any, buffers ...[]byte) string {
	c.t.Helper()
	m := jupyter.New(ch, msgType, c.session, nil, content)
	m.Buffers = buffers
	c.sendMessage(&m)
	return jupyter.StringField(m.Header, "msg_id")
}

func (c *client) sendMessage(m *jupyter.Message) {
	c.t.Helper()
	var err error
	if c.v1 {
		err = c.ws.WriteMessage(websocket.BinaryMessage, jupyter.EncodeV1(m))
	} else {
		data, binary, eerr := jupyter.AppendLegacy(nil, m, true)
		kind := websocket.TextMessage
		if binary {
			kind = websocket.BinaryMessage
		}
		if err = eerr; err == nil {
			err = c.ws.WriteMessage(kind, data)
		}
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) execute(code string) string {
	c.t.Helper()
	return c.send(jupyter.Shell, "execute_request", map[string]any{"code": code, "silent": false, "store_history": true,
		"user_expressions": map[string]string{}, "allow_stdin": true, "stop_on_error": true})
}

// got is a received message with its headers read.
type got struct {
	jupyter.Message
	msgType string
	parent  string
}

func (g got) text() string { return jupyter.StringField(g.Content, "text") }

func (c *client) recv() (got, error) {
	if err := c.ws.SetReadDeadline(time.Now().Add(testLimit)); err != nil {
		return got{}, err
	}
	kind, data, err := c.ws.ReadMessage()
	if err != nil {
		return got{}, err
	}
	var m jupyter.Message
	if c.relay {
		if len(data) < jupyter.RelayCursor {
			return got{}, fmt.Errorf("a message of %d bytes has no cursor", len(data))
		}
		c.cursor, data = hex.EncodeToString(data[:jupyter.RelayCursor]), data[jupyter.RelayCursor:]
	}
	if c.v1 {
		m, err = jupyter.DecodeV1(data)
	} else {
		m, err = jupyter.DecodeLegacy(data, kind == websocket.BinaryMessage)
	}
	if err != nil {
		return got{}, err
	}
	parent, err := jupyter.ParseHeader(m.Parent)
	return got{m, jupyter.StringField(m.Header, "msg_type"), parent.MsgID}, err
}

// collect reads until cond holds for a message and returns all of them.
func (c *client) collect(what string, cond func(got) bool) []got {
	c.t.Helper()
	var all []got
	for {
		g, err := c.recv()
		if err != nil {
			c.t.Fatalf("waiting for %s: %v after %s", what, err, summary(all))
		}
		all = append(all, g)
		if cond(g) {
			return all
		}
	}
}

// running waits until a cell's code runs, and returns all messages. A kernel that is busy but does not run the code yet
// cannot be interrupted. The reply of a short cell may be among the messages, as the channels overtake each other.
func (c *client) running(cell string) []got {
	c.t.Helper()
	return c.collect("execute_input", func(g got) bool { return g.msgType == "execute_input" && g.parent == cell })
}

// result reads until every request has both its reply and its idle, and returns all messages.
func (c *client) result(ids ...string) []got {
	c.t.Helper()
	replies, idles := map[string]bool{}, map[string]bool{}
	return c.collect("reply and idle", func(g got) bool {
		switch {
		case g.Channel != jupyter.IOPub && g.Channel != jupyter.Stdin:
			replies[g.parent] = true
		case g.msgType == "status" && jupyter.StringField(g.Content, "execution_state") == string(api.Idle):
			idles[g.parent] = true
		}
		for _, id := range ids {
			if !replies[id] || !idles[id] {
				return false
			}
		}
		return true
	})
}

func summary(all []got) string {
	var b strings.Builder
	for _, g := range all[max(0, len(all)-30):] {
		fmt.Fprintf(&b, "%s/%s %.80s; ", g.Channel, g.msgType, g.Content)
	}
	return b.String()
}

// output is the text of the stream messages of a request.
func output(all []got, id string) string {
	var b strings.Builder
	for _, g := range all {
		if g.msgType == "stream" && (id == "" || g.parent == id) {
			var s notice.Stream
			if json.Unmarshal(g.Content, &s) == nil {
				b.WriteString(s.Text)
			}
		}
	}
	return b.String()
}

func find(all []got, msgType, parent string) (got, bool) {
	for _, g := range all {
		if g.msgType == msgType && (parent == "" || g.parent == parent) {
			return g, true
		}
	}
	return got{}, false
}

// numbered returns a message with a number and the given size.
func numbered(n, size int) jupyter.Message {
	content := map[string]string{"n": strconv.Itoa(n), "pad": strings.Repeat("x", size)}
	return jupyter.New(jupyter.IOPub, "stream", "s", nil, content)
}

// number returns the number of such a message.
func number(t interface{ Fatalf(string, ...any) }, m *jupyter.Message) int {
	n, err := strconv.Atoi(jupyter.StringField(m.Content, "n"))
	if err != nil {
		t.Fatalf("%v in %s", err, m.Content)
	}
	return n
}
