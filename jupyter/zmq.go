package jupyter

import "slices"

// Delimiter is the frame between the routing frames and the message.
const Delimiter = "<IDS|MSG>"

// fixedFrames is the number of frames that every message has after the delimiter: signature and four JSON parts.
const fixedFrames = 5

// ParseFrames reads a multipart ZeroMQ message and checks its signature. It skips the routing frames before the
// delimiter: identities and iopub topics.
func ParseFrames(channel Channel, frames [][]byte, s *Signer) (Message, error) {
	for i, f := range frames {
		if string(f) != Delimiter {
			continue
		}
		f := frames[i+1:]
		if len(f) < fixedFrames {
			return Message{}, malformed("%d frames behind the delimiter, at least %d expected", len(f), fixedFrames)
		}
		if !s.Verify(f[0], f[1], f[2], f[3], f[4]) {
			return Message{}, ErrSignature
		}
		m := Message{Channel: channel, Header: f[1], Parent: f[2], Metadata: f[3], Content: f[4]}
		if len(f) > fixedFrames {
			m.Buffers = slices.Clone(f[fixedFrames:]) // frames may be part of an array that other messages use
		}
		return m, nil
	}
	return Message{}, malformed("no delimiter in %d frames", len(frames))
}

// ParseHead reads header and parent_header from the first frames of a message whose rest is not there. Its signature
// covers the rest too, so it cannot be checked. It reports false if the two are not there.
func ParseHead(channel Channel, frames [][]byte) (Message, bool) {
	i := slices.IndexFunc(frames, func(f []byte) bool { return string(f) == Delimiter })
	if i < 0 || len(frames) < i+4 {
		return Message{}, false
	}
	return Message{Channel: channel, Header: frames[i+2], Parent: frames[i+3]}, true
}

// Frames returns the message as a multipart ZeroMQ message without routing frames, signed.
func (m *Message) Frames(s *Signer) [][]byte {
	frames := make([][]byte, 0, 1+fixedFrames+len(m.Buffers))
	frames = append(frames, []byte(Delimiter), s.Sign(m.Header, m.Parent, m.Metadata, m.Content),
		m.Header, m.Parent, m.Metadata, m.Content)
	return append(frames, m.Buffers...)
}
