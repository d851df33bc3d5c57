package jupyter

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"unicode/utf8"
)

// SubprotocolV1 is the name of the newer websocket framing, offered and chosen in Sec-WebSocket-Protocol.
const SubprotocolV1 = "v1.kernel.websocket.jupyter.org"

// SubprotocolRelay is SubprotocolV1 for a relay: the jupyter-ekg extension. Each message to a relay is a cursor of
// RelayCursor bytes, which the relay does not interpret, followed by the frame. Messages from a relay are plain v1
// frames. A relay that reconnects with ?cursor= and its last cursor in hexadecimal gets the messages after that cursor.
// With the parameter RelayNaN it gets NaN and infinities as a kernel has sent them. Everybody else gets null.
const (
	SubprotocolRelay = "v1.relay.ekg"
	RelayCursor      = 24
	RelayNaN         = "nan"
)

// Sizes of the integers of the two layouts, and the smallest counts.
const (
	v1Word, v1MinOffsets         = 8, 6 // uint64, little endian: channel, four JSON parts, end
	legacyWord, legacyMinOffsets = 4, 1 // uint32, big endian: the JSON part
)

// maxBuffers bounds the buffers of one message from a client, since each buffer costs several times its offset.
// Messages of kernels have the same bound (launcher/supervisor's limit of ZeroMQ frames).
const maxBuffers = 1 << 16

// EncodeV1 returns the message in the v1 framing: a binary frame.
//
//	0      n, the number of offsets: 6 + number of buffers
//	8      n offsets from the start of the frame; the last is the frame's length
//	o[0]   channel, header, parent_header, metadata, content, buffers
func EncodeV1(m *Message) []byte {
	return AppendV1(make([]byte, 0, v1Overhead+v1Word*len(m.Buffers)+m.Size()), m)
}

// v1Overhead is the space for the offsets of a message without buffers, and the channel's name.
const v1Overhead = v1Word*(v1MinOffsets+1) + 16

// AppendV1 appends the message in the v1 framing; see EncodeV1.
func AppendV1(b []byte, m *Message) []byte {
	b = append(appendV1Head(b, m), m.Content...)
	for _, buffer := range m.Buffers {
		b = append(b, buffer...)
	}
	return b
}

// SplitV1 returns the frame of EncodeV1 in parts. Content and buffers are not copied.
func SplitV1(m *Message) [][]byte {
	return append(append(make([][]byte, 0, 2+len(m.Buffers)), appendV1Head(nil, m), m.Content), m.Buffers...)
}

// appendV1Head appends a frame of the v1 framing, up to the content.
func appendV1Head(b []byte, m *Message) []byte {
	name := m.Channel.String()
	n := v1MinOffsets + len(m.Buffers)
	b = slices.Grow(b, v1Word*(n+1)+len(name)+len(m.Header)+len(m.Parent)+len(m.Metadata))
	at := uint64(v1Word * (n + 1))
	b = binary.LittleEndian.AppendUint64(b, uint64(n))
	b = binary.LittleEndian.AppendUint64(b, at)
	at += uint64(len(name))
	for _, part := range [...][]byte{m.Header, m.Parent, m.Metadata, m.Content} {
		b = binary.LittleEndian.AppendUint64(b, at)
		at += uint64(len(part))
	}
	for _, part := range m.Buffers {
		b = binary.LittleEndian.AppendUint64(b, at)
		at += uint64(len(part))
	}
	b = binary.LittleEndian.AppendUint64(b, at)
	b = append(b, name...)
	b = append(b, m.Header...)
	b = append(b, m.Parent...)
	return append(b, m.Metadata...)
}

// V1Size returns how large a frame is that begins with head: its last offset says it. ok is false if head does not have
// that offset.
func V1Size(head []byte) (size int64, ok bool) {
	if len(head) < v1Word {
		return 0, false
	}
	n := binary.LittleEndian.Uint64(head)
	if n == 0 || n > uint64(len(head)/v1Word-1) {
		return 0, false
	}
	last := binary.LittleEndian.Uint64(head[v1Word*n:])
	return int64(last), last <= math.MaxInt64
}

// DecodeV1 reads a frame of the v1 framing. It does not check the JSON. With ErrChannel the rest of the message is
// valid.
func DecodeV1(frame []byte) (Message, error) {
	if len(frame) < v1Word*(v1MinOffsets+1) {
		return Message{}, malformed("frame of %d bytes is too short", len(frame))
	}
	n := binary.LittleEndian.Uint64(frame)
	if n < v1MinOffsets || n > uint64(len(frame)/v1Word-1) {
		return Message{}, malformed("frame of %d bytes with %d offsets", len(frame), n)
	}
	if n > v1MinOffsets+maxBuffers {
		return Message{}, malformed("message with %d buffers, at most %d allowed", n-v1MinOffsets, maxBuffers)
	}
	parts := make([][]byte, n-1)
	at := binary.LittleEndian.Uint64(frame[v1Word:])
	if at != v1Word*(n+1) {
		return Message{}, malformed("first offset is %d, not %d", at, v1Word*(n+1))
	}
	for i := range parts {
		end := binary.LittleEndian.Uint64(frame[v1Word*(i+2):])
		if end < at || end > uint64(len(frame)) {
			return Message{}, malformed("offset %d is %d, outside %d to %d", i+1, end, at, len(frame))
		}
		parts[i] = frame[at:end:end]
		at = end
	}
	if at != uint64(len(frame)) {
		return Message{}, malformed("last offset is %d, the frame has %d bytes", at, len(frame))
	}
	m := Message{Header: parts[1], Parent: parts[2], Metadata: parts[3], Content: parts[4]}
	if len(parts) > 5 {
		m.Buffers = parts[5:]
	}
	var ok bool
	if m.Channel, ok = parseChannel(parts[0]); !ok {
		return m, ErrChannel
	}
	return m, nil
}

// AppendLegacy appends the message in the default framing: a text frame, or a binary one if it has buffers and
// withBuffers is true. Without withBuffers the buffers are left out. Text is always valid UTF-8, since a browser closes
// the connection after anything else.
//
//	0      n, the number of parts: 1 + number of buffers
//	4      n offsets from the start of the frame
//	o[0]   the JSON object as in a text frame, then the buffers
func AppendLegacy(b []byte, m *Message, withBuffers bool) (frame []byte, binaryFrame bool, err error) {
	start := len(b)
	b, tail, binaryFrame, err := appendLegacyHead(b, m, withBuffers)
	if err != nil {
		return nil, false, err
	}
	b = append(append(b, m.Content...), tail...)
	if !binaryFrame {
		if !utf8.Valid(b[start:]) {
			b = append(b[:start:start], bytes.ToValidUTF8(b[start:], replacement)...)
		}
		return b, false, nil
	}
	for _, buffer := range m.Buffers {
		b = append(b, buffer...)
	}
	return b, true, nil
}

// replacement is written for bytes that are not UTF-8.
var replacement = []byte("\uFFFD")

// SplitLegacy returns the frame of AppendLegacy in parts. Content and buffers are not copied if the content is UTF-8.
func SplitLegacy(m *Message, withBuffers bool) (parts [][]byte, binaryFrame bool, err error) {
	head, tail, binaryFrame, err := appendLegacyHead(nil, m, withBuffers)
	if err != nil {
		return nil, false, err
	}
	content := m.Content
	if binaryFrame {
		return append(append(make([][]byte, 0, 3+len(m.Buffers)), head, content, []byte(tail)), m.Buffers...), true, nil
	}
	if !utf8.Valid(head) {
		head = bytes.ToValidUTF8(head, replacement)
	}
	if !utf8.Valid(content) {
		content = bytes.ToValidUTF8(content, replacement)
	}
	return [][]byte{head, content, []byte(tail)}, false, nil
}

// legacyOverhead is the space for member names, and for msg_id and msg_type, which are written twice.
const legacyOverhead = 320

// appendLegacyHead appends a frame of the default framing, up to the content. The tail and the buffers follow the
// content.
func appendLegacyHead(b []byte, m *Message, withBuffers bool) (_ []byte, tail string, binaryFrame bool, err error) {
	if len(m.Buffers) == 0 || !withBuffers {
		b, err = appendLegacyJSON(b, m)
		return b, `,"buffers":[],"channel":"` + m.Channel.String() + `"}`, false, err
	}
	tail = `,"channel":"` + m.Channel.String() + `"}`
	n := 1 + len(m.Buffers)
	start, from := legacyWord*(n+1), len(b)
	if size := uint64(start) + legacyOverhead + uint64(m.Size()); size > 1<<32-1 {
		return nil, "", false, malformed("a message of %d bytes does not fit the framing", m.Size())
	}
	b = slices.Grow(b, start+legacyOverhead)[:from+start]
	if b, err = appendLegacyJSON(b, m); err != nil {
		return nil, "", false, err
	}
	binary.BigEndian.PutUint32(b[from:], uint32(n))
	binary.BigEndian.PutUint32(b[from+legacyWord:], uint32(start))
	at := len(b) - from + len(m.Content) + len(tail)
	for i, buffer := range m.Buffers {
		binary.BigEndian.PutUint32(b[from+legacyWord*(i+2):], uint32(at))
		at += len(buffer)
	}
	return b, tail, true, nil
}

// appendLegacyJSON appends the JSON object of the default framing, up to the content, which it only checks. The object
// has msg_id and msg_type at the top level, without which some clients fail (jupyter_server's GatewayKernelClient).
// Only the header must be an object: some kernels send null for other parts, and clients take any JSON value there.
func appendLegacyJSON(b []byte, m *Message) ([]byte, error) {
	id, msgType := []byte(`""`), []byte(`""`)
	if err := scanObject(m.Header, func(key, value []byte) {
		switch string(key) {
		case "msg_id":
			id = value
		case "msg_type":
			msgType = value
		}
	}); err != nil {
		return nil, err
	}
	for _, part := range [...][]byte{m.Parent, m.Metadata, m.Content} {
		if err := checkValue(part); err != nil {
			return nil, err
		}
	}
	b = append(append(b, `{"header":`...), m.Header...)
	b = append(append(b, `,"msg_id":`...), id...)
	b = append(append(b, `,"msg_type":`...), msgType...)
	b = append(append(b, `,"parent_header":`...), m.Parent...)
	b = append(append(b, `,"metadata":`...), m.Metadata...)
	return append(b, `,"content":`...), nil
}

// DecodeLegacy reads a frame of the default framing, text or binary, as clients send it. A missing channel means shell,
// and missing content means {}. It recognizes a binary message in a text frame, which jupyter_server's gateway client
// sends. With ErrChannel the rest of the message is valid.
func DecodeLegacy(frame []byte, binaryFrame bool) (Message, error) {
	if !binaryFrame && looksBinary(frame) {
		binaryFrame = true
	}
	if !binaryFrame {
		return decodeLegacyJSON(frame)
	}
	if len(frame) < 2*legacyWord {
		return Message{}, malformed("binary frame of %d bytes is too short", len(frame))
	}
	n := binary.BigEndian.Uint32(frame)
	if n < legacyMinOffsets || uint64(n) > uint64(len(frame)/legacyWord-1) {
		return Message{}, malformed("binary frame of %d bytes with %d parts", len(frame), n)
	}
	at := uint64(binary.BigEndian.Uint32(frame[legacyWord:]))
	if at != legacyWord*(uint64(n)+1) {
		return Message{}, malformed("first offset is %d, not %d", at, legacyWord*(uint64(n)+1))
	}
	if n > legacyMinOffsets+maxBuffers {
		return Message{}, malformed("message with %d buffers, at most %d allowed", n-legacyMinOffsets, maxBuffers)
	}
	parts := make([][]byte, n)
	for i := range parts {
		end := uint64(len(frame))
		if i+1 < len(parts) {
			end = uint64(binary.BigEndian.Uint32(frame[legacyWord*(i+2):]))
		}
		if end < at || end > uint64(len(frame)) {
			return Message{}, malformed("offset %d is %d, outside %d to %d", i+1, end, at, len(frame))
		}
		parts[i] = frame[at:end:end]
		at = end
	}
	m, err := decodeLegacyJSON(parts[0])
	if len(parts) > 1 {
		m.Buffers = parts[1:]
	}
	return m, err
}

// looksBinary reports whether a text frame has the binary layout. A count of parts begins with a zero byte, and JSON
// never does.
func looksBinary(frame []byte) bool {
	if len(frame) < 2*legacyWord || frame[0] != 0 {
		return false
	}
	n := uint64(binary.BigEndian.Uint32(frame))
	return uint64(binary.BigEndian.Uint32(frame[legacyWord:])) == legacyWord*(n+1)
}

func decodeLegacyJSON(b []byte) (Message, error) {
	m := Message{Channel: Shell}
	var channelErr error
	err := scanObject(b, func(key, value []byte) {
		switch string(key) {
		case "header":
			m.Header = value
		case "parent_header":
			m.Parent = value
		case "metadata":
			m.Metadata = value
		case "content":
			m.Content = value
		case "channel":
			if len(value) < 2 || value[0] != '"' || string(value) == `""` {
				return // absent or null: shell
			}
			var ok bool
			if m.Channel, ok = parseChannel(value[1 : len(value)-1]); !ok {
				channelErr = ErrChannel
			}
		}
	})
	if err != nil {
		return Message{}, err
	}
	if m.Content == nil || string(m.Content) == "null" {
		m.Content = []byte("{}")
	}
	for _, p := range []struct {
		name string
		raw  []byte
	}{{"header", m.Header}, {"parent_header", m.Parent}, {"metadata", m.Metadata}, {"content", m.Content}} {
		if p.raw == nil {
			return Message{}, malformed("%s is missing", p.name)
		}
		if p.raw[0] != '{' {
			return Message{}, malformed("%s is not an object", p.name)
		}
	}
	return m, channelErr
}
