package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// kernel is one entry of the state directory as this launcher knows it. It begins when the folder is made or found and
// ends, gone, when the folder has been removed; a kernel that is later made with the same id is another one.
type kernel struct {
	// Fixed.
	id   string
	dir  string
	rec  record
	turn chan struct{} // capacity 1: held by whoever changes the folder or concludes that the supervisor has ended

	// Guarded by Launcher.mu.
	status      supervisor.Status // the last one heard
	heard       bool              // there is one
	streaming   bool              // it is being kept up to date
	unsupported string            // not "": the supervisor lives and speaks another protocol, told in a sentence
	end         *supervisor.Ending
	gone        error // not nil: there is no such kernel any more, told as the error that callers get
	watcher     *watcher
	stop        *stop         // in progress
	pushed      int64         // log limit the supervisor was told last
	changed     chan struct{} // closed at the next change of any of these
	notes       notesCache
	start       *start            // not over yet; nil: it is, or somebody else has begun it
	counted     supervisor.Counts // the last ones heard of any of its supervisors
	culled      time.Time         // the last time it was culled that is in Launcher.culls
}

func (l *Launcher) newKernel(rec record) *kernel {
	return &kernel{id: rec.ID, dir: l.layout.kernel(rec.ID), rec: rec, turn: make(chan struct{}, 1),
		changed: make(chan struct{})}
}

// touch wakes whoever waits for a change. Launcher.mu is held.
func (k *kernel) touch() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// lives says that a supervisor is there, or is about to be. Launcher.mu is held.
func (k *kernel) lives() bool { return k.end == nil && k.gone == nil }

// tryTurn takes the turn if nobody has it.
func (k *kernel) tryTurn() bool {
	select {
	case k.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

// takeTurn waits for the turn.
func (k *kernel) takeTurn(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (k *kernel) giveTurn() { <-k.turn }

// known returns the kernels in memory.
func (l *Launcher) known() []*kernel {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*kernel, 0, len(l.kernels))
	for _, k := range l.kernels {
		all = append(all, k)
	}
	return all
}

// changes returns a channel that is closed at the next change.
func (l *Launcher) changes(k *kernel) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return k.changed
}

// find returns the kernel of an id, from the folder if need be. A dead one is looked at again: another gateway may have
// revived it, or its time may be up.
func (l *Launcher) find(ctx context.Context, id string) (*kernel, error) {
	if !launcher.ValidID(id) {
		return nil, launcher.ErrNotFound // and no path is made of it
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	k, closed := l.kernels[id], l.closed
	look := k != nil && (k.end != nil || k.unsupported != "")
	l.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed
	case k == nil:
		return l.adopt(id)
	case look:
		l.settle(k)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return k, k.gone
}

// adopt enters a kernel whose folder another gateway, or an earlier life of this one, has made.
func (l *Launcher) adopt(id string) (*kernel, error) {
	k, fresh, err := l.enter(id)
	if err != nil {
		return nil, err
	}
	if fresh {
		l.settle(k)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return k, k.gone
}

func (l *Launcher) enter(id string) (k *kernel, fresh bool, err error) {
	l.folders.Lock()
	defer l.folders.Unlock()
	l.mu.Lock()
	k, closed := l.kernels[id], l.closed
	l.mu.Unlock()
	if closed {
		return nil, false, errClosed
	}
	if k != nil {
		return k, false, nil
	}
	rec, err := l.readEntry(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, l.layout.goneError(id)
	case err != nil:
		return nil, false, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	k = l.newKernel(rec)
	l.mu.Lock()
	l.kernels[id] = k
	l.mu.Unlock()
	l.countChanged()
	return k, true, nil
}

// readEntry reads a kernel's record and sets the entry aside if it cannot be one; the error is fs.ErrNotExist then, too.
func (l *Launcher) readEntry(id string) (record, error) {
	rec, err := l.layout.readRecord(id)
	var bad *badRecordError
	if !errors.As(err, &bad) {
		return rec, err
	}
	// It may have been put there while it was read: between two looks a kernel is made. Whoever does that, in another
	// gateway, holds the folder's lock until its supervisor listens.
	folder, err := lockFolder(l.layout.kernel(id))
	if errors.Is(err, errBusy) {
		return l.layout.readRecord(id)
	}
	if err != nil {
		return rec, err
	}
	defer unlock(folder)
	rec, err = l.layout.readRecord(id)
	if errors.As(err, &bad) {
		l.setAside(id, bad)
		return rec, fs.ErrNotExist
	}
	return rec, err
}

// awaitWord waits until something certain is known of a kernel, for limit at most.
func (l *Launcher) awaitWord(ctx context.Context, k *kernel, limit time.Duration) {
	if limit <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	l.await(ctx, k, func() bool { return k.heard || k.unsupported != "" || !k.lives() })
}

// await waits until cond, which is called with Launcher.mu held, is true. It reports whether it is.
func (l *Launcher) await(ctx context.Context, k *kernel, cond func() bool) bool {
	for {
		l.mu.Lock()
		ok, changed := cond(), k.changed
		l.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-l.ctx.Done():
			return false
		}
	}
}

// reachable returns why there is nothing to connect to, if so.
func (l *Launcher) reachable(k *kernel) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case k.gone != nil:
		return k.gone
	case k.end != nil:
		return &launcher.GoneError{ID: k.id, Owner: k.rec.Owner, Reason: k.end.Reason, At: k.end.At}
	case k.unsupported != "":
		return fmt.Errorf("%w: %s", launcher.ErrUnavailable, k.unsupported)
	}
	return nil
}

// describe gives what is known of a kernel to the outside.
func (l *Launcher) describe(k *kernel) (launcher.Kernel, error) {
	notes, err := l.readNotes(k)
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.gone != nil {
		return launcher.Kernel{}, k.gone
	}
	if err != nil {
		return launcher.Kernel{}, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	d := launcher.Kernel{ID: k.id, SpecName: k.rec.SpecName, Owner: k.rec.Owner, Groups: k.rec.Groups, Created: k.rec.Created,
		State: launcher.Starting, LastActivity: k.rec.Created, Stale: !k.streaming, Notes: notes}
	if k.heard {
		d.State, d.Reason = launcher.StateOf(k.status.State), k.status.Reason
		d.Connections, d.LogBytes = k.status.Connections, k.status.LogBytes
		d.CullAt, d.KeepUntil = k.status.CullAt, k.status.KeepUntil
		if k.status.LastActivity.After(d.LastActivity) {
			d.LastActivity = k.status.LastActivity.UTC()
		}
	}
	switch {
	case k.end != nil:
		d.State, d.Reason, d.Stale, d.Connections, d.LogBytes = launcher.Dead, k.end.Reason, false, 0, 0
		d.CullAt, d.KeepUntil = time.Time{}, time.Time{}
	case k.unsupported != "":
		// Busy is the one state in which nobody takes a kernel for unused.
		d.State, d.Reason, d.Stale = launcher.Busy, k.unsupported, true
	case !k.heard:
		d.Reason = "its supervisor has not answered this gateway yet"
	}
	return d, nil
}
