// Package gate stands between a kernel's clients and the kernel's channels. A Gate holds messages in order while the
// kernel cannot take them. Package supervisor puts the clients' messages in, and sends them when the kernel is up. This
// package starts no goroutine.
package gate

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
)

// LimitMessages bounds the messages that wait at a gate, for a kernel that is not up or does not read.
const LimitMessages = 10000

// limitBytes bounds their bytes. One message of any size always fits an empty gate.
const limitBytes = 64 << 20

// ErrFull is returned for a message that has no room.
var ErrFull = errors.New("the kernel does not take its messages")

// Holder names a reason why a gate is shut. A gate is open while it has no holders. So no holder can open a gate that
// another holder keeps shut.
type Holder string

const (
	// NoProcess keeps a gate shut while the kernel has not been started yet, is being restarted or has ended.
	NoProcess Holder = "no process"
	// NotReady keeps a gate shut until the kernel has answered on its present connections.
	NotReady Holder = "not ready"
	// Parked keeps a gate shut while the kernel gives its GPU back, and while it waits for it.
	Parked Holder = "parked"
)

// Gate stands between clients and one channel of the kernel. It holds messages in order while it is shut, and hands
// them to the channel's sender while it is open. It may be used concurrently.
type Gate struct {
	mu      sync.Mutex
	holders map[Holder]struct{}
	queue   []Message
	bytes   int
	wake    chan struct{} // capacity 1: there may be something to take
}

// Message is a message at a gate and its request.
type Message struct {
	Msg    jupyter.Message
	Req    *requests.Request // nil: no answer is awaited
	behind *requests.Request // a failed cell whose end it waits for; nil: none
}

// passes reports whether the message waits for no failed cell.
func (m *Message) passes(now time.Time) bool {
	return m.behind == nil || m.behind.Over.Load() || !now.Before(m.behind.Opens)
}

// New returns a gate that the given holders keep shut.
func New(holders ...Holder) *Gate {
	g := &Gate{holders: map[Holder]struct{}{}, wake: make(chan struct{}, 1)}
	for _, h := range holders {
		g.holders[h] = struct{}{}
	}
	return g
}

// Push adds a message, or returns ErrFull. req is its request, or nil.
func (g *Gate) Push(m jupyter.Message, req *requests.Request) error { return g.PushBehind(m, req, nil) }

// PushBehind is Push for a message that waits for the end of a failed cell, or for nothing if that is nil: until the
// cell is Over, or the time has come at which it Opens. Other messages overtake it.
func (g *Gate) PushBehind(m jupyter.Message, req, failed *requests.Request) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := m.Size()
	if len(g.queue) > 0 && (g.bytes+n > limitBytes || len(g.queue) >= LimitMessages) {
		return ErrFull
	}
	g.queue = append(g.queue, Message{m, req, failed})
	g.bytes += n
	goroutines.Wake(g.wake)
	return nil
}

// Take returns the next message once the gate is open and has one, or ctx's error. Only one goroutine at a time may
// call it.
func (g *Gate) Take(ctx context.Context) (Message, error) {
	for {
		m, ok, opens := g.next(time.Now())
		if ok {
			return m, nil
		}
		select {
		case <-g.wake:
		case <-opens:
		case <-ctx.Done():
			return Message{}, ctx.Err()
		}
	}
}

// next takes the first message that passes. Otherwise opens is when the first one passes that waits for a failed cell,
// or nil.
func (g *Gate) next(now time.Time) (m Message, ok bool, opens <-chan time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.holders) > 0 || len(g.queue) == 0 {
		return Message{}, false, nil
	}
	i := slices.IndexFunc(g.queue, func(m Message) bool { return m.passes(now) })
	switch {
	case i < 0:
		return Message{}, false, time.After(g.queue[0].behind.Opens.Sub(now))
	case i == 0:
		m, g.queue[0] = g.queue[0], Message{}
		g.queue = g.queue[1:]
	default:
		m = g.queue[i]
		g.queue = slices.Delete(g.queue, i, i+1)
	}
	g.bytes -= m.Msg.Size()
	return m, true, nil
}

// Wake lets messages pass whose failed cell is Over.
func (g *Gate) Wake() { goroutines.Wake(g.wake) }

// Hold shuts the gate until the holder releases it. A second hold by the same holder changes nothing. The gate keeps
// its messages.
func (g *Gate) Hold(h Holder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holders[h] = struct{}{}
}

// Release removes a holder. The gate opens when its last holder is removed.
func (g *Gate) Release(h Holder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.holders, h)
	goroutines.Wake(g.wake)
}

// Any reports whether a message matches.
func (g *Gate) Any(match func(*Message) bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.queue, func(m Message) bool { return match(&m) })
}

// Drop removes the messages that match, and returns them.
func (g *Gate) Drop(match func(*Message) bool) (dropped []Message) {
	g.mu.Lock()
	defer g.mu.Unlock()
	left := g.queue[:0:0]
	for _, m := range g.queue {
		if match(&m) {
			dropped = append(dropped, m)
			g.bytes -= m.Msg.Size()
		} else {
			left = append(left, m)
		}
	}
	g.queue = left
	return dropped
}

// Discard removes all messages.
func (g *Gate) Discard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue, g.bytes = nil, 0
}
