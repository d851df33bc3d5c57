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
	queue []wire.Message
	bytes int
	wake  chan struct{} // capacity 1: there may be something to take
}

func newGate() *gate { return &gate{wake: make(chan struct{}, 1)} }

// push adds a message, or returns errGateFull.
func (g *gate) push(m wire.Message) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := m.Size()
	if len(g.queue) > 0 && (g.bytes+n > gateLimitBytes || len(g.queue) >= gateLimitMessages) {
		return errGateFull
	}
	g.queue = append(g.queue, m)
	g.bytes += n
	g.signal()
	return nil
}

// take returns the next message once the gate is open and there is one, or ctx's error. One goroutine at a time.
func (g *gate) take(ctx context.Context) (wire.Message, error) {
	for {
		g.mu.Lock()
		if g.open && len(g.queue) > 0 {
			m := g.queue[0]
			g.queue[0] = wire.Message{}
			g.queue = g.queue[1:]
			g.bytes -= m.Size()
			g.mu.Unlock()
			return m, nil
		}
		g.mu.Unlock()
		select {
		case <-g.wake:
		case <-ctx.Done():
			return wire.Message{}, ctx.Err()
		}
	}
}

// set opens or shuts the gate; what it holds stays.
func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = open
	g.signal()
}

// clear shuts the gate and throws away what it holds.
func (g *gate) clear() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open, g.queue, g.bytes = false, nil, 0
}

func (g *gate) signal() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}
