package supervisor

import (
	"context"
	"errors"
	"sync"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
)

// Bounds of a gate's queue for a kernel that is not up or does not read. One message of any size always fits an empty
// gate.
const (
	gateLimitBytes    = 64 << 20
	gateLimitMessages = 10000
)

var errGateFull = errors.New("the kernel does not take its messages")

// holder names a reason why a gate is shut. A gate is open while it has no holders. So no holder can open a gate that
// another holder keeps shut.
type holder string

const (
	heldNoProcess holder = "no process" // the kernel has not been started yet, is being restarted or has ended
	heldNotReady  holder = "not ready"  // the kernel has not answered on its present connections
)

// gate stands between clients and one channel of the kernel. It holds messages in order while it is shut, and hands
// them to the channel's sender while it is open. It may be used concurrently.
type gate struct {
	mu      sync.Mutex
	holders map[holder]struct{}
	queue   []gatedMessage
	bytes   int
	wake    chan struct{} // capacity 1: there may be something to take
}

// gatedMessage is a message at a gate and its request, if an answer to it is awaited.
type gatedMessage struct {
	msg jupyter.Message
	req *requests.Request
}

// newGate returns a gate that the given holders keep shut.
func newGate(holders ...holder) *gate {
	g := &gate{holders: map[holder]struct{}{}, wake: make(chan struct{}, 1)}
	for _, h := range holders {
		g.holders[h] = struct{}{}
	}
	return g
}

// push adds a message, or returns errGateFull. req is its request, or nil.
func (g *gate) push(m jupyter.Message, req *requests.Request) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := m.Size()
	if len(g.queue) > 0 && (g.bytes+n > gateLimitBytes || len(g.queue) >= gateLimitMessages) {
		return errGateFull
	}
	g.queue = append(g.queue, gatedMessage{m, req})
	g.bytes += n
	poke(g.wake)
	return nil
}

// take returns the next message once the gate is open and has one, or ctx's error. Only one goroutine at a time may
// call it.
func (g *gate) take(ctx context.Context) (gatedMessage, error) {
	for {
		g.mu.Lock()
		if len(g.holders) == 0 && len(g.queue) > 0 {
			m := g.queue[0]
			g.queue[0] = gatedMessage{}
			g.queue = g.queue[1:]
			g.bytes -= m.msg.Size()
			g.mu.Unlock()
			return m, nil
		}
		g.mu.Unlock()
		select {
		case <-g.wake:
		case <-ctx.Done():
			return gatedMessage{}, ctx.Err()
		}
	}
}

// hold shuts the gate until the holder releases it. A second hold by the same holder changes nothing. The gate keeps
// its messages.
func (g *gate) hold(h holder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holders[h] = struct{}{}
}

// release removes a holder. The gate opens when its last holder is removed.
func (g *gate) release(h holder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.holders, h)
	poke(g.wake)
}

// discard removes all messages.
func (g *gate) discard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue, g.bytes = nil, 0
}
