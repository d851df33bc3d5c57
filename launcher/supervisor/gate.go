package supervisor

import (
	"context"
	"errors"
	"sync"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// gateLimit bounds what a gate holds for a kernel that is not up or does not read, in bytes and messages. One message
// of any size always fits an empty gate.
const (
	gateLimitBytes    = 64 << 20
	gateLimitMessages = 10000
)

var errGateFull = errors.New("the kernel does not take its messages")

// gate stands between clients and one channel of the kernel. It holds messages in order while it is shut (the kernel
// is not up yet, or is being restarted) and hands them to the channel's sender while it is open. It may be used
// concurrently.
type gate struct {
	mu    sync.Mutex
	open  bool
	queue []gated
	bytes int
	wake  chan struct{} // capacity 1: there may be something to take
}

// gated is a message at a gate and the request that it is, if an answer to it is awaited.
type gated struct {
	msg wire.Message
	req *request
}

func newGate() *gate { return &gate{wake: make(chan struct{}, 1)} }

// push adds a message, or returns errGateFull. req is the request that it is, or nil.
func (g *gate) push(m wire.Message, req *request) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := m.Size()
	if len(g.queue) > 0 && (g.bytes+n > gateLimitBytes || len(g.queue) >= gateLimitMessages) {
		return errGateFull
	}
	g.queue = append(g.queue, gated{m, req})
	g.bytes += n
	poke(g.wake)
	return nil
}

// take returns the next message once the gate is open and there is one, or ctx's error. One goroutine at a time.
func (g *gate) take(ctx context.Context) (gated, error) {
	for {
		g.mu.Lock()
		if g.open && len(g.queue) > 0 {
			m := g.queue[0]
			g.queue[0] = gated{}
			g.queue = g.queue[1:]
			g.bytes -= m.msg.Size()
			g.mu.Unlock()
			return m, nil
		}
		g.mu.Unlock()
		select {
		case <-g.wake:
		case <-ctx.Done():
			return gated{}, ctx.Err()
		}
	}
}

// set opens or shuts the gate; what it holds stays.
func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = open
	poke(g.wake)
}

// clear shuts the gate and throws away what it holds.
func (g *gate) clear() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open, g.queue, g.bytes = false, nil, 0
}
