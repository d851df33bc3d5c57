package notebook

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/semaphore"
)

// DefaultBudget is how much memory all runs of a gateway may use together, in bytes.
const DefaultBudget = 256 << 20

// Charges of a Budget, in bytes.
const (
	messageCost = 3        // times a message's size: the message, what is read of it, and what is stored
	freeMessage = 32 << 10 // a message up to this size is free, since most are
	freeOutputs = 64 << 10 // so much output of a run is free
	freeCells   = 64 << 10 // a notebook up to this cost is free, since most are
)

// Budget is the memory that all runs of a gateway share. It has three parts, so that no run waits for one that waits:
//
//   - An eighth is for notebooks, as Document.cost counts them. A run has room for its notebook from its begin to its
//     end. Without room it waits until others end, with nothing in memory; see Document. One owner's runs have at most
//     half of it, so they leave room for others.
//   - An eighth is for outputs that are not stored yet. No run waits for it. One that gets no more stores its outputs.
//   - The rest is for messages. A Relay takes the cost of a message before it reads the message. Without room for some
//     seconds, it closes its connection and waits for room. Then it goes on at its cursor: the kernel's log keeps the
//     rest. The run gives the cost back when it asks for the next message. Until then it waits for no other run.
//
// All methods may be called concurrently, also those of a nil Budget, which has no bounds.
type Budget struct {
	most     int64 // of messages
	messages *semaphore.Weighted

	reading chan struct{} // capacity 1: one notebook is read at a time

	mu    sync.Mutex
	left  int64            // of outputs
	cells int64            // of notebooks, what is left
	of    map[string]int64 // of notebooks, what each owner has
	freed chan struct{}    // closed when a notebook's room is given back
	used  use              // of all
}

type use struct{ messages, outputs, cells, peak int64 }

// NewBudget returns a budget of some bytes.
func NewBudget(bytes int64) *Budget {
	messages := bytes - 2*(bytes/budgetParts)
	return &Budget{most: messages, messages: semaphore.NewWeighted(messages), left: bytes / budgetParts,
		cells: bytes / budgetParts, of: map[string]int64{}, freed: make(chan struct{}), reading: make(chan struct{}, 1)}
}

// budgetParts is the share of a budget that notebooks have, and outputs.
const budgetParts = 8

// Document reads an owner's notebook, and takes room for it. Without room, it forgets the notebook, calls wait with a
// function that returns when there is room or a context ends, and reads again. Smaller notebooks do not wait behind
// larger ones. release gives the room back, and must be called once.
func (b *Budget) Document(
	ctx context.Context, owner string, read func() (*Document, error), wait func(room func(context.Context) error) error,
) (d *Document, release func(), err error) {
	if b == nil {
		d, err = read()
		return d, func() {}, err
	}
	had := int64(0)
	defer func() {
		if d == nil {
			b.takeCells(owner, had, 0)
		}
	}()
	for {
		read, err := b.readOne(ctx, read)
		if err != nil {
			return nil, nil, err
		}
		cost := read.cost()
		if cost <= freeCells {
			cost = 0
		}
		if b.takeCells(owner, had, cost) {
			return read, func() { b.takeCells(owner, cost, 0) }, nil
		}
		b.takeCells(owner, had, 0)
		had, read = 0, nil // what waits has nothing
		if err := wait(func(ctx context.Context) error {
			err := b.awaitCells(ctx, owner, cost)
			if err == nil {
				had = cost
			}
			return err
		}); err != nil {
			return nil, nil, err
		}
	}
}

// readOne reads a notebook, and no other one at the same time: it takes a few times its size until it is read.
func (b *Budget) readOne(ctx context.Context, read func() (*Document, error)) (*Document, error) {
	select {
	case b.reading <- struct{}{}:
		defer func() { <-b.reading }()
		return read()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// takeCells changes what a run of an owner has for its notebook. It reports false, and changes nothing, if there is no
// room. The largest have the part alone.
func (b *Budget) takeCells(owner string, from, to int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.cells
	for _, n := range b.of {
		most += n
	}
	from, to = min(from, most), min(to, most)
	more := to - from
	if has := b.of[owner]; more > b.cells || more > 0 && has > from && has+more > most/2 {
		return false
	}
	b.cells -= more
	if b.of[owner] += more; b.of[owner] == 0 {
		delete(b.of, owner)
	}
	if more < 0 {
		close(b.freed)
		b.freed = make(chan struct{})
	}
	b.used.cells += more
	b.used.peak = max(b.used.peak, b.used.messages+b.used.outputs+b.used.cells)
	return true
}

// awaitCells takes room for a notebook. It waits for that until ctx ends, which is the error.
func (b *Budget) awaitCells(ctx context.Context, owner string, cost int64) error {
	for {
		b.mu.Lock()
		freed := b.freed
		b.mu.Unlock()
		if b.takeCells(owner, 0, cost) {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
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
	b.used.peak = max(b.used.peak, b.used.messages+b.used.outputs+b.used.cells)
}
