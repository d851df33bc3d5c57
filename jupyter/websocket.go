package jupyter

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"
)

// SubprotocolV1 is the name of the newer websocket framing, offered and chosen in Sec-WebSocket-Protocol.
const SubprotocolV1 = "v1.kernel.websocket.jupyter.org"

// SubprotocolRelay is SubprotocolV1 for a relay: the jupyter-ekg extension. Each message to a relay is a cursor of
// RelayCursor bytes, which the relay does not interpret, followed by the frame. Messages from a relay are plain v1
// frames. A relay that reconnects with ?cursor= and its last cursor in hexadecimal gets the messages after that cursor.
const (
	SubprotocolRelay = "v1.relay.ekg"
	RelayCursor      = 24
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
	name := m.Channel.String()
	n := v1MinOffsets + len(m.Buffers)
	start := v1Word * (n + 1)
	frame := make([]byte, start, start+len(name)+m.Size())
	binary.LittleEndian.PutUint64(frame, uint64(n))
	next := v1Word
	put := func(part []byte) {
		binary.LittleEndian.PutUint64(frame[next:], uint64(len(frame)))
		next += v1Word
		frame = append(frame, part...)
	}
	binary.LittleEndian.PutUint64(frame[next:], uint64(len(frame)))
	next += v1Word
	frame = append(frame, name...)
	put(m.Header)
	put(m.Parent)
	put(m.Metadata)
	put(m.Content)
	for _, b := range m.Buffers {
		put(b)
	}
	binary.LittleEndian.PutUint64(frame[next:], uint64(len(frame)))
	return frame
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

// EncodeLegacy returns the message in the default framing: a text frame, or a binary one if it has buffers and
// withBuffers is true. Without withBuffers the buffers are left out. Text is always valid UTF-8, since a browser closes
// the connection after anything else.
//
//	0      n, the number of parts: 1 + number of buffers
//	4      n offsets from the start of the frame
//	o[0]   the JSON object as in a text frame, then the buffers
func EncodeLegacy(m *Message, withBuffers bool) (frame []byte, binaryFrame bool, err error) {
	if len(m.Buffers) == 0 || !withBuffers {
		frame, err = appendLegacyJSON(make([]byte, 0, legacyOverhead+m.Size()), m, true)
		if err == nil && !utf8.Valid(frame) {
			frame = bytes.ToValidUTF8(frame, []byte("\uFFFD"))
		}
		return frame, false, err
	}
	n := 1 + len(m.Buffers)
	start := legacyWord * (n + 1)
	if size := uint64(start) + legacyOverhead + uint64(m.Size()); size > 1<<32-1 {
		return nil, false, malformed("a message of %d bytes does not fit the framing", m.Size())
	}
	frame = make([]byte, start, start+legacyOverhead+m.Size())
	binary.BigEndian.PutUint32(frame, uint32(n))
	binary.BigEndian.PutUint32(frame[legacyWord:], uint32(start))
	if frame, err = appendLegacyJSON(frame, m, false); err != nil {
		return nil, false, err
	}
	for i, b := range m.Buffers {
		binary.BigEndian.PutUint32(frame[legacyWord*(i+2):], uint32(len(frame)))
		frame = append(frame, b...)
	}
	return frame, true, nil
}

// legacyOverhead is the space for member names, and for msg_id and msg_type, which are written twice.
const legacyOverhead = 320

// appendLegacyJSON writes the JSON object of the default framing. It has msg_id and msg_type at the top level, without
// which some clients fail (jupyter_server's GatewayKernelClient). Only the header must be an object: some kernels send
// null for other parts, and clients take any JSON value there.
func appendLegacyJSON(b []byte, m *Message, noBuffers bool) ([]byte, error) {
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
	for _, part := range [][]byte{m.Parent, m.Metadata, m.Content} {
		if err := checkValue(part); err != nil {
			return nil, err
		}
	}
	b = append(append(b, `{"header":`...), m.Header...)
	b = append(append(b, `,"msg_id":`...), id...)
	b = append(append(b, `,"msg_type":`...), msgType...)
	b = append(append(b, `,"parent_header":`...), m.Parent...)
	b = append(append(b, `,"metadata":`...), m.Metadata...)
	b = append(append(b, `,"content":`...), m.Content...)
	if noBuffers {
		b = append(b, `,"buffers":[]`...)
	}
	b = append(append(b, `,"channel":"`...), m.Channel.String()...)
	return append(b, `"}`...), nil
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
