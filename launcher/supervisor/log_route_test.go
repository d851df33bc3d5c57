package supervisor

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/logstream"
)

// logLine is one line of the log's JSON.
type logLine struct {
	Number   uint64          `json:"number"`
	Lost     uint64          `json:"lost"`
	Time     string          `json:"time"`
	Epoch    uint64          `json:"epoch"`
	Channel  string          `json:"channel"`
	Cell     *string         `json:"cell"`
	Header   json.RawMessage `json:"header"`
	Parent   json.RawMessage `json:"parent_header"`
	Metadata json.RawMessage `json:"metadata"`
	Content  json.RawMessage `json:"content"`
	Buffers  []string        `json:"buffers"`
}

func (l logLine) msgType() string { return jupyter.StringField(l.Header, "msg_type") }

func (l logLine) parent() string { return jupyter.StringField(l.Parent, "msg_id") }

func (l logLine) text() string { return jupyter.StringField(l.Content, "text") }

func (l logLine) dead() bool {
	return jupyter.StringField(l.Content, "execution_state") == string(api.Dead)
}

// logReader reads an answer of GET .../log line by line.
type logReader struct {
	t    *testing.T
	conn net.Conn
	resp *http.Response
	in   *bufio.Reader
}

func (r *running) openLog(query string, header http.Header) *logReader {
	r.t.Helper()
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	req, err := http.NewRequest("GET", r.url("/log?"+query), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	if err := req.Write(conn); err != nil {
		r.t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(testLimit)); err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return &logReader{t: r.t, conn: conn, resp: resp, in: bufio.NewReader(resp.Body)}
}

// next returns the next line that is not empty, or the error that ended the answer: io.EOF if it is complete.
func (l *logReader) next() (logLine, error) {
	l.t.Helper()
	for {
		if err := l.conn.SetReadDeadline(time.Now().Add(testLimit)); err != nil {
			return logLine{}, err
		}
		b, err := l.in.ReadBytes('\n')
		if err != nil {
			return logLine{}, err
		}
		if len(b) == 1 {
			continue
		}
		var line logLine
		if err := json.Unmarshal(b, &line); err != nil {
			l.t.Fatalf("%v in %.300q", err, b)
		}
		return line, nil
	}
}

// rest reads to the end of the answer.
func (l *logReader) rest() []logLine {
	l.t.Helper()
	var all []logLine
	for {
		line, err := l.next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			l.t.Fatalf("after %d lines: %v", len(all), err)
		}
		all = append(all, line)
	}
}

// until reads up to a line that cond holds for, and returns all of them.
func (l *logReader) until(what string, cond func(logLine) bool) []logLine {
	l.t.Helper()
	var all []logLine
	for {
		line, err := l.next()
		if err != nil {
			l.t.Fatalf("waiting for %s after %d lines: %v", what, len(all), err)
		}
		all = append(all, line)
		if cond(line) {
			return all
		}
	}
}

func (r *running) readLog(query string) []logLine {
	r.t.Helper()
	l := r.openLog(query, nil)
	if l.resp.StatusCode != http.StatusOK || l.resp.Header.Get("Content-Type") != "application/x-ndjson" {
		r.t.Fatalf("%s: %d %v", query, l.resp.StatusCode, l.resp.Header)
	}
	return l.rest()
}

// executeIn runs code as a cell of a notebook.
func (c *client) executeIn(cellID any, code string) string {
	c.t.Helper()
	m := jupyter.New(jupyter.Shell, "execute_request", c.session, nil, map[string]any{"code": code, "silent": false,
		"store_history": true, "user_expressions": map[string]string{}, "allow_stdin": true, "stop_on_error": true})
	b, err := json.Marshal(map[string]any{"trusted": true, "cellId": cellID})
	if err != nil {
		c.t.Fatal(err)
	}
	m.Metadata = b
	c.sendMessage(&m)
	return jupyter.StringField(m.Header, "msg_id")
}

func streamed(all []logLine, parent string) string {
	var b strings.Builder
	for _, l := range all {
		if l.msgType() == "stream" && (parent == "" || l.parent() == parent) {
			b.WriteString(l.text())
		}
	}
	return b.String()
}

func TestLogRoute_Read(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	ann, bob := r.dial(dialOption{session: "ann"}), r.dial(dialOption{session: "bob", v1: true})
	first := ann.executeIn("cell-1", "print 3\nbuffers 5")
	ann.result(first)
	second := bob.execute("result 42")
	bob.result(second)
	began := time.Now()

	all := r.readLog("")
	types := map[string]int{}
	for i, l := range all {
		if i > 0 && l.Number <= all[i-1].Number {
			t.Errorf("number %d comes after %d", l.Number, all[i-1].Number)
		}
		at, err := time.Parse(api.TimeFormat, l.Time)
		if err != nil || began.Sub(at) > time.Minute || at.After(time.Now()) {
			t.Errorf("time is %q, %v", l.Time, err)
		}
		if l.Epoch != 1 || l.Lost != 0 || l.Metadata == nil || l.Content == nil {
			t.Errorf("line is %+v", l)
		}
		if l.parent() == first {
			if l.Cell == nil || *l.Cell != "cell-1" {
				t.Errorf("%s of the first cell has cell %v", l.msgType(), l.Cell)
			}
		} else if l.Cell != nil {
			t.Errorf("%s of another request has cell %s", l.msgType(), *l.Cell)
		}
		types[l.Channel+"/"+l.msgType()]++
		if l.msgType() == "comm_msg" {
			if len(l.Buffers) != 1 || l.Buffers[0] != base64.StdEncoding.EncodeToString([]byte{0, 1, 2, 3, 4}) {
				t.Errorf("buffers are %q", l.Buffers)
			}
		} else if l.Buffers != nil {
			t.Errorf("%s has buffers", l.msgType())
		}
	}
	if got := streamed(all, first); got != `0\n1\n2\n` {
		t.Errorf("output is %q", got)
	}
	if types["shell/execute_reply"] != 2 || types["iopub/execute_result"] != 1 || types["iopub/execute_input"] != 2 {
		t.Errorf("there are %v", types)
	}
	t.Run("after", func(t *testing.T) {
		for _, i := range []int{0, 3, len(all) - 1} {
			got := r.readLog("after=" + strconv.FormatUint(all[i].Number, 10))
			if len(got) != len(all)-i-1 || len(got) > 0 && got[0].Number != all[i+1].Number {
				t.Errorf("after line %d of %d: %d lines", i, len(all), len(got))
			}
		}
		// The kernel may have been started again with a new log. A follower would get nothing for long, and then miss lines.
		end := all[len(all)-1].Number
		for _, beyond := range []string{"after=%d", "after=%d&follow=1"} {
			status, body := r.request("GET", "/log?"+fmt.Sprintf(beyond, end+1), "")
			if status != 400 || !strings.Contains(body, fmt.Sprintf("after: this log ends at number %d", end)) {
				t.Errorf("behind the end: %d %s", status, body)
			}
		}
	})
	t.Run("limit", func(t *testing.T) {
		got := r.readLog("limit=2&after=" + strconv.FormatUint(all[1].Number, 10))
		if len(got) != 2 || got[0].Number != all[2].Number || got[1].Number != all[3].Number {
			t.Errorf("got %+v", got)
		}
		if got := r.openLog("limit=3&follow=1", nil).rest(); len(got) != 3 {
			t.Errorf("following, with a limit of 3: %d lines", len(got))
		}
	})
	t.Run("parent", func(t *testing.T) {
		got := r.readLog("parent=" + second)
		for _, l := range got {
			if l.parent() != second {
				t.Errorf("got a line of %s", l.parent())
			}
		}
		if len(got) < 5 { // busy, input, result, reply, idle
			t.Errorf("%d lines", len(got))
		}
		if got := r.readLog("parent=unknown"); len(got) != 0 {
			t.Errorf("of a request that never was: %d lines", len(got))
		}
	})
	t.Run("HEAD", func(t *testing.T) {
		if status, body := r.request("HEAD", "/log?follow=true", ""); status != 200 || body != "" {
			t.Errorf("got %d %q", status, body)
		}
	})
	t.Run("another log", func(t *testing.T) {
		name := r.openLog("", nil).resp.Header.Get(api.HeaderLog)
		if got := r.openLog("log="+name+"&after=1", nil).resp; got.StatusCode != http.StatusOK ||
			got.Header.Get(api.HeaderLog) != name {
			t.Errorf("the log %q: %d, %v", name, got.StatusCode, got.Header)
		}
		if status, body := r.request("GET", "/log?after=1&log=0123456789abcdef", ""); status != http.StatusConflict ||
			!strings.Contains(body, "new log") {
			t.Errorf("another log: %d %s", status, body)
		}
	})
	t.Run("refused", func(t *testing.T) {
		for query, want := range map[string]string{
			"after=-1": "after", "after=": "after", "after=1.5": "after", "after=18446744073709551616": "after",
			"limit=0": "limit", "limit=x": "limit", "limit=": "limit", "follow=yes": "follow",
		} {
			status, body := r.request("GET", "/log?"+query, "")
			var e struct{ Reason, Message string }
			if err := json.Unmarshal([]byte(body), &e); err != nil || status != 400 || !strings.HasPrefix(e.Message, want+":") {
				t.Errorf("%s: %d %s", query, status, body)
			}
		}
		l := r.openLog("", http.Header{api.HeaderRight: {"read"}})
		if l.resp.StatusCode != http.StatusForbidden {
			t.Errorf("a reader got %d", l.resp.StatusCode)
		}
	})
}

// TestLogRoute_OneLine: a message of a client or a kernel is one line of JSON, even if it has line breaks or invalid
// JSON.
func TestLogRoute_OneLine(t *testing.T) {
	s := New(api.Config{KernelID: testKernelID, LogLimit: 1 << 20}, "test", quiet())
	s.mu.Lock()
	for _, content := range []string{"{\n \"a\":\r\n1}", "{no json}", "{\"a\": \"\xff\"}", ""} {
		m := jupyter.New(jupyter.IOPub, "stream", "x", nil, struct{}{})
		m.Content = []byte(content)
		s.log.Append(allSessions, m, false)
	}
	s.mu.Unlock()
	w := &deadlineWriter{header: http.Header{}}
	req, err := http.NewRequest("GET", "http://x/api/kernels/"+testKernelID+"/log", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Handler().ServeHTTP(w, req)
	var got []string
	for line := range strings.Lines(w.body.String()) {
		var l logLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		got = append(got, string(l.Content))
	}
	if text := strings.Join(got, " "); text != `{"a":1} null {"a": "`+"\uFFFD"+`"} null` {
		t.Errorf("contents are %s", text)
	}
	if left := time.Until(w.deadline); left < logstream.Patience/2 || left > logstream.Patience {
		t.Errorf("a chunk may take %v", left)
	}
}

// TestLogRoute_Epochs: a line has the number of the kernel's life. Messages from before a kernel's death can be read as
// long as its supervisor runs. A follower's answer ends.
func TestLogRoute_Epochs(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.RestartLimit = 0 }).ready()
	c := r.dial(dialOption{session: "ann"})
	c.result(c.execute("echo one"))
	if status, body := r.request("POST", "/restart", ""); status != http.StatusOK {
		t.Fatalf("restart: %d %s", status, body)
	}
	r.ready()
	id := c.execute("echo two\nexit 3")
	l := r.openLog("follow=true", nil)
	all := l.rest()
	lives := map[string]uint64{}
	for _, l := range all {
		if l.msgType() == "stream" {
			lives[l.text()] = l.Epoch
		}
	}
	if lives[`one\n`] != 1 || lives[`two\n`] != 2 {
		t.Errorf("lives are %v", lives)
	}
	if last := all[len(all)-1]; !last.dead() {
		t.Errorf("the last line is %s", last.Content)
	}
	if again := r.readLog("parent=" + id); !strings.Contains(streamed(again, id), "The kernel died") {
		t.Errorf("of a dead kernel: %q", streamed(again, id))
	}
	if again := r.readLog("follow=true"); len(again) != len(all) {
		t.Errorf("following a dead kernel: %d lines, before %d", len(again), len(all))
	}
}

// TestLogRoute_Lost: each message is in the log, or counted in the place where it is missing.
func TestLogRoute_Lost(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.LogLimit = 1 << 20 }).ready()
	c := r.dial(dialOption{session: "ann"})
	for range 20 {
		c.result(c.execute("print 500"))
	}
	for _, query := range []string{"", "after=7"} {
		all := r.readLog(query)
		var at, lost uint64
		if query != "" {
			at = 7
		}
		for _, l := range all {
			if l.Lost > 0 {
				lost += l.Lost
				if at+l.Lost != l.Number || l.Header != nil {
					t.Errorf("after %d: %d lost up to %d", at, l.Lost, l.Number)
				}
			} else if l.Number != at+1 {
				t.Errorf("number %d comes after %d", l.Number, at)
			}
			at = l.Number
		}
		if end := r.s.log.Tail().Seq; at != end || lost == 0 {
			t.Errorf("%s: read up to %d of %d, %d lost", query, at, end, lost)
		}
	}
	parent := r.readLog("parent=unknown")
	if len(parent) != 1 || parent[0].Lost == 0 {
		t.Errorf("the loss of an unknown request is reported in %d lines", len(parent))
	}
}

// TestLogRoute_FollowOff: follow=0 is a valid query.
func TestLogRoute_FollowOff(t *testing.T) {
	if _, err := logstream.ParseQuery(url.Values{"after": {"3"}, "follow": {"0"}}); err != nil {
		t.Error(err)
	}
}
