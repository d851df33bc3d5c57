// Package framing says how messages travel on a client's websocket (.../channels). Choose picks the Framing that a
// client understands, Append encodes a message for it, and Decode reads and checks a client's message. Gateway and
// supervisor use the package. It opens no socket and imports no websocket library.
package framing

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
)

// Framing is one of the forms in which messages are sent to clients.
type Framing uint8

// The framings.
const (
	Legacy        Framing = iota // JSON text, binary where there are buffers
	JupyterServer                // for an unmodified jupyter server: JSON text only, at most ServerLimit bytes
	TextOnly                     // for GatewayKernelClient: JSON text only
	V1                           // jupyter.SubprotocolV1, and behind a cursor jupyter.SubprotocolRelay
	Python                       // V1 for who reads NaN and infinities, as Python's json does: other framings have null
	Count                        // how many framings there are
)

const (
	// MaxHeader bounds the header of a client's message, in bytes: it becomes the parent of messages to all clients.
	MaxHeader = 16 << 10
	// MaxCloseReason bounds the reason of a close frame, in bytes. RFC 6455 leaves 123.
	MaxCloseReason = 120
	// ServerLimit is the largest message an unmodified jupyter server takes from its gateway, in bytes of payload
	// (Tornado's default; it closes with 1009 and the message is lost). Larger ones are replaced by a notice.
	ServerLimit = 10 << 20
)

// Close codes of RFC 6455, section 7.4.1.
const (
	closeUnsupportedData = 1003
	closeInvalidPayload  = 1007
)

// DropsBuffers reports whether messages are sent without their buffers, since the clients of the framing read text
// only.
func (f Framing) DropsBuffers() bool { return f == JupyterServer || f == TextOnly }

func (f Framing) isV1() bool { return f == V1 || f == Python }

// Subprotocols returns the subprotocols that a server of kernels speaks, the preferred one first.
func Subprotocols() []string { return []string{jupyter.SubprotocolRelay, jupyter.SubprotocolV1} }

// Choose returns the framing that a client understands, given the subprotocols that it offers. Relay is true for
// jupyter.SubprotocolRelay; the framing is V1 then, or Python if the query has
// jupyter.RelayNaN.
//
// Binary frames stop an unmodified jupyter server for good. GatewayKernelClient, which sends neither a User-Agent nor a
// session_id, reads text only.
func Choose(r *http.Request, offered []string) (f Framing, relay bool) {
	switch agent := r.UserAgent(); {
	case slices.Contains(offered, jupyter.SubprotocolRelay) && r.URL.Query().Has(jupyter.RelayNaN):
		return Python, true
	case slices.Contains(offered, jupyter.SubprotocolRelay):
		return V1, true
	case slices.Contains(offered, jupyter.SubprotocolV1):
		return V1, false
	case strings.HasPrefix(agent, "Tornado/"):
		return JupyterServer, false
	case agent == "" && !r.URL.Query().Has("session_id"):
		return TextOnly, false
	}
	return Legacy, false
}

// Frame is a message as one websocket message. It does not change.
type Frame struct {
	Parts  [][]byte // of the payload; they may be parts of the message
	Binary bool     // else text
}

// Size returns the number of payload bytes.
func (f *Frame) Size() (n int) {
	for _, part := range f.Parts {
		n += len(part)
	}
	return n
}

// Own returns how many bytes the frame takes besides the message: the first part, which is never the message's.
func (f *Frame) Own() int { return len(f.Parts[0]) }

// Bytes returns the payload as one piece.
func (f *Frame) Bytes() []byte {
	if len(f.Parts) == 1 {
		return f.Parts[0]
	}
	return slices.Concat(f.Parts...)
}

// SplitFrom is the size in bytes from which the parts of a message are not copied into one.
const SplitFrom = 32 << 10

// Encode returns a message in a framing. A message that the framing cannot hold is replaced by notice.LeftOut: its cell
// or its request then says why, and ends. Large messages are not copied: the frame shares their memory.
func Encode(m *jupyter.Message, f Framing) *Frame {
	m, own := readable(m, f)
	if own || m.Size() < SplitFrom {
		data, isBinary := Append(make([]byte, 0, m.Size()+frameOverhead+8*len(m.Buffers)), m, f)
		return &Frame{Parts: [][]byte{data}, Binary: isBinary}
	}
	parts, isBinary, err := split(m, f)
	if err != nil {
		data, isBinary := appendLeftOut(nil, m, f, err)
		return &Frame{Parts: [][]byte{data}, Binary: isBinary}
	}
	return &Frame{Parts: parts, Binary: isBinary}
}

// frameOverhead is the space for what a framing adds to a message without buffers.
const frameOverhead = 320

// Append appends the payload of the frame that Encode returns.
func Append(b []byte, m *jupyter.Message, f Framing) (_ []byte, isBinary bool) {
	m, _ = readable(m, f)
	out, isBinary, err := appendFrame(b, m, f)
	if err != nil {
		return appendLeftOut(b, m, f, err)
	}
	return out, isBinary
}

// readable returns the message without numbers that browsers do not read, and whether it is another one for that.
func readable(m *jupyter.Message, f Framing) (_ *jupyter.Message, own bool) {
	if f == Python {
		return m, false
	}
	content, inContent := jupyter.NullNaN(m.Content)
	metadata, inMetadata := jupyter.NullNaN(m.Metadata)
	if !inContent && !inMetadata {
		return m, false
	}
	changed := *m
	changed.Content, changed.Metadata = content, metadata
	return &changed, true
}

// appendLeftOut appends the notice that replaces a message.
func appendLeftOut(b []byte, m *jupyter.Message, f Framing, why error) (_ []byte, isBinary bool) {
	n := notice.LeftOut(m, int64(m.Size()), why.Error())
	if out, isBinary, err := appendFrame(b, &n, f); err == nil {
		return out, isBinary
	}
	// The parent is what cannot be sent, so the notice belongs to no cell. All its parts are our own, so it can be sent.
	n.Parent = []byte("{}")
	out, isBinary, err := appendFrame(b, &n, f)
	if err != nil {
		panic(err)
	}
	return out, isBinary
}

func appendFrame(b []byte, m *jupyter.Message, f Framing) (_ []byte, isBinary bool, err error) {
	if f.isV1() {
		return jupyter.AppendV1(b, m), true, nil
	}
	out, isBinary, err := jupyter.AppendLegacy(b, m, !f.DropsBuffers())
	if f == JupyterServer && err == nil && len(out)-len(b) > ServerLimit {
		n := tooLargeForServer(m)
		out, isBinary, err = jupyter.AppendLegacy(b, &n, false)
	}
	return out, isBinary, err
}

func split(m *jupyter.Message, f Framing) (parts [][]byte, isBinary bool, err error) {
	if f.isV1() {
		return jupyter.SplitV1(m), true, nil
	}
	parts, isBinary, err = jupyter.SplitLegacy(m, !f.DropsBuffers())
	if f == JupyterServer && err == nil && (&Frame{Parts: parts}).Size() > ServerLimit {
		n := tooLargeForServer(m)
		data, _, err := jupyter.AppendLegacy(nil, &n, false)
		return [][]byte{data}, false, err
	}
	return parts, isBinary, err
}

func tooLargeForServer(m *jupyter.Message) jupyter.Message {
	return notice.LeftOut(m, int64(m.Size()), fmt.Sprintf(
		"the jupyter server between this page and the gateway takes at most %d; see docs/jupyter-ekg.md", ServerLimit))
}

// ErrIgnored is returned for a client's message on a channel that it cannot send on. Jupyter's servers ignore those.
var ErrIgnored = errors.New("message for no channel of the kernel")

// CloseError is an unacceptable message: the websocket is closed with a close frame of this code and reason.
type CloseError struct {
	Code   int    // of RFC 6455
	Reason string // see ShortReason
}

// Error gives code and reason.
func (e *CloseError) Error() string { return fmt.Sprintf("closed with %d: %s", e.Code, e.Reason) }

// Decode reads one websocket message of a client whose framing is f, and its header. The error is ErrIgnored or a
// *CloseError. The message shares memory with data.
func Decode(f Framing, binary bool, data []byte) (m jupyter.Message, h jupyter.Header, err error) {
	switch {
	case !f.isV1():
		m, err = jupyter.DecodeLegacy(data, binary)
	case binary:
		m, err = jupyter.DecodeV1(data)
	default:
		return m, h, &CloseError{closeUnsupportedData, "text on a connection that speaks " + jupyter.SubprotocolV1}
	}
	if err == nil {
		h, err = jupyter.ParseHeader(m.Header)
	}
	if err == nil && (len(m.Header) > MaxHeader || !json.Valid(m.Header)) {
		err = fmt.Errorf("%w: header of %d bytes is not JSON, or too long", jupyter.ErrMalformed, len(m.Header))
	}
	switch {
	case errors.Is(err, jupyter.ErrChannel), err == nil && m.Channel == jupyter.IOPub:
		return m, h, ErrIgnored
	case err != nil:
		return m, h, &CloseError{closeInvalidPayload, err.Error()}
	}
	return m, h, nil
}

// ShortReason cuts a text to what fits a close frame, whole characters only.
func ShortReason(text string) string {
	if len(text) > MaxCloseReason {
		text = text[:MaxCloseReason]
	}
	return strings.ToValidUTF8(text, "")
}
