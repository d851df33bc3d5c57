package notebook

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/semaphore"
)

// DefaultBudget is how much memory all runs of a gateway may use together for what their kernels send, in bytes.
const DefaultBudget = 256 << 20

// Charges of a Budget, in bytes.
const (
	messageCost = 3        // times a message's size: the message, what is read of it, and what is stored
	freeMessage = 32 << 10 // a message up to this size is free, since most are
	freeOutputs = 64 << 10 // so much output of a run is free
)

// Budget is the memory that all runs of a gateway share. It has two parts, so that no run waits for one that waits:
//
//   - A quarter is for outputs that are not stored yet. No run waits for it. One that gets no more stores its outputs.
//   - The rest is for messages. A Relay takes the cost of a message before it reads the message. Without room for some
//     seconds, it closes its connection and waits for room. Then it goes on at its cursor: the kernel's log keeps the
//     rest. The run gives the cost back when it asks for the next message. Until then it waits for no other run.
//
// All methods may be called concurrently, also those of a nil Budget, which has no bounds.
type Budget struct {
	most     int64 // of messages
	messages *semaphore.Weighted

	mu   sync.Mutex
	left int64 // of outputs
	used use   // of both
}

type use struct{ messages, outputs, peak int64 }

// NewBudget returns a budget of some bytes.
func NewBudget(bytes int64) *Budget {
	messages := bytes - bytes/4
	return &Budget{most: messages, messages: semaphore.NewWeighted(messages), left: bytes - messages}
}

// errNoRoom is returned if a message gets no room in time.
var errNoRoom = errors.New("notebook: other jobs use the memory for messages")

// cost returns what a message costs. The largest have the part for messages alone.
func (b *Budget) cost(size int64) int64 {
	if b == nil || size <= freeMessage {
		return 0
	}
	return min(messageCost*size, b.most)
}

// take takes the cost of a message. It waits until ctx ends, which is errNoRoom. Those who wait have their turns in
// order.
func (b *Budget) take(ctx context.Context, cost int64) error {
	if cost == 0 {
		return nil
	}
	if b.messages.Acquire(ctx, cost) != nil {
		return errNoRoom
	}
	b.count(cost, 0)
	return nil
}

// give gives back the cost of a message.
func (b *Budget) give(cost int64) {
	if cost > 0 {
		b.count(-cost, 0)
		b.messages.Release(cost)
	}
}

// hold changes what a run holds of outputs from one size to another. It reports false, and changes nothing, if there is
// no room.
func (b *Budget) hold(from, to int64) bool {
	if b == nil || from == to {
		return true
	}
	b.mu.Lock()
	room := to-from <= b.left
	if room {
		b.left -= to - from
	}
	b.mu.Unlock()
	if room {
		b.count(0, to-from)
	}
	return room
}

func (b *Budget) count(messages, outputs int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used.messages += messages
	b.used.outputs += outputs
	b.used.peak = max(b.used.peak, b.used.messages+b.used.outputs)
}
