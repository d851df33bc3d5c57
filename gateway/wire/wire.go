// Package wire holds Jupyter's messages and the three forms they travel in: multipart ZeroMQ messages, and the two
// websocket framings of /api/kernels/{id}/channels. Bytes in, values out: it opens no socket and starts no goroutine.
//
// The four JSON parts of a message (header, parent_header, metadata, content) are carried as the bytes they came in and
// are never re-encoded: unknown members, integers over 2^53 and the spelling of floats reach the other side unchanged.
// Decoded messages share memory with their input, which the caller must not change afterwards.
//
// Formats: https://jupyter-client.readthedocs.io/en/stable/messaging.html and
// https://jupyter-server.readthedocs.io/en/latest/developers/websocket-protocols.html.
package wire

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Channel is one of the kernel's ZeroMQ channels as websocket clients see them. The zero value is no channel.
type Channel uint8

// The channels that messages travel on. The heartbeat carries no messages.
const (
	Shell Channel = iota + 1
	Control
	Stdin
	IOPub
)

var channelNames = [...]string{Shell: "shell", Control: "control", Stdin: "stdin", IOPub: "iopub"}

// String gives the channel's name in both websocket framings.
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

// Errors of the decoders, tested with errors.Is. They mean that the sender does not speak the protocol.
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
	Parent   []byte // parent_header; {} where there is none
	Metadata []byte
	Content  []byte
	Buffers  [][]byte
}

// Size is the number of payload bytes: JSON parts and buffers.
func (m *Message) Size() int {
	n := len(m.Header) + len(m.Parent) + len(m.Metadata) + len(m.Content)
	for _, b := range m.Buffers {
		n += len(b)
	}
	return n
}

// Header holds the members of a message header that a gateway needs; they are the raw JSON strings without quotes,
// which is how they are compared. A member that is missing or no string is empty.
type Header struct {
	MsgID    string
	MsgType  string
	Session  string
	Subshell string // JEP 91; empty for the main shell
}

// ParseHeader reads a header or parent_header. An empty object gives a zero Header.
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
			h.MsgType = internType(s)
		case "session":
			h.Session = string(s)
		case "subshell_id":
			h.Subshell = string(s)
		}
	})
	return h, err
}

// internType avoids an allocation for the types that make up nearly all traffic.
func internType(s []byte) string {
	switch string(s) {
	case "status":
		return "status"
	case "stream":
		return "stream"
	case "display_data":
		return "display_data"
	case "update_display_data":
		return "update_display_data"
	case "execute_input":
		return "execute_input"
	case "execute_request":
		return "execute_request"
	case "execute_reply":
		return "execute_reply"
	case "comm_msg":
		return "comm_msg"
	}
	return string(s)
}

// MsgType returns the msg_type of a header, or "".
func MsgType(header []byte) string {
	var t string
	if err := scanObject(header, func(key, value []byte) {
		if string(key) == "msg_type" && len(value) >= 2 && value[0] == '"' {
			t = internType(value[1 : len(value)-1])
		}
	}); err != nil {
		return ""
	}
	return t
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

// New makes a message of our own. Parent is the parent_header's raw JSON, or nil for none; content is encoded as JSON.
// It panics if content cannot be encoded.
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
	rand.Read(b[:]) //nolint:errcheck // crypto/rand.Read never fails
	return hex.EncodeToString(b[:])
}
