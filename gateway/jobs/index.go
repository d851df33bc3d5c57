package jobs

import (
	"context"
	"errors"
	"fmt"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// index is what lists need of the records of a kind, in memory. It reads a record when the keeper says that it was
// replaced, one at a time. So a list costs what has changed, and holds no variables and no state of a run: those of
// one user's jobs cost others neither time nor memory.
type index[T any] struct {
	kind   string
	decode func(launcher.Record) (T, error) // without what is large

	turn  chan struct{} // capacity 1; has one element while a reader owns known
	known map[string]indexed[T]
}

// indexed is a record as it was at a stamp.
type indexed[T any] struct {
	stamp string
	value T
	err   error // the record is damaged
}

func newIndex[T any](kind string, decode func(launcher.Record) (T, error)) *index[T] {
	return &index[T]{kind: kind, decode: decode, turn: make(chan struct{}, 1), known: map[string]indexed[T]{}}
}

// read returns the values of the records, or of those that are not settled. A record that cannot be read is reported
// and left out; damaged has its id.
func (x *index[T]) read(
	ctx context.Context, keeper launcher.RecordKeeper, onlyOpen bool, report func(id string, err error),
) (all []T, damaged map[string]bool, err error) {
	select {
	case x.turn <- struct{}{}:
		defer func() { <-x.turn }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
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
	return d, err
}

// errLight is the error of a write that would lose what an index does not have.
var errLight = fmt.Errorf("jobs: a record of an index is not written")
