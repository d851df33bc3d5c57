// Package jupyter encodes and decodes Jupyter's messages. A Message travels as multipart ZeroMQ frames between
// supervisor and kernel (zmq.go, signed by a Signer), and in two framings on websockets of /api/kernels/{id}/channels
// (websocket.go). The package turns bytes into values and back. It opens no socket and starts no goroutine. Gateway and
// supervisor use it. Begin with Message.
//
// The four JSON parts of a message (header, parent_header, metadata, content) stay the bytes that were received. They
// are never encoded again: unknown members, integers over 2^53 and the spelling of floats reach the other side
// unchanged. Decoded messages share memory with their input, which the caller must not change afterwards.
//
// Formats: https://jupyter-client.readthedocs.io/en/stable/messaging.html and
// https://jupyter-server.readthedocs.io/en/latest/developers/websocket-protocols.html.
package jupyter

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Channel is one of a kernel's ZeroMQ channels as websocket clients see them. The zero value is not a channel.
type Channel uint8

// The channels with messages. The heartbeat has none.
const (
	Shell Channel = iota + 1
	Control
	Stdin
	IOPub
)

var channelNames = [...]string{Shell: "shell", Control: "control", Stdin: "stdin", IOPub: "iopub"}

// String returns the channel's name in both websocket framings.
func (c Channel) String() string {
	if c < Shell || c > IOPub {
		return fmt.Sprintf("channel(%d)", uint8(c))
	}
	return channelNames[c]
}

func parseChannel(name []byte) (Channel, bool) {
	for c := Shell; c <= IOPub; c++ {
		if string(name) == channelNames[c] {
			return c, true
		}
	}
	return 0, false
}

// Errors of the decoders, for errors.Is. They mean that the sender violates the protocol.
var (
	ErrMalformed = errors.New("malformed message")
	// ErrChannel is returned with a message whose channel no kernel has. Jupyter's servers ignore such messages.
	ErrChannel = errors.New("unknown channel")
	// ErrSignature says that a ZeroMQ message was not signed with the kernel's key.
	ErrSignature = errors.New("wrong signature")
)

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
}

// Message is one Jupyter message. The JSON parts are objects, as the peer wrote them.
type Message struct {
	Channel  Channel
	Header   []byte
	Parent   []byte // parent_header; {} without a parent
	Metadata []byte
	Content  []byte
	Buffers  [][]byte
}

// Size returns the number of payload bytes: JSON parts and buffers.
func (m *Message) Size() int {
	n := len(m.Header) + len(m.Parent) + len(m.Metadata) + len(m.Content)
	for _, b := range m.Buffers {
		n += len(b)
	}
	return n
}

// Clone returns the message in memory of its own, which it shares with no other message.
func (m *Message) Clone() Message {
	rest := make([]byte, 0, m.Size())
	part := func(b []byte) []byte {
		n := len(rest)
		rest = append(rest, b...)
		return rest[n:len(rest):len(rest)]
	}
	out := Message{Channel: m.Channel, Header: part(m.Header), Parent: part(m.Parent), Metadata: part(m.Metadata),
		Content: part(m.Content)}
	for _, b := range m.Buffers {
		out.Buffers = append(out.Buffers, part(b))
	}
	return out
}

// Header has the members of a message header that a gateway needs. They are raw JSON strings without quotes, and are
// compared as such. A member that is missing or not a string is empty.
type Header struct {
	MsgID    string
	MsgType  string
	Session  string
	Subshell string // JEP 91; empty for the main shell
}

// ParseHeader reads a header or parent_header. An empty object is the zero Header.
func ParseHeader(raw []byte) (Header, error) {
	var h Header
	err := scanObject(raw, func(key, value []byte) {
		if len(value) < 2 || value[0] != '"' {
			return
		}
		s := value[1 : len(value)-1]
		switch string(key) {
		case "msg_id":
			h.MsgID = string(s)
		case "msg_type":
			h.MsgType = string(s)
		case "session":
			h.Session = string(s)
		case "subshell_id":
			h.Subshell = string(s)
		}
	})
	return h, err
}

// IDAndType returns the msg_id and the msg_type of a header. The msg_id shares the header's memory. Both are empty if
// the header is not a JSON object. One that is missing is empty.
func IDAndType(header []byte) (id []byte, msgType string) {
	if err := scanObject(header, func(key, value []byte) {
		if len(value) < 2 || value[0] != '"' {
			return
		}
		switch string(key) {
		case "msg_id":
			id = value[1 : len(value)-1]
		case "msg_type":
			msgType = string(value[1 : len(value)-1])
		}
	}); err != nil {
		return nil, ""
	}
	return id, msgType
}

// StringField returns a top-level string member of a JSON object, as the raw JSON text between its quotes, or "".
func StringField(object []byte, name string) string { return string(RawField(object, name)) }

// RawField is StringField without a copy: the result lies in object.
func RawField(object []byte, name string) []byte {
	var v []byte
	if err := scanObject(object, func(key, value []byte) {
		if string(key) == name && len(value) >= 2 && value[0] == '"' {
			v = value[1 : len(value)-1]
		}
	}); err != nil {
		return nil
	}
	return v
}

// Unquote returns the text of a JSON string, given without its quotes as RawField returns it, or "" if that is invalid.
func Unquote(raw []byte) string {
	var text string
	if err := json.Unmarshal(append(append([]byte{'"'}, raw...), '"'), &text); err != nil {
		return ""
	}
	return text
}

// New makes a message of ekg's own. parent is the raw JSON of the parent_header, or nil for no parent. content is
// encoded as JSON; New panics if that fails.
func New(channel Channel, msgType, session string, parent []byte, content any) Message {
	header, err := json.Marshal(struct {
		MsgID    string `json:"msg_id"`
		MsgType  string `json:"msg_type"`
		Session  string `json:"session"`
		Username string `json:"username"`
		Date     string `json:"date"`
		Version  string `json:"version"`
	}{NewID(), msgType, session, "ekg", time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"), "5.3"})
	if err != nil {
		panic(err)
	}
	body, err := json.Marshal(content)
	if err != nil {
		panic(err)
	}
	if len(parent) == 0 {
		parent = []byte("{}")
	}
	return Message{Channel: channel, Header: header, Parent: parent, Metadata: []byte("{}"), Content: body}
}

// NewID returns a random message or session id of 32 hexadecimal digits.
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
