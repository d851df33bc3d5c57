package jobs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// index is what lists need of the records of a kind, in memory. It reads a record when the keeper says that it was
// replaced, one at a time. So a list costs what has changed, and holds no variables and no state of a run: those of
// one user's jobs cost others neither time nor memory. Those who wait for their turn share one reading.
type index[T any] struct {
	kind   string
	decode func(launcher.Record) (T, error) // without what is large

	turn  chan struct{} // capacity 1; has one element while a reader owns known
	known map[string]indexed[T]

	mu   sync.Mutex
	next map[bool]*reading[T] // by onlyOpen: it has not begun, so it sees all that was written before
}

// reading is what one reader has found for all who waited with it. It is fixed when done is closed.
type reading[T any] struct {
	done    chan struct{}
	all     []T
	damaged map[string]bool
	err     error
}

// errLeft says that the reader was cancelled: another one reads.
var errLeft = errors.New("jobs: a reading was left")

// indexed is a record as it was at a stamp.
type indexed[T any] struct {
	stamp string
	value T
	err   error // the record is damaged
}

func newIndex[T any](kind string, decode func(launcher.Record) (T, error)) *index[T] {
	return &index[T]{kind: kind, decode: decode, turn: make(chan struct{}, 1), known: map[string]indexed[T]{},
		next: map[bool]*reading[T]{}}
}

// read returns the values of the records, or of those that are not settled. A record that cannot be read is reported
// and left out; damaged has its id.
func (x *index[T]) read(
	ctx context.Context, keeper launcher.RecordKeeper, onlyOpen bool, report func(id string, err error),
) (all []T, damaged map[string]bool, err error) {
	r := &reading[T]{err: errLeft}
	for ctx.Err() == nil && errors.Is(r.err, errLeft) { // one who leaves does not look: it may be written just now
		r = x.join(onlyOpen)
		select {
		case <-r.done:
		case <-ctx.Done():
		case x.turn <- struct{}{}:
			x.lead(ctx, r, onlyOpen, func() ([]T, map[string]bool, error) { return x.find(ctx, keeper, onlyOpen, report) })
		}
	}
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	return slices.Clone(r.all), maps.Clone(r.damaged), r.err
}

// join returns the reading that begins next.
func (x *index[T]) join(onlyOpen bool) *reading[T] {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.next[onlyOpen] == nil {
		x.next[onlyOpen] = &reading[T]{done: make(chan struct{}), err: errLeft}
	}
	return x.next[onlyOpen]
}

// lead does a reading, unless another one who waited has done it. The caller has the turn, and lead ends it.
func (x *index[T]) lead(ctx context.Context, r *reading[T], onlyOpen bool, find func() ([]T, map[string]bool, error)) {
	defer func() { <-x.turn }()
	x.mu.Lock()
	begins := x.next[onlyOpen] == r
	if begins {
		x.next[onlyOpen] = nil
	}
	x.mu.Unlock()
	if !begins {
		return
	}
	defer close(r.done) // also of a panic
	if all, damaged, err := find(); err == nil || ctx.Err() == nil {
		r.all, r.damaged, r.err = all, damaged, err
	}
}

// find reads. The caller owns known.
func (x *index[T]) find(
	ctx context.Context, keeper launcher.RecordKeeper, onlyOpen bool, report func(id string, err error),
) (all []T, damaged map[string]bool, err error) {
	stamps, err := keeper.RecordStamps(ctx, x.kind, onlyOpen)
	if err != nil {
		return nil, nil, err
	}
	if !onlyOpen {
		for id := range x.known {
			if _, there := stamps[id]; !there {
				delete(x.known, id)
			}
		}
	}
	all, damaged = make([]T, 0, len(stamps)), map[string]bool{}
	for id, stamp := range stamps {
		k, there := x.known[id]
		if !there || stamp == "" || k.stamp != stamp {
			if k, err = x.load(ctx, keeper, id, stamp); errors.Is(err, launcher.ErrNoRecord) {
				continue // it was removed meanwhile
			} else if err != nil {
				return nil, nil, err
			}
			x.known[id] = k
		}
		if k.err != nil {
			report(id, k.err)
			damaged[id] = true
			continue
		}
		all = append(all, k.value)
	}
	return all, damaged, nil
}

func (x *index[T]) load(
	ctx context.Context, keeper launcher.RecordKeeper, id, stamp string,
) (k indexed[T], err error) {
	r, err := keeper.Record(ctx, x.kind, id)
	if k.stamp = stamp; err == nil {
		k.value, err = x.decode(r)
	}
	if errors.Is(err, launcher.ErrRecordDamaged) {
		k.err, err = err, nil
	}
	return k, err
}

// maxListed is the largest text of parameters that an index holds.
const maxListed = 1 << 10

// decodeLight reads what lists need of a job.
func decodeLight(r launcher.Record) (stored, error) {
	s, err := decode(r)
	s.light, s.Start, s.Run, s.Before = true, kernels.Wish{}, nil, nil
	if s.lacks = len(s.Parameters) > maxListed; s.lacks {
		s.Parameters = nil
	}
	return s, err
}

// decodeLightDefinition reads what lists need of a definition.
func decodeLightDefinition(r launcher.Record) (definition, error) {
	d, err := decodeDefinition(r)
	d.light, d.Start = true, kernels.Wish{}
	if d.lacks = len(d.Parameters) > maxListed; d.lacks {
		d.Parameters = nil
	}
	return d, err
}

// errLight is the error of a write that would lose what an index does not have.
var errLight = errors.New("jobs: a record of an index is not written")
