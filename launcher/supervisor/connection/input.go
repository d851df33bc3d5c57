package connection

import (
	"errors"
	"io"
	"sync"
)

// Bounds of one message from a client, in bytes.
const (
	MaxMessage       = 512 << 20 // of the kernel's owner
	MaxSharedMessage = 128 << 20 // of another user with the right to use the kernel
	MaxReaderMessage = 64 << 10  // of a user with the right to read
)

// Bounds of the messages that are received and not complete, in bytes of their buffers. The first freeInput bytes of
// each message do not count, so small messages always pass. A message's buffer is copied when it grows, and only the
// new one counts.
const (
	freeInput    = 256 << 10
	inputTotal   = 768 << 20
	inputOthers  = 256 << 20 // of all users together who do not own the kernel
	inputOfOther = 128 << 20 // of one of them
)

var (
	errTooLarge = errors.New("message too large")
	errNoRoom   = errors.New("too much unfinished input")
)

// Input bounds the unfinished messages of all connections of a kernel together. Other users leave most of it to the
// owner. The zero value is ready. It may be used concurrently.
type Input struct {
	mu     sync.Mutex
	owner  int64
	others int64
	byUser map[string]int64 // of others
}

// InputShare is what the connections of one user hold of an Input.
type InputShare struct {
	of    *Input
	user  string
	owner bool
}

// Of returns the share of a user.
func (i *Input) Of(user string, owner bool) InputShare { return InputShare{i, user, owner} }

// reserve adds n bytes, and reports false if there is no room for them.
func (s InputShare) reserve(n int64) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.of.owner+s.of.others+n > inputTotal {
		return false
	}
	if s.owner {
		s.of.owner += n
		return true
	}
	if s.of.others+n > inputOthers || s.of.byUser[s.user]+n > inputOfOther {
		return false
	}
	if s.of.byUser == nil {
		s.of.byUser = map[string]int64{}
	}
	s.of.others += n
	s.of.byUser[s.user] += n
	return true
}

func (s InputShare) release(n int64) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.owner {
		s.of.owner -= n
		return
	}
	s.of.others -= n
	if s.of.byUser[s.user] -= n; s.of.byUser[s.user] == 0 {
		delete(s.of.byUser, s.user)
	}
}

// readMessage reads a message into memory of its own. It doubles the buffer; io.ReadAll grows it by a quarter and
// copies a large message five times. The error is errTooLarge, errNoRoom or that of r. The caller calls releaseInput
// when it does not hold the message any more.
func (c *Conn) readMessage(r io.Reader) ([]byte, error) {
	b := make([]byte, 0, 512)
	for {
		if int64(len(b)) > c.o.MaxMessage {
			return nil, errTooLarge
		}
		if len(b) == cap(b) {
			size := min(2*int64(cap(b)), c.o.MaxMessage+1)
			if more := size - freeInput - c.held; more > 0 {
				if !c.o.Input.reserve(more) {
					return nil, errNoRoom
				}
				c.held += more
			}
			b = append(make([]byte, 0, size), b...)
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case errors.Is(err, io.EOF):
			return b, nil
		case err != nil:
			return nil, err
		}
	}
}

// releaseInput gives back what readMessage has reserved.
func (c *Conn) releaseInput() {
	if c.held > 0 {
		c.o.Input.release(c.held)
		c.held = 0
	}
}
