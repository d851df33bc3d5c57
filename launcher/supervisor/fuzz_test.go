package supervisor

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

// closeCodes are the codes with which a client's message may end its connection.
var closeCodes = []int{
	websocket.CloseUnsupportedData,
	websocket.CloseInvalidFramePayloadData,
	websocket.CloseTryAgainLater,
}

// A client's message in any framing is accepted, or ends its connection with a code and a reason. Everything that the
// supervisor sends because of it is valid JSON. Everything that the supervisor remembers because of it is bounded.
func FuzzMessage(f *testing.F) {
	for _, msgType := range []string{"kernel_info_request", "execute_request", "comm_msg", "input_reply", "odd_request",
		""} {
		for _, channel := range []jupyter.Channel{jupyter.Shell, jupyter.Control, jupyter.Stdin, jupyter.IOPub} {
			m := jupyter.New(channel, msgType, "s", nil, map[string]string{"code": "1"})
			v1 := jupyter.EncodeV1(&m)
			legacy, _, err := jupyter.AppendLegacy(nil, &m, false)
			if err != nil {
				f.Fatal(err)
			}
			m.Buffers = [][]byte{{1, 2}, nil, bytes.Repeat([]byte{0xff}, 300)}
			withBuffers, _, err := jupyter.AppendLegacy(nil, &m, true)
			if err != nil {
				f.Fatal(err)
			}
			for kind, data := range map[int][][]byte{websocket.BinaryMessage: {v1, v1[:len(v1)-1], withBuffers, withBuffers[:7]},
				websocket.TextMessage: {legacy, legacy[:len(legacy)/2], v1}} {
				for _, d := range data {
					f.Add(kind == websocket.BinaryMessage, d)
				}
			}
		}
	}
	header := func(text string) []byte {
		return []byte(`{"channel":"shell","header":` + text + `,"parent_header":{},"metadata":{},"content":{}}`)
	}
	for _, data := range [][]byte{
		nil, {0}, bytes.Repeat([]byte{0xff}, 64), []byte("null"), []byte("[]"), []byte("{}"),
		[]byte(`{"channel":null,"header":null}`), []byte("\xff\xfe"),
		header(`{}`), header(`[]`), header(`"x"`), header(`{"msg_id":5,"msg_type":[]}`),
		header(`{"msg_id":"a","msg_id":"b","msg_type":"execute_request","Msg_Type":"x"}`),
		header(`{"msg_id":"\u0000\ud800","msg_type":"execute_request"}`),
		header(`{"msg_id":"a","msg_type":"execute_request","session":"` + strings.Repeat("s", framing.MaxHeader) + `"}`),
		header(`{"msg_id":"a\nb","msg_type":"\u001b[31m_request"}`), header(`{"msg_id":"a","msg_type":"x","subshell_id":{}}`),
		header(strings.Repeat(`{"x":`, 11000) + "1" + strings.Repeat("}", 11000)),
		[]byte(`{"channel":"shell\u0000","header":{"msg_id":"a","msg_type":"x"}}`),
		binary.LittleEndian.AppendUint64(nil, 1<<63), binary.BigEndian.AppendUint32(nil, 1<<31),
	} {
		f.Add(true, data)
		f.Add(false, data)
	}
	f.Fuzz(func(t *testing.T, binary bool, data []byte) {
		kind := websocket.TextMessage
		if binary {
			kind = websocket.BinaryMessage
		}
		for _, state := range []api.State{api.Starting, api.Busy, api.Dead} {
			for _, fr := range []framing.Framing{framing.V1, framing.Legacy} {
				for _, readOnly := range []bool{false, true} {
					fuzzMessage(t, state, fr, readOnly, kind, data)
				}
			}
		}
	})
}

func fuzzMessage(t *testing.T, state api.State, fr framing.Framing, readOnly bool, kind int, data []byte) {
	logged := &bytes.Buffer{}
	s := New(api.Config{LogLimit: 1 << 20}, "test", loggerTo(logged))
	s.use.Reset(state)
	s.kernel.reason, s.kernel.info = "it \"ended\"", json.RawMessage(`{"status":"ok"}`)
	var sent []*messagelog.Entry
	c := &clientConn{s: s, framing: fr, readOnly: readOnly, send: func(messages ...jupyter.Message) {
		for _, m := range messages {
			sent = append(sent, &messagelog.Entry{Message: m})
		}
	}}
	if err := s.clients.attach(c, "ann"); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the second is a repetition or another request
		if end := receive(c, kind, bytes.Clone(data)); end != nil {
			if !slices.Contains(closeCodes, end.Code) || end.Reason == "" || !utf8.ValidString(end.Reason) ||
				strings.ContainsFunc(end.Reason, unicode.IsControl) {
				t.Errorf("ended with %d %q", end.Code, end.Reason)
			}
			break
		}
	}
	s.mu.Lock()
	if s.clients.requests.Len() > 3 || s.clients.requests.Pending(c.session.Number) > 3 || s.clients.sessions.Len() != 1 {
		t.Errorf("%d requests, %d of them of the session, %d sessions",
			s.clients.requests.Len(), s.clients.requests.Pending(c.session.Number), s.clients.sessions.Len())
	}
	for r := range s.clients.requests.Open() {
		if !json.Valid(r.Header) || len(r.Header) > framing.MaxHeader {
			t.Errorf("the header %q is kept", r.Header)
		}
		if readOnly {
			t.Errorf("the kernel was sent a reader's %s", r.Type)
		}
	}
	s.mu.Unlock()
	said, _, _ := s.log.Read(messagelog.Position{}, c.session.Number, 1<<20, nil)
	if readOnly && len(said) > 0 {
		t.Errorf("a reader has made %d entries in the log", len(said))
	}
	for _, e := range append(said, sent...) {
		for _, as := range []framing.Framing{framing.V1, framing.Legacy, framing.TextOnly, framing.JupyterServer} {
			if frame := s.log.Encode(e, as); !frame.Binary && !json.Valid(frame.Bytes()) {
				t.Errorf("the frame is not JSON: %q", frame.Bytes())
			}
		}
	}
	for line := range strings.Lines(logged.String()) {
		if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("log line %q", line)
		}
	}
}

// receive handles a message as a connection does.
func receive(c *clientConn, kind int, data []byte) *framing.CloseError {
	m, h, err := framing.Decode(c.framing, kind == websocket.BinaryMessage, data)
	var end *framing.CloseError
	switch {
	case errors.Is(err, framing.ErrIgnored):
		return nil
	case errors.As(err, &end):
		return end
	}
	return c.Receive(m, h)
}

// Any REST request, from a client or another peer of the socket, gets the kernel's answer or a clear rejection.
func FuzzREST(f *testing.F) {
	for _, method := range []string{"GET", "POST", "PATCH", "PUT", "DELETE", "BREW"} {
		for _, path := range []string{"", "/interrupt", "/restart", "/channels", "/log?limit=x", "/log?after=-1",
			"/log?after=99999999999999999999", "/limits", "/waiting", "/../x", "/x"} {
			for _, body := range []string{"", "{", "{}", `{"keep_until": "2030-01-01T00:00:00Z"}`, `{"keep_until": "\n"}`,
				`{"log_limit": -1}`, `{"log_limit": 1e99}`, `{"reason": "\u001b[31m"}`,
				`{"class":"x","text":"a\nb","version":"x"}`} {
				f.Add(method, path, body)
			}
		}
	}
	f.Fuzz(func(t *testing.T, method, path, body string) {
		r, err := http.NewRequest(method, "http://k/api/kernels/"+testKernelID+path, strings.NewReader(body))
		if err != nil || strings.HasPrefix(path, "/status") || r.URL.Query().Get("follow") != "" {
			return // the answer lasts
		}
		logged := &bytes.Buffer{}
		cfg := api.Config{KernelID: testKernelID, LogLimit: 1 << 20, Cull: api.Cull{KeepLimit: time.Hour}}
		s := New(cfg, "test", loggerTo(logged))
		s.endClients("test")
		w := &deadlineWriter{header: http.Header{}, status: http.StatusOK}
		s.Handler().ServeHTTP(w, r)
		text := w.body.String()
		var answer struct{ Reason, Message string }
		switch {
		case w.status >= 500 && w.status != http.StatusServiceUnavailable:
			t.Errorf("%s %s %s: got %d %s, log %s", method, path, body, w.status, text, logged)
		case w.status >= 400:
			if err := json.Unmarshal([]byte(text), &answer); err != nil || answer.Reason == "" || answer.Message == "" {
				t.Errorf("%s %s %s: got %d %s", method, path, body, w.status, text)
			}
		}
		for line := range strings.Lines(logged.String()) {
			if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("log line %q", line)
			}
		}
	})
}
