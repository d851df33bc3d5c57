package zmtp

import (
	"bufio"
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"sync/atomic"
)

// trusted is how many bytes of a frame must have arrived before memory for as many more is allocated.
const trusted = 1 << 20

// reader reads what a peer sends. It belongs to one goroutine.
type reader struct {
	r        *bufio.Reader
	most     int64         // bytes of a message
	arriving *atomic.Int64 // bytes of messages that have begun; of the whole socket
	held     int64         // this reader's part of arriving
}

// greeting reads a peer's greeting. Versions before 3.0 have none, and no peer of today speaks them.
func (r *reader) greeting() error {
	var b [greetingSize]byte
	if _, err := io.ReadFull(r.r, b[:]); err != nil {
		return err
	}
	switch {
	case b[0] != 0xff || b[9] != 0x7f:
		return violation("no greeting of ZMTP")
	case b[10] < 3:
		return violation("version %d", b[10])
	case strings.TrimRight(string(b[12:32]), "\x00") != "NULL":
		return violation("mechanism %.20q", b[12:32])
	}
	return nil
}

// ready reads a peer's READY. It returns the identity that the peer names, or "".
func (r *reader) ready(t Type) (identity string, err error) {
	flags, size, err := r.header()
	switch {
	case err != nil:
		return "", err
	case flags&flagCommand == 0:
		return "", violation("a message before READY")
	}
	body, err := r.frame(size)
	if err != nil {
		return "", err
	}
	r.handled()
	rest, ok := strings.CutPrefix(string(body), "\x05READY")
	if !ok {
		return "", violation("no READY")
	}
	kind := ""
	for len(rest) > 0 {
		name, value, more, ok := property(rest)
		if !ok {
			return "", violation("READY with broken properties")
		}
		switch {
		case strings.EqualFold(name, "Socket-Type"):
			kind = value
		case strings.EqualFold(name, "Identity"):
			identity = value
		}
		rest = more
	}
	if !slices.Contains(peersOf[t], kind) {
		return "", violation("a socket of type %.20q connects to %s", kind, t)
	}
	if len(identity) > 255 {
		return "", violation("an identity of %d bytes", len(identity))
	}
	return identity, nil
}

// property splits the first property off a READY: length and name, four bytes of length and value.
func property(p string) (name, value, rest string, ok bool) {
	n := int(p[0])
	if len(p) < 1+n+4 {
		return "", "", "", false
	}
	name, p = p[1:1+n], p[1+n:]
	size := uint64(binary.BigEndian.Uint32([]byte(p)))
	if p = p[4:]; size > uint64(len(p)) {
		return "", "", "", false
	}
	return name, p[:size], p[size:], true
}

// next waits for the next message, or for a command. The caller calls handled when it has handled it.
func (r *reader) next() (frames [][]byte, command []byte, err error) {
	for {
		flags, size, err := r.header()
		if err != nil {
			return nil, nil, err
		}
		if r.held+size > r.most || len(frames) == maxFrames {
			return nil, nil, violation("a message of more than %d bytes or %d frames", r.most, maxFrames)
		}
		f, err := r.frame(size)
		if err != nil {
			return nil, nil, err
		}
		switch {
		case flags&flagCommand != 0 && len(frames) > 0:
			// libzmq sends its heartbeats between the frames of a message, too. Such a one is not answered: libzmq takes
			// everything that arrives as a sign of life.
			r.held -= size
			r.arriving.Add(-size)
			continue
		case flags&flagCommand != 0:
			return nil, f, nil
		}
		if frames = append(frames, f); flags&flagMore == 0 {
			return frames, nil, nil
		}
	}
}

// handled says that the last message takes no memory of the reader any more.
func (r *reader) handled() {
	r.arriving.Add(-r.held)
	r.held = 0
}

// header reads the header of a frame.
func (r *reader) header() (flags byte, size int64, err error) {
	var b [8]byte
	if _, err := io.ReadFull(r.r, b[:2]); err != nil {
		return 0, 0, err
	}
	flags, length := b[0], uint64(b[1])
	if flags&flagLong != 0 {
		b[0] = b[1]
		if _, err := io.ReadFull(r.r, b[1:]); err != nil {
			return 0, 0, err
		}
		length = binary.BigEndian.Uint64(b[:])
	}
	switch {
	case flags&flagReserved != 0:
		return 0, 0, violation("a frame with flags %#02x", flags)
	case flags&flagCommand != 0 && (flags&flagMore != 0 || length > maxSmall):
		return 0, 0, violation("a command of several frames, or of %d bytes", length)
	case length > maxMessage:
		return 0, 0, violation("a frame of %d bytes", length)
	}
	return flags, int64(length), nil
}

// frame reads a frame's body. A length is trusted only as far as the frame has arrived.
func (r *reader) frame(size int64) ([]byte, error) {
	var b []byte
	for int64(len(b)) < size {
		n := min(size-int64(len(b)), max(int64(len(b)), trusted))
		if r.held += n; r.arriving.Add(n) > maxArriving {
			return nil, violation("unfinished messages of more than %d bytes", maxArriving)
		}
		at := len(b)
		b = slices.Grow(b, int(n))[:at+int(n)]
		if _, err := io.ReadFull(r.r, b[at:]); err != nil {
			return nil, err
		}
	}
	return b, nil
}
