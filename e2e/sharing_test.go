//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
)

// TestE2E_Sharing: a reader, and a user with the right to use the kernel, send valid and invalid traffic at random. The
// owner's cells bring the same messages, in the same order, as in a kernel that is not shared.
func TestE2E_Sharing(t *testing.T) { sharing(t, 40) }

// TestChaos_Sharing runs the same test for longer, in `make chaos`.
func TestChaos_Sharing(t *testing.T) { sharing(t, 1000) }

// ownersCells are the cells that the owner runs, in turn. %d is the cell's number.
var ownersCells = []string{
	"print(%d); print('twice')",
	"from IPython.display import display\nfor i in range(20): display({'text/plain': str(i + %d)}, raw=True)",
	"1 / (%d - %[1]d)",
	"input('name %d? ') + '!'",
	"for i in range(200): print('line', i, %d)",
	"import sys\nprint('error %d', file=sys.stderr)", // the order of stdout and stderr is not fixed
	"from IPython.display import clear_output\nprint('gone %d'); clear_output(wait=True); print('stays')",
	"from comm import create_comm\nc = create_comm(target_name='t%d', data={'a': 1})\n" +
		"c.send({'b': 2}, buffers=[b'x' * 1000]); c.close()",
	"%d + 41",
}

func sharing(t *testing.T, cells int) {
	n := seed(t)
	framings(t, func(t *testing.T, v1 bool) {
		g := sharedGateway(t)
		g.token = "token-ann"
		quiet, shared := g.kernel("python3"), g.kernel("python3")
		g.want(200, "PATCH", "/api/kernels/"+shared,
			`{"shared_with": [{"user": "bob", "right": "use"}, {"user": "cat", "right": "read"}]}`, nil)
		alone, beside := g.dial(t, quiet, "ann", v1), g.dial(t, shared, "ann", v1)

		var running atomic.Value // the msg_id of the owner's present cell
		running.Store("none yet")
		stop := make(chan struct{})
		var disturbers []*disturber
		var all sync.WaitGroup
		for i, user := range []string{"bob", "cat"} {
			as := *g
			as.token = "token-" + user
			d := &disturber{g: &as, kernel: shared, reader: user == "cat", running: &running, stop: stop,
				random: rand.New(rand.NewPCG(n, uint64(2*i)+1))}
			disturbers = append(disturbers, d)
			all.Go(d.run)
		}
		defer all.Wait()
		defer sync.OnceFunc(func() { close(stop) })()
		for i := range cells {
			code := fmt.Sprintf(ownersCells[i%len(ownersCells)], i)
			want := alone.transcript(code, nil)
			got := beside.transcript(code, &running)
			if !slices.Equal(got, want) {
				t.Fatalf("cell %d brought\n%s\nand alone\n%s", i, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		beside.says("print(sorted(k for k in globals() if k.startswith('ekg_')))", "[]\n")
		for i, d := range disturbers {
			t.Logf("%s did %d things in %d connections", []string{"bob", "cat"}[i], d.things.Load(), d.connections.Load())
			if d.things.Load() < int64(cells) {
				t.Errorf("the disturber did only %d things", d.things.Load())
			}
		}
	})
}

// sharedGateway starts a gateway with the users ann, bob and cat.
func sharedGateway(t *testing.T) *gateway {
	t.Helper()
	g := prepare(t, "")
	file := filepath.Join(g.dir, "users.yaml")
	g.args = append(g.args, "--users-file", file)
	var users strings.Builder
	users.WriteString("users:\n")
	for _, name := range []string{"ann", "bob", "cat"} {
		fmt.Fprintf(&users, "- {name: %s, tokens: [%q]}\n", name, identity.Hash("token-"+name))
	}
	if err := os.WriteFile(file, []byte(users.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	g.token = ""
	g.start()
	return g
}

// transcript runs a cell and returns its messages without what differs between two runs: numbers of executions, ids and
// tracebacks. Texts of one stream are joined, since the kernel divides them by time. It answers prompts.
func (c *client) transcript(code string, running *atomic.Value) []string {
	c.t.Helper()
	m := newRequest(c.session, "shell", "execute_request", executeRequest(code, true))
	kind, data := c.encode(m)
	if err := c.ws.WriteMessage(kind, data); err != nil {
		c.t.Fatal(err)
	}
	var iopub, others []string
	stream, replied, idle := "", false, false
	for !replied || !idle {
		got, _ := c.until(time.Minute, "the rest of "+code, func(got message) bool {
			return got.Parent.MsgID == m.Header.MsgID
		})
		if running != nil {
			running.Store(m.Header.MsgID) // no user can know the random ids of real clients earlier
		}
		content := map[string]any{}
		if err := json.Unmarshal(got.Content, &content); err != nil {
			c.t.Fatalf("%s: %v", got.Content, err)
		}
		for _, k := range []string{"execution_count", "traceback", "comm_id", "engine_info", "ename_id"} {
			delete(content, k)
		}
		name, _ := content["name"].(string)
		joined := got.Header.MsgType == "stream" && name == stream && len(iopub) > 0
		switch {
		case joined:
			text, _ := content["text"].(string)
			iopub[len(iopub)-1] += text
			continue
		case got.Header.MsgType == "stream":
			stream = name
			text, _ := content["text"].(string)
			iopub = append(iopub, "stream "+name+" "+text)
			continue
		case got.Header.MsgType == "input_request":
			c.send("stdin", "input_reply", `{"status": "ok", "value": "Ada"}`, func(r *message) { r.Parent = got.Header })
		}
		b, err := json.Marshal(content)
		if err != nil {
			c.t.Fatal(err)
		}
		if got.field("execution_state") == "busy" && len(iopub) > 0 {
			continue // the supervisor repeats the cell's state when another request has ended
		}
		line := fmt.Sprintf("%s %s %s %d", got.Channel, got.Header.MsgType, b, len(bytes.Join(got.Buffers, nil)))
		if got.Channel == "iopub" {
			stream = ""
			iopub = append(iopub, line)
			idle = idle || got.field("execution_state") == "idle"
		} else {
			others = append(others, line)
			replied = replied || got.Header.MsgType == "execute_reply"
		}
	}
	return append(iopub, others...)
}

// disturber is a user who sends what comes to mind: requests, replies to prompts of other users, frames without sense.
type disturber struct {
	g       *gateway
	kernel  string
	reader  bool
	running *atomic.Value
	stop    chan struct{}
	random  *rand.Rand

	things, connections atomic.Int64
}

// run goes on until stop is closed. A connection that the gateway closes is followed by another.
func (d *disturber) run() {
	for {
		select {
		case <-d.stop:
			return
		default:
		}
		d.connections.Add(1)
		d.connection()
	}
}

// connection opens a websocket and sends things on it, each after the previous one was answered by a pong.
func (d *disturber) connection() {
	session := []string{"ann", "own", fmt.Sprint("s", d.random.IntN(40))}[d.random.IntN(3)]
	subprotocol := []string{"", subprotocolV1}[d.random.IntN(2)]
	ws, err := d.g.connectWith(d.g.t.Context(), d.kernel, url.Values{"session_id": {session}}, subprotocol, time.Minute)
	if err != nil {
		if !strings.Contains(err.Error(), "429") && d.g.t.Context().Err() == nil {
			d.g.t.Errorf("connect: %v", err)
		}
		return
	}
	pongs := make(chan struct{}, 1)
	ws.SetPongHandler(func(string) error {
		select {
		case pongs <- struct{}{}:
		default:
		}
		return nil
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, _, err := ws.ReadMessage(); err != nil {
				return
			}
		}
	}()
	defer func() {
		_ = ws.Close() // it may be closed already
		<-ended
	}()
	c := &client{t: d.g.t, ws: ws, v1: subprotocol != "", session: session}
	for range 1 + d.random.IntN(50) {
		d.things.Add(1)
		if d.random.IntN(8) == 0 {
			d.rest()
		} else if kind, data := d.frame(c); ws.WriteMessage(kind, data) != nil {
			return
		}
		if ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(time.Minute)) != nil {
			return
		}
		select {
		case <-pongs:
		case <-ended:
			return
		case <-d.stop:
			return
		case <-time.After(time.Minute):
			d.g.t.Error("no pong within a minute")
			return
		}
	}
}

// disturbing are the requests of a disturber. Interrupts and restarts are a right of those who may use the kernel, and
// would change the owner's output.
var disturbing = []struct{ channel, msgType, content string }{
	{"shell", "kernel_info_request", "{}"},
	{"control", "kernel_info_request", "{}"},
	{"shell", "complete_request", `{"code": "imp", "cursor_pos": 3}`},
	{"shell", "inspect_request", `{"code": "print", "cursor_pos": 3, "detail_level": 0}`},
	{"shell", "is_complete_request", `{"code": "for x"}`},
	{"shell", "history_request", `{"hist_access_type": "tail", "n": 5, "raw": true, "output": false}`},
	{"shell", "comm_info_request", "{}"},
	{"shell", "comm_open", `{"comm_id": "x", "target_name": "none", "data": {}}`},
	{"shell", "comm_msg", `{"comm_id": "none", "data": {}}`},
	{"stdin", "input_reply", `{"status": "ok", "value": "not Ada"}`},
	{"control", "shutdown_request", `{"restart": false}`},
	{"shell", "shutdown_request", `{"restart": true}`},
	{"control", "debug_request", `{"type": "request", "seq": 1, "command": "debugInfo", "arguments": {}}`},
	{"iopub", "stream", `{"name": "stdout", "text": "forged"}`},
	{"iopub", "status", `{"execution_state": "idle"}`},
	{"shell", "execute_reply", `{"status": "ok"}`},
	{"shell", "no_such_request", `{}`},
	{"hb", "kernel_info_request", "{}"},
	{"", "kernel_info_request", "{}"},
}

// A cell that fails ends the cells of all users that wait behind it, in any Jupyter kernel, unless its request asks for
// the contrary. Requests of disturbers do, even where some bytes of them are others.
const stops, goesOn = `"stop_on_error":true`, `"stop_on_error":false`

// frame returns a message, or something that resembles one.
func (d *disturber) frame(c *client) (kind int, data []byte) {
	of := disturbing[d.random.IntN(len(disturbing))]
	m := newRequest(c.session, of.channel, of.msgType, of.content)
	if d.random.IntN(6) == 0 {
		m.Channel, m.Header.MsgType = "shell", "execute_request"
		content := executeRequest("print('disturbed'); 1", d.random.IntN(2) == 0)
		if d.reader {
			content = executeRequest("ekg_disturbed = 1", false)
		}
		m.Content = json.RawMessage(strings.Replace(content, stops, goesOn, 1))
	}
	switch owners, _ := d.running.Load().(string); d.random.IntN(8) {
	case 0:
		m.Header.MsgID = owners
	case 1:
		m.Parent = header{MsgID: owners, MsgType: "execute_request", Session: "ann"}
	case 2:
		m.Header.Session = "ann"
	case 3:
		m.Header.MsgID = strings.Repeat("x", d.random.IntN(100))
	case 4:
		m.Buffers = [][]byte{make([]byte, d.random.IntN(100000))}
	}
	kind, data = c.encode(m)
	switch d.random.IntN(12) {
	case 0: // cut off
		data = data[:d.random.IntN(len(data))]
	case 1: // some bytes are others
		fixed := bytes.Index(data, []byte(goesOn))
		for range 1 + d.random.IntN(4) {
			at, value := d.random.IntN(len(data)), byte(d.random.IntN(256))
			if fixed < 0 || at < fixed || at >= fixed+len(goesOn) {
				data[at] = value
			}
		}
	case 2:
		kind = websocket.TextMessage + websocket.BinaryMessage - kind
	case 3:
		data = bytes.Repeat(data, 1+d.random.IntN(3))
	}
	return kind, data
}

// rest sends a request of the REST API that must not affect the owner.
func (d *disturber) rest() {
	of := [][3]string{
		{"GET", "/api/kernels", ""},
		{"GET", "/api/kernels/" + d.kernel, ""},
		{"GET", "/api/kernels/" + d.kernel + "/log", ""},
		{"DELETE", "/api/kernels/" + d.kernel, ""},
		{"PATCH", "/api/kernels/" + d.kernel, `{"shared_with": []}`},
		{"POST", "/api/kernels", `{"name": "python3", "env": {"KERNEL_ID": "` + d.kernel + `"}}`},
		{"GET", "/api/sessions", ""},
	}
	if d.reader {
		of = append(of, [3]string{"POST", "/api/kernels/" + d.kernel + "/interrupt", ""},
			[3]string{"POST", "/api/kernels/" + d.kernel + "/restart", ""})
	}
	r := of[d.random.IntN(len(of))]
	status, b, err := d.g.tryAsk(r[0], r[1], r[2])
	if err != nil || status >= 500 || status < 300 && r[0] != "GET" {
		d.g.t.Errorf("%s %s: %d %s %v", r[0], r[1], status, b, err)
	}
}
