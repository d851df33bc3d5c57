package jobs

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// kindRoom has a room for each owner of jobs, and one for each owner of definitions.
const kindRoom = "job-rooms"

// room is the record of what an owner is about to store: the ids, with the times of their reservations. It decides in
// one order, over all gateways, which submissions are within a limit, before anything of them is stored.
type room map[string]time.Time

// reserveTime is how long a reservation counts if its gateway has died before it stored anything.
const reserveTime = 10 * time.Minute

// releaseTime bounds the end of a reservation.
const releaseTime = 5 * time.Second

// errBusy says that others of an owner's submissions are being stored, and the caller does not wait for them.
var errBusy = errors.New("jobs: other submissions of its owner are being stored")

// turns has a channel of capacity 1 for each room in which reservations are being made. It has one element while one is
// made there: those of one gateway wait for each other.
type turns struct {
	mu    sync.Mutex
	rooms map[string]*turn
}

// turn is the turn of a room. turns.mu guards users: those who have the channel.
type turn struct {
	c     chan struct{}
	users int
}

// of returns the channel of a room. leave must be called when it is not used any more.
func (t *turns) of(room string) (c chan struct{}, leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rooms == nil {
		t.rooms = map[string]*turn{}
	}
	of := t.rooms[room]
	if of == nil {
		of = &turn{c: make(chan struct{}, 1)}
		t.rooms[room] = of
	}
	of.users++
	return of.c, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if of.users--; of.users == 0 {
			delete(t.rooms, room)
		}
	}
}

// roomID returns the id of an owner's room.
func roomID(what, owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return what + "-" + hex.EncodeToString(sum[:16])
}

// storedRoom is a room as it was read. Two that are stored always differ: a keeper may take the hash of a record's data
// for its version, and a room that was changed and changed back meanwhile would look unchanged.
type storedRoom struct {
	Room   room   `json:"room"`
	Change string `json:"change"` // a random text

	record launcher.Record
}

// changeRoom changes a room.
func (m *Manager) changeRoom(ctx context.Context, id string, do func(room) error) error {
	_, err := changed(
		func() (s storedRoom, err error) {
			s.record, err = m.store.keeper.Record(ctx, kindRoom, id)
			switch {
			case errors.Is(err, launcher.ErrNoRecord):
				s.record, err = launcher.Record{Kind: kindRoom, ID: id}, nil
			case errors.Is(err, launcher.ErrRecordDamaged): // its reservations are lost
				if err = nil; s.record.Version == "" {
					s.record = launcher.Record{Kind: kindRoom, ID: id}
					err = m.store.keeper.RemoveRecord(ctx, kindRoom, id)
				}
			case err == nil && json.Unmarshal(s.record.Data, &s) != nil:
				s.Room = nil
			}
			if s.Room == nil {
				s.Room = room{}
			}
			return s, err
		},
		func(s *storedRoom) error { return do(s.Room) },
		func(s *storedRoom) error {
			s.Change = rand.Text()
			return m.store.put(ctx, s.record, s, &s.record.Version)
		})
	return err
}

// reserve makes room for what an owner is about to store under an id. If the limit is reached, the error is that of
// refused. open returns the ids of what counts for the limit. release must be called when that is stored, or will not
// be. If others have the turn, what is too much already is refused at once, and the error is errBusy without wait.
func (m *Manager) reserve(
	ctx context.Context, what, owner, id string, wait bool, limit int, open func() (map[string]bool, error),
	refused func(n int) error,
) (release func(), err error) {
	if limit == 0 {
		return func() {}, nil
	}
	in := roomID(what, owner)
	turn, leave := m.turns.of(in)
	defer leave()
	select {
	case turn <- struct{}{}:
	default:
		ids, err := open()
		if delete(ids, id); err == nil && len(ids) >= limit {
			err = refused(len(ids))
		}
		if err != nil {
			return nil, err
		}
		if !wait {
			return nil, errBusy
		}
		select {
		case turn <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer func() { <-turn }()
	err = m.changeRoom(ctx, in, func(r room) error {
		now := time.Now().UTC()
		maps.DeleteFunc(r, func(_ string, at time.Time) bool { return now.Sub(at) > reserveTime })
		// They are read after the room: what has left the room is among them.
		ids, err := open()
		if err != nil {
			return err
		}
		for reserved := range r {
			ids[reserved] = true
		}
		delete(ids, id)
		if n := len(ids); n >= limit {
			return refused(n)
		}
		r[id] = now
		return nil
	})
	if err != nil {
		return nil, err
	}
	return func() { // without the turn: it would wait behind many reservations
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
		defer cancel()
		err := m.changeRoom(ctx, in, func(r room) error {
			delete(r, id)
			return nil
		})
		if err != nil {
			m.log.Warn("a reservation ends later", logkey.User, owner, logkey.Err, err)
		}
	}, nil
}

// reserveJob makes room for one more job of an owner.
func (m *Manager) reserveJob(ctx context.Context, owner, id string, wait bool) (release func(), err error) {
	return m.reserve(ctx, "jobs", owner, id, wait, m.policy.PerUser, func() (map[string]bool, error) {
		all, _, err := m.readable(ctx, true)
		ids := map[string]bool{}
		for i := range all {
			if all[i].Owner == owner && !all[i].State.Final() {
				ids[all[i].ID] = true
			}
		}
		return ids, err
	}, func(n int) error {
		return &TooManyError{fmt.Sprintf("You have %d jobs that have not ended, as many as are allowed here.", n)}
	})
}

// reserveDefinition makes room for one more definition of an owner.
func (m *Manager) reserveDefinition(ctx context.Context, owner, id string) (release func(), err error) {
	return m.reserve(ctx, "definitions", owner, id, true, m.policy.Definitions, func() (map[string]bool, error) {
		all, _, err := m.allDefinitions(ctx, false)
		ids := map[string]bool{}
		for i := range all {
			if all[i].Owner == owner {
				ids[all[i].ID] = true
			}
		}
		return ids, err
	}, func(n int) error {
		return &TooManyError{fmt.Sprintf("You have %d job definitions, as many as are allowed here.", n)}
	})
}

// unkeep removes a notebook whose job or definition was not stored. If it is not known whether that was stored, the
// notebook is left to the sweep.
func (m *Manager) unkeep(ctx context.Context, kind, source string, why error) {
	if errors.Is(why, launcher.ErrUnavailable) || why != nil && ctx.Err() != nil {
		return
	}
	if err := m.store.keeper.RemoveRecord(ctx, kind, source); err != nil {
		m.log.Warn("the notebook of a refused submission is removed later", logkey.Err, err)
	}
}
