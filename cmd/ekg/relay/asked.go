package relay

import (
	"strings"
	"sync"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/zmtp"
)

// maxAsked bounds the requests that wait for the kernel.
const maxAsked = 1 << 16

// asked knows which program waits for which reply. Its methods may be called concurrently.
type asked struct {
	mu       sync.Mutex
	requests map[request]question
	last     uint64 // number of the last question
	replied  bool   // the kernel has answered
}

type request struct {
	channel jupyter.Channel
	id      string // the msg_id
}

type question struct {
	by     *zmtp.Peer
	number uint64
	cell   []byte // the header of an execute_request, else nil
}

func newAsked() *asked { return &asked{requests: map[request]question{}} }

// add notes a message of a program, if it is a request. It reports false if too many wait.
func (a *asked) add(c jupyter.Channel, h jupyter.Header, header []byte, by *zmtp.Peer) bool {
	if !strings.HasSuffix(h.MsgType, "_request") {
		return true // the message has no answer
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.requests) == maxAsked {
		return false
	}
	a.last++
	q := question{by: by, number: a.last}
	if h.MsgType == "execute_request" {
		q.cell = header
	}
	a.requests[request{c, h.MsgID}] = q
	return true
}

// take returns who waits for the reply to a request, and forgets the request. It returns nil for one that is unknown.
func (a *asked) take(c jupyter.Channel, id string) *zmtp.Peer {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.requests[request{c, id}]
	delete(a.requests, request{c, id})
	a.replied = a.replied || q.by != nil
	return q.by
}

// find returns who has sent a request that runs, or nil.
func (a *asked) find(id string) *zmtp.Peer {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range []jupyter.Channel{jupyter.Shell, jupyter.Control} {
		if q, ok := a.requests[request{c, id}]; ok {
			return q.by
		}
	}
	return nil
}

// cell returns the header of the oldest cell that waits, or nil.
func (a *asked) cell() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	oldest := question{number: a.last + 1}
	for _, q := range a.requests {
		if q.cell != nil && q.number < oldest.number {
			oldest = q
		}
	}
	return oldest.cell
}

// answered reports whether the kernel has answered a request. It is true before the first request too.
func (a *asked) answered() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.replied || a.last == 0
}
