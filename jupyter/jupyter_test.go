package jupyter

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

// golden is a message as Jupyter's Python code writes it; testdata/record.py makes it.
type golden struct {
	Key    string   `json:"key"`
	ZMQ    []string `json:"zmq"`
	V1     string   `json:"v1"`
	Legacy string   `json:"legacy"`
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func loadGolden(t testing.TB) (g golden, frames [][]byte) {
	t.Helper()
	b, err := os.ReadFile("testdata/comm_msg.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	for _, f := range g.ZMQ {
		frames = append(frames, unhex(t, f))
	}
	return g, frames
}

func wantSame(t *testing.T, got, want *Message) {
	t.Helper()
	if got.Channel != want.Channel {
		t.Errorf("channel is %v, want %v", got.Channel, want.Channel)
	}
	for _, p := range []struct {
		name      string
		got, want []byte
	}{{"header", got.Header, want.Header}, {"parent", got.Parent, want.Parent}, {"metadata", got.Metadata, want.Metadata},
		{"content", got.Content, want.Content}} {
		if !bytes.Equal(p.got, p.want) {
			t.Errorf("%s is %s, want %s", p.name, p.got, p.want)
		}
	}
	if len(got.Buffers) != len(want.Buffers) {
		t.Fatalf("%d buffers, want %d", len(got.Buffers), len(want.Buffers))
	}
	for i := range got.Buffers {
		if !bytes.Equal(got.Buffers[i], want.Buffers[i]) {
			t.Errorf("buffer %d is %x, want %x", i, got.Buffers[i], want.Buffers[i])
		}
	}
}

// TestGolden catches any difference in layout, byte order or signature to what Jupyter's own code puts on the wire.
func TestGolden(t *testing.T) {
	g, frames := loadGolden(t)
	s := NewSigner([]byte(g.Key))
	m, err := ParseFrames(IOPub, frames, s)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Buffers) != 3 || string(m.Buffers[2]) != "tail" {
		t.Fatalf("buffers are %q", m.Buffers)
	}
	again := m.Frames(s)
	for i, f := range again {
		if !bytes.Equal(f, frames[i+1]) {
			t.Errorf("frame %d is %q, want %q", i, f, frames[i+1])
		}
	}
	if got := hex.EncodeToString(EncodeV1(&m)); got != g.V1 {
		t.Errorf("v1 frame differs:\n got %s\nwant %s", got, g.V1)
	}
	v1, err := DecodeV1(unhex(t, g.V1))
	if err != nil {
		t.Fatal(err)
	}
	wantSame(t, &v1, &m)

	// Python spells JSON differently, so the default framing is compared by what it holds.
	theirs, err := DecodeLegacy(unhex(t, g.Legacy), true)
	if err != nil {
		t.Fatal(err)
	}
	ours, binaryFrame, err := AppendLegacy(nil, &m, true)
	if err != nil || !binaryFrame {
		t.Fatal(binaryFrame, err)
	}
	back, err := DecodeLegacy(ours, true)
	if err != nil {
		t.Fatal(err)
	}
	wantSame(t, &back, &m)
	for name, pair := range map[string][2][]byte{
		"header": {theirs.Header, back.Header}, "content": {theirs.Content, back.Content},
	} {
		var a, b any
		if json.Unmarshal(pair[0], &a) != nil || json.Unmarshal(pair[1], &b) != nil {
			t.Fatalf("%s is no JSON", name)
		}
		if x, y := mustJSON(t, a), mustJSON(t, b); !bytes.Equal(x, y) {
			t.Errorf("%s: theirs %s, ours %s", name, x, y)
		}
	}
	for i := range theirs.Buffers {
		if !bytes.Equal(theirs.Buffers[i], back.Buffers[i]) {
			t.Errorf("buffer %d: theirs %x, ours %x", i, theirs.Buffers[i], back.Buffers[i])
		}
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestLegacy_textHasWhatClientsReadAtTopLevel(t *testing.T) {
	m := New(IOPub, "stream", "s", nil, map[string]string{"text": "x"})
	b, binaryFrame, err := AppendLegacy(nil, &m, true)
	if err != nil || binaryFrame {
		t.Fatal(binaryFrame, err)
	}
	var v struct {
		Channel string            `json:"channel"`
		MsgID   string            `json:"msg_id"`
		MsgType string            `json:"msg_type"`
		Header  map[string]string `json:"header"`
		Buffers []any             `json:"buffers"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	if v.Channel != "iopub" || v.MsgType != "stream" || v.MsgID == "" || v.MsgID != v.Header["msg_id"] ||
		v.Buffers == nil {
		t.Errorf("got %s", b)
	}
}

func TestLegacy_textIsAlwaysUTF8(t *testing.T) {
	m := New(IOPub, "stream", "s", nil, struct{}{})
	m.Content = []byte("{\"text\":\"a\xffb\"}")
	b, _, err := AppendLegacy(nil, &m, true)
	if err != nil {
		t.Fatal(err)
	}
	if !utf8.Valid(b) {
		t.Errorf("a browser closes the connection over %q", b)
	}
}

func TestLegacy_kernelCannotWriteOutsideItsPart(t *testing.T) {
	for _, content := range []string{`{},"channel":"shell"`, `{"a":1}}`, `[],"x":1`, ``, `{"a":"`, `{"a"`} {
		m := New(IOPub, "stream", "s", nil, struct{}{})
		m.Content = []byte(content)
		if b, _, err := AppendLegacy(nil, &m, true); !errors.Is(err, ErrMalformed) {
			t.Errorf("content %q became %s, %v", content, b, err)
		}
	}
}

func TestDecodeLegacy(t *testing.T) {
	const h = `"header":{"msg_id":"1","date":1732186800.25,"n":9007199254740993},"parent_header":{},"metadata":{}`
	for _, tc := range []struct {
		name, in string
		channel  Channel
		err      error
	}{
		{"all there", `{` + h + `,"content":{},"buffers":[],"channel":"control"}`, Control, nil},
		{"no channel means shell", `{` + h + `,"content":{}}`, Shell, nil},
		{"null channel means shell", `{` + h + `,"content":{},"channel":null}`, Shell, nil},
		{"no content", `{` + h + `}`, Shell, nil},
		{"buffers as an object", `{` + h + `,"buffers":{}}`, Shell, nil},
		{"unknown members", `{"x":[{"]":"}"}],` + h + `}`, Shell, nil},
		{"escaped quotes", `{"x":"\\\"","y":"\\\\",` + h + `}`, Shell, nil},
		{"unknown channel", `{` + h + `,"channel":"gossip"}`, 0, ErrChannel},
		{"no header", `{"parent_header":{},"metadata":{}}`, 0, ErrMalformed},
		{"header is no object", `{"header":"x","parent_header":{},"metadata":{}}`, 0, ErrMalformed},
		{"not JSON", `hello`, 0, ErrMalformed},
		{"array", `[]`, 0, ErrMalformed},
		{"empty", ``, 0, ErrMalformed},
		{"cut off", `{` + h, 0, ErrMalformed},
		{"two objects", `{` + h + `}{}`, 0, ErrMalformed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := DecodeLegacy([]byte(tc.in), false)
			if !errors.Is(err, tc.err) {
				t.Fatalf("error is %v, want %v", err, tc.err)
			}
			if m.Channel != tc.channel {
				t.Errorf("channel is %v, want %v", m.Channel, tc.channel)
			}
			if err == nil && !strings.Contains(string(m.Header), "9007199254740993") {
				t.Errorf("header was changed: %s", m.Header)
			}
		})
	}
}

// TestDecodeLegacy_binaryInText: jupyter_server's gateway client sends the browser's binary messages in text frames.
func TestDecodeLegacy_binaryInText(t *testing.T) {
	g, _ := loadGolden(t)
	m, err := DecodeLegacy(unhex(t, g.Legacy), false)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Buffers) != 3 {
		t.Errorf("%d buffers, want 3", len(m.Buffers))
	}
}

func TestDecodeV1_offsets(t *testing.T) {
	g, _ := loadGolden(t)
	good := unhex(t, g.V1)
	put := func(index int, v uint64) []byte {
		b := bytes.Clone(good)
		binary.LittleEndian.PutUint64(b[8*index:], v)
		return b
	}
	for name, frame := range map[string][]byte{
		"empty":                    {},
		"short":                    good[:40],
		"cut off":                  good[:len(good)-1],
		"longer":                   append(bytes.Clone(good), 0),
		"count 2^62":               put(0, 1<<62),
		"count too small":          put(0, 5),
		"count over the frame":     put(0, uint64(len(good)/8)),
		"first offset":             put(1, 8),
		"offset behind the end":    put(3, uint64(len(good)+1)),
		"offset decreasing":        put(4, 80),
		"offset 2^63":              put(3, 1<<63),
		"last is not frame length": put(9, uint64(len(good)-1)),
	} {
		t.Run(name, func(t *testing.T) {
			if m, err := DecodeV1(frame); !errors.Is(err, ErrMalformed) {
				t.Errorf("got %v, %v", m, err)
			}
		})
	}
	b := bytes.Clone(good)
	copy(b[bytes.Index(b, []byte("iopub")):], "gossi")
	if _, err := DecodeV1(b); !errors.Is(err, ErrChannel) {
		t.Errorf("unknown channel: %v", err)
	}
}

func TestParseFrames(t *testing.T) {
	_, frames := loadGolden(t)
	g, _ := loadGolden(t)
	s := NewSigner([]byte(g.Key))
	t.Run("no topic", func(t *testing.T) {
		if _, err := ParseFrames(IOPub, frames[1:], s); err != nil {
			t.Error(err) // ipykernel's iopub_welcome
		}
	})
	t.Run("changed content", func(t *testing.T) {
		f := append([][]byte(nil), frames...)
		f[6] = []byte(`{"evil":1}`)
		if _, err := ParseFrames(IOPub, f, s); !errors.Is(err, ErrSignature) {
			t.Error(err)
		}
	})
	t.Run("no signature", func(t *testing.T) {
		f := append([][]byte(nil), frames...)
		f[2] = nil
		if _, err := ParseFrames(IOPub, f, s); !errors.Is(err, ErrSignature) {
			t.Error(err)
		}
	})
	t.Run("too few frames", func(t *testing.T) {
		for n := range 7 {
			if _, err := ParseFrames(IOPub, frames[:n], s); !errors.Is(err, ErrMalformed) {
				t.Errorf("%d frames: %v", n, err)
			}
		}
	})
	t.Run("no key", func(t *testing.T) {
		f := append([][]byte(nil), frames...)
		f[2] = nil
		if _, err := ParseFrames(IOPub, f, NewSigner(nil)); err != nil {
			t.Error(err)
		}
	})
}

func TestParseHeader(t *testing.T) {
	h, err := ParseHeader([]byte(`{"session":"s","extra":{"msg_id":"no"},"msg_type":"x","msg_id":"i","subshell_id":null}`))
	if want := (Header{MsgID: "i", MsgType: "x", Session: "s"}); err != nil || h != want {
		t.Errorf("got %+v, %v", h, err)
	}
	if h, err := ParseHeader([]byte(`{}`)); err != nil || h != (Header{}) {
		t.Errorf("empty: %+v, %v", h, err)
	}
	if _, err := ParseHeader([]byte(`null`)); !errors.Is(err, ErrMalformed) {
		t.Errorf("null: %v", err)
	}
}

// FuzzDecode: no bytes of a client make a decoder fail in any way but by its error, and what is decoded says the same
// again after it was encoded in the other framing.
func FuzzDecode(f *testing.F) {
	g, _ := loadGolden(f)
	f.Add(unhex(f, g.V1), uint8(0))
	f.Add(unhex(f, g.Legacy), uint8(1))
	f.Add([]byte(`{"header":{"msg_id":"1"},"parent_header":{},"metadata":{},"content":{}}`), uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, kind uint8) {
		var m Message
		var err error
		switch kind % 3 {
		case 0:
			m, err = DecodeV1(data)
		case 1:
			m, err = DecodeLegacy(data, true)
		default:
			m, err = DecodeLegacy(data, false)
		}
		if err != nil {
			return
		}
		again, err := DecodeV1(EncodeV1(&m))
		if err != nil {
			t.Fatalf("our own frame: %v", err)
		}
		wantSame(t, &again, &m)
		frame, binaryFrame, err := AppendLegacy(nil, &m, true)
		if err != nil {
			return // v1 carries parts that are no objects
		}
		again, err = DecodeLegacy(frame, binaryFrame)
		if err != nil {
			t.Fatalf("our own frame %q: %v", frame, err)
		}
		if utf8.Valid(frame) && utf8.Valid(m.Content) &&
			!bytes.Equal(bytes.TrimSpace(again.Content), bytes.TrimSpace(m.Content)) {
			t.Fatalf("content %q became %q", m.Content, again.Content)
		}
	})
}

// FuzzParseFrames: no frames of a kernel make the parser fail in any way but by its error.
func FuzzParseFrames(f *testing.F) {
	f.Add([]byte("topic\x00<IDS|MSG>\x00\x00{}\x00{}\x00{}\x00{}\x00buffer"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		m, err := ParseFrames(IOPub, bytes.Split(data, []byte{0}), NewSigner(nil))
		if err == nil {
			_, _ = ParseHeader(m.Parent)
			_, _, _ = AppendLegacy(nil, &m, true)
		}
	})
}

func BenchmarkPath(b *testing.B) {
	g, frames := loadGolden(b)
	s := NewSigner([]byte(g.Key))
	for _, bc := range []struct {
		name   string
		encode func(*Message)
	}{
		{"v1", func(m *Message) { EncodeV1(m) }},
		{"legacy", func(m *Message) {
			if _, _, err := AppendLegacy(nil, m, true); err != nil {
				b.Fatal(err)
			}
		}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m, err := ParseFrames(IOPub, frames, s)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := ParseHeader(m.Parent); err != nil {
					b.Fatal(err)
				}
				bc.encode(&m)
			}
		})
	}
}

// TestDecode_tooManyBuffers: empty buffers are free for the sender and cost the receiver several times their offset.
func TestDecode_tooManyBuffers(t *testing.T) {
	for n, ok := range map[int]bool{maxBuffers: true, maxBuffers + 1: false} {
		m := New(Shell, "comm_msg", "s", nil, struct{}{})
		m.Buffers = make([][]byte, n)
		if _, err := DecodeV1(EncodeV1(&m)); (err == nil) != ok {
			t.Errorf("v1 with %d buffers: %v", n, err)
		}
		frame, _, err := AppendLegacy(nil, &m, true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeLegacy(frame, true); (err == nil) != ok {
			t.Errorf("default framing with %d buffers: %v", n, err)
		}
	}
}

// TestAppendLegacy_AnyValue: parts besides the header may be any JSON value, since some kernels send null. Other
// text is an error.
func TestAppendLegacy_AnyValue(t *testing.T) {
	for _, part := range []string{"null", "[1]", `"text"`, " 1.5e3 ", "true", "{}"} {
		m := Message{Channel: Shell, Header: []byte(`{"msg_id":"a"}`), Parent: []byte(part), Metadata: []byte(part),
			Content: []byte(part)}
		frame, _, err := AppendLegacy(nil, &m, true)
		var got map[string]any
		if err != nil || json.Unmarshal(frame, &got) != nil || fmt.Sprint(got["metadata"]) != fmt.Sprint(got["content"]) {
			t.Errorf("%s: %s, %v", part, frame, err)
		}
	}
	for _, part := range []string{"", " ", "{", `{"a":1`, "1 2", "null}", "[1", `"a`, `{"a":1},"content":{}`} {
		m := Message{Channel: Shell, Header: []byte(`{}`), Parent: []byte("{}"), Metadata: []byte(part), Content: []byte("{}")}
		if frame, _, err := AppendLegacy(nil, &m, true); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: %s, %v", part, frame, err)
		}
	}
}

func TestParseHead(t *testing.T) {
	var frames [][]byte
	for _, f := range []string{"topic", Delimiter, "signature", "{1}", "{2}", "{3}"} {
		frames = append(frames, []byte(f))
	}
	for n := range frames {
		m, ok := ParseHead(IOPub, frames[:n])
		if ok != (n > 4) || ok && (string(m.Header) != "{1}" || string(m.Parent) != "{2}" || m.Channel != IOPub) {
			t.Errorf("%d frames: %+v, %v", n, m, ok)
		}
	}
}

func TestMessage_Clone(t *testing.T) {
	for _, m := range []Message{
		{Channel: IOPub},
		{Channel: Shell, Header: []byte("h"), Parent: []byte("pp"), Metadata: []byte("m"), Content: []byte("cc"),
			Buffers: [][]byte{[]byte("b"), {}, []byte("bb")}},
	} {
		c := m.Clone()
		if got, want := fmt.Sprintf("%q", c), fmt.Sprintf("%q", m); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		for _, part := range append([][]byte{m.Header, m.Parent, m.Metadata, m.Content}, m.Buffers...) {
			clear(part)
		}
		if string(c.Header) != string(bytes.Repeat([]byte("h"), len(m.Header))) || cap(c.Header) != len(c.Header) {
			t.Errorf("the copy shares memory: %q", c)
		}
	}
}
