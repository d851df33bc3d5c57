package framing_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
)

func TestChoose_ByWhatTheClientSays(t *testing.T) {
	for _, tc := range []struct {
		name, agent, query string
		offered            []string
		want               framing.Framing
		relay              bool
	}{
		{"jupyter-ekg", "Tornado/6", "", framing.Subprotocols(), framing.V1, true},
		{"job", "", "?session_id=a&nan=", []string{jupyter.SubprotocolRelay}, framing.Python, true},
		{"JupyterLab", "Mozilla", "?session_id=a", []string{jupyter.SubprotocolV1}, framing.V1, false},
		{"unmodified jupyter server", "Tornado/6", "?session_id=a", nil, framing.JupyterServer, false},
		{"GatewayKernelClient", "", "", nil, framing.TextOnly, false},
		{"older page", "Mozilla", "?session_id=a", nil, framing.Legacy, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/"+tc.query, nil)
			r.Header.Set("User-Agent", tc.agent)
			if got, relay := framing.Choose(r, tc.offered); got != tc.want || relay != tc.relay {
				t.Errorf("got %d %v, want %d %v", got, relay, tc.want, tc.relay)
			}
		})
	}
}

func TestDecode_Errors(t *testing.T) {
	message := func(c jupyter.Channel, header string) []byte {
		m := jupyter.Message{
			Channel:  c,
			Header:   []byte(header),
			Parent:   []byte("{}"),
			Metadata: []byte("{}"),
			Content:  []byte("{}"),
		}
		return jupyter.EncodeV1(&m)
	}
	long := `{"msg_id":"` + strings.Repeat("x", framing.MaxHeader) + `"}`
	for _, tc := range []struct {
		name   string
		binary bool
		data   []byte
		code   int // 0: ignored
	}{
		{"text on v1", false, []byte("{}"), 1003},
		{"no message", true, []byte("x"), 1007},
		{"header too long", true, message(jupyter.Shell, long), 1007},
		{"header is no JSON", true, message(jupyter.Shell, "{"), 1007},
		{"to iopub", true, message(jupyter.IOPub, "{}"), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := framing.Decode(framing.V1, tc.binary, tc.data)
			var end *framing.CloseError
			if tc.code == 0 {
				if !errors.Is(err, framing.ErrIgnored) {
					t.Errorf("got %v", err)
				}
			} else if !errors.As(err, &end) || end.Code != tc.code {
				t.Errorf("got %v, want code %d", err, tc.code)
			}
		})
	}
}

func TestShortReason_CutsWholeCharacters(t *testing.T) {
	for _, text := range []string{"short", strings.Repeat("é", 200), "x" + strings.Repeat("é", 200)} {
		got := framing.ShortReason(text)
		if len(got) > framing.MaxCloseReason || !utf8.ValidString(got) || !strings.HasPrefix(text, got) ||
			len(got) < min(len(text), 119) {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// TestEncode_Broken: a message that a framing cannot hold is replaced by a notice, so that its request ends.
func TestEncode_Broken(t *testing.T) {
	for _, part := range []string{"parent", "content"} {
		for _, f := range []framing.Framing{framing.Legacy, framing.JupyterServer, framing.TextOnly} {
			m := jupyter.New(jupyter.Shell, "execute_reply", "s", []byte(`{"msg_id":"a"}`), struct{}{})
			if part == "parent" {
				m.Parent = []byte("nonsense\x00")
			} else {
				m.Content = []byte("{")
			}
			frame := framing.Encode(&m, f)
			var got struct {
				Parent  map[string]string `json:"parent_header"`
				Content map[string]any    `json:"content"`
			}
			if err := json.Unmarshal(frame.Bytes(), &got); err != nil || got.Content["ename"] != "MessageLeftOut" ||
				(got.Parent["msg_id"] == "a") != (part == "content") {
				t.Errorf("%s in framing %d: %s, %v", part, f, frame.Bytes(), err)
			}
		}
	}
}

// TestEncode_Split: the parts of a large message are what a small message's frame would be in one piece.
func TestEncode_Split(t *testing.T) {
	text := strings.Repeat("text ", framing.SplitFrom/5)
	for _, m := range []jupyter.Message{
		{Content: []byte(`{"a":"` + text + `"}`)},
		{Content: []byte(`{"a":"` + text + "\xff\xfe" + `"}`)},
		{Content: []byte(`{"a":"` + text + `"`)}, // no JSON
		{Content: []byte(`{"a":[NaN,"` + text + `"]}`)},
		{Content: []byte(`{"a":NaN}`)},
		{Content: []byte(`{}`), Buffers: [][]byte{[]byte(text), {}, []byte("b")}},
		{Content: []byte(`{"a":"` + text + `"}`), Buffers: [][]byte{[]byte("\x00\xff")}},
		{Content: []byte(`{"a":"` + strings.Repeat(text, 1+framing.ServerLimit/len(text)) + `"}`)},
	} {
		m.Channel, m.Metadata = jupyter.IOPub, []byte("{}")
		m.Header = []byte(`{"msg_id":"i","msg_type":"display_data","date":"2026-01-01T00:00:00Z"}`)
		m.Parent = []byte(`{"msg_id":"p","msg_type":"execute_request"}`)
		for f := range framing.Count {
			frame := framing.Encode(&m, f)
			want, isBinary := framing.Append([]byte("before"), &m, f)
			got := append([]byte("before"), frame.Bytes()...)
			// Notices that replace a message have ids and dates of their own.
			if bytes.Contains(want, []byte("MessageLeftOut")) || bytes.Contains(want, []byte("[ekg]")) {
				if len(got) != len(want) {
					t.Errorf("framing %d: a notice of %d bytes, want %d", f, len(got), len(want))
				}
				continue
			}
			if !bytes.Equal(got, want) || frame.Binary != isBinary {
				t.Errorf("framing %d, %d bytes: %.300q, want %.300q", f, m.Size(), got, want)
			}
			if frame.Size() != len(want)-len("before") {
				t.Errorf("framing %d: size %d, want %d", f, frame.Size(), len(want)-len("before"))
			}
		}
	}
}

// TestEncode_NaN: browsers get null for numbers that they do not read, in each framing. The message itself keeps them.
func TestEncode_NaN(t *testing.T) {
	for _, text := range []string{"NaN", strings.Repeat("text ", framing.SplitFrom/5)} {
		content := `{"data":{"application/json":[NaN,NaN,NaN,NaN,Infinity,"NaN"]},"text":"` + text + `"}`
		m := jupyter.Message{Channel: jupyter.IOPub, Header: []byte(`{"msg_id":"i","msg_type":"display_data"}`),
			Parent: []byte(`{}`), Metadata: []byte(`{"x":-Infinity}`), Content: []byte(content)}
		for f := range framing.Count {
			got := string(framing.Encode(&m, f).Bytes())
			kept := strings.Contains(got, content) && strings.Contains(got, "-Infinity")
			nulled := strings.Contains(got, `[null,null,null,null,null,"NaN"]},"text":"`+text+`"}`) &&
				!strings.Contains(got, "Infinity")
			if kept != (f == framing.Python) || nulled == kept {
				t.Errorf("framing %d has %.300s", f, got)
			}
		}
		if string(m.Content) != content {
			t.Errorf("the message has now %.300s", m.Content)
		}
	}
}
