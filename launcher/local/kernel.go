package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/follow"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/changes"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/lend"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// kernel is one entry of the state directory as this launcher knows it. An entry begins when the folder is created or
// found. It ends when the folder was removed; gone is set then. A later kernel with the same id is another entry.
type kernel struct {
	// Fixed.
	id    string
	dir   string
	rec   record
	place *lend.Place   // in the queue for GPUs; nil: it asks for none
	turn  chan struct{} // capacity 1: held while the folder is changed or the supervisor is found to have ended

	// Guarded by Launcher.mu.
	supervisor  follow.Supervisor
	end         *api.Ending // set by registry.setEnd
	gone        error       // not nil: the kernel no longer exists; callers get this error
	stop        *stop       // in progress
	pushedLimit int64       // log limit that was sent to the supervisor last
	notes       notesCache
	folder      *changes.Folder // nil: memory does not have the kernel
	seen        uint64          // the last rescan that has found the folder
	upgradeNext time.Time       // before it the supervisor is not upgraded again
	start       *start          // in progress; nil: it is over, or another gateway began it
	unsure      bool            // it may begin to wait: another gateway was working on it at the last look
	gpus        gpuCounted
	culled      time.Time // when the last cull happened that tally.culls includes
}

func (l *Launcher) newKernel(rec record) *kernel {
	dir := l.layout.kernel(rec.ID)
	as := devices.Borrower{Kernel: rec.ID, Job: rec.Job, Parks: rec.Parks && !rec.Job, Warm: rec.Warm != ""}
	return &kernel{id: rec.ID, dir: dir, rec: rec, place: l.lender.Place(as, dir, rec.Want),
		turn: make(chan struct{}, 1), supervisor: follow.NewSupervisor()}
}

// livesLocked reports whether a supervisor lives or will be started.
func (k *kernel) livesLocked() bool { return k.end == nil && k.gone == nil }

// lookLocked reports whether no status stream tells what becomes of the kernel: callers reconcile it first.
func (k *kernel) lookLocked() bool {
	return k.end != nil || k.place.Waits() || k.unsure || k.supervisor.Unsupported != ""
}

// hasAnswerLocked reports whether the kernel has a status, has ended, or cannot have a status.
func (k *kernel) hasAnswerLocked() bool {
	return k.supervisor.HasStatus || k.place.Waits() || k.supervisor.Unsupported != "" || !k.livesLocked()
}

// tryTurn takes the turn if it is free.
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

// find returns the kernel of an id, from its folder if need be. A dead kernel is reconciled first: another gateway may
// have restarted it, or it may have been shown for long enough.
func (l *Launcher) find(ctx context.Context, id string) (*kernel, error) {
	if !launcher.ValidID(id) {
		return nil, launcher.ErrNotFound // the id becomes no path
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	k, closed := l.kernels.byID[id], l.goroutines.Closed()
	look := k != nil && k.lookLocked()
	l.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed
	case k == nil:
		return l.adopt(id)
	case look:
		l.reconcile(k)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return k, k.gone
}

// adopt records a kernel whose folder was created by another gateway or by an earlier run of this one.
func (l *Launcher) adopt(id string) (*kernel, error) {
	k, fresh, err := l.enter(id)
	if err != nil {
		return nil, err
	}
	if fresh {
		l.reconcile(k)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return k, k.gone
}

func (l *Launcher) enter(id string) (k *kernel, fresh bool, err error) {
	l.folders.Lock()
	defer l.folders.Unlock()
	l.mu.Lock()
	k, closed := l.kernels.byID[id], l.goroutines.Closed()
	l.mu.Unlock()
	if closed {
		return nil, false, errClosed
	}
	if k != nil {
		return k, false, nil
	}
	rec, err := l.strays.readEntry(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, l.layout.goneError(id)
	case err != nil:
		return nil, false, fmt.Errorf("%w: %w", launcher.ErrUnavailable, err)
	}
	k = l.newKernel(rec)
	if since, waits := l.layout.seemsToWait(k); waits { // before any goroutine lends its GPU to another kernel
		k.place.Enter(since, nil)
	}
	l.mu.Lock()
	l.addLocked(k)
	l.mu.Unlock()
	l.logs.recount()
	return k, true, nil
}

// awaitFirstStatus waits until the kernel has a status, has ended, or cannot have a status. It waits at most limit.
func (l *Launcher) awaitFirstStatus(ctx context.Context, k *kernel, limit time.Duration) {
	l.mu.Lock()
	already := k.hasAnswerLocked()
	l.mu.Unlock()
	if already || limit <= 0 { // a list asks for thousands of kernels, and most have a status
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	l.follower.Await(ctx, &k.supervisor, k.hasAnswerLocked)
}

// reachable returns an error if there is no supervisor to connect to.
func (l *Launcher) reachable(k *kernel) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case k.gone != nil:
		return k.gone
	case k.end != nil:
		return &launcher.GoneError{ID: k.id, Owner: k.rec.Owner, Reason: k.end.Reason, At: k.end.At}
	case k.place.Waits():
		return launcher.ErrNoSupervisor
	case k.supervisor.Unsupported != "":
		return &launcher.UnsupportedError{Reason: k.supervisor.Unsupported}
	}
	return nil
}

// describe returns the kernel as clients see it.
func (l *Launcher) describe(k *kernel) (launcher.Kernel, error) {
	notes, err := l.readNotes(k)
	failing := l.readFailing(k)
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.gone != nil {
		return launcher.Kernel{}, k.gone
	}
	if err != nil {
		return launcher.Kernel{}, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	var d launcher.Kernel
	k.describeLocked(&d)
	d.Notes = notes
	if failing != "" && k.supervisorAwayLocked() {
		d.Reason = failing
	}
	return d, nil
}

// describeLocked writes what memory has of the kernel, without its notes, into d, which is empty.
func (k *kernel) describeLocked(d *launcher.Kernel) {
	d.ID, d.SpecName, d.Owner, d.Groups = k.id, k.rec.SpecName, k.rec.Owner, k.rec.Groups
	d.Created, d.State, d.LastActivity = k.rec.Created, api.Starting, k.rec.Created
	d.Flavor, d.Profile, d.GPUs = k.rec.Flavor, k.rec.Profile, k.rec.GPUs
	reason := ""
	if k.end != nil {
		reason = k.end.Reason
	}
	k.supervisor.DescribeLocked(d, k.end != nil, reason)
	if waits := k.place.Reason(); waits != "" && k.end == nil {
		d.Reason, d.Stale = waits, false // without a supervisor there is no newer status
	}
}

// supervisorAwayLocked reports whether a kernel that has not ended has no supervisor that answers.
func (k *kernel) supervisorAwayLocked() bool {
	return k.livesLocked() && !k.place.Waits() && !k.supervisor.Streaming
}

// readFailing returns why the kernel has no supervisor at present; "" if it has one, or if no reason is known.
func (l *Launcher) readFailing(k *kernel) string {
	l.mu.Lock()
	away := k.supervisorAwayLocked()
	l.mu.Unlock()
	var f api.Failing
	if !away || files.ReadJSON(l.layout.file(k.id, api.FailingFile), &f) != nil { // the file is rare
		return ""
	}
	return f.Reason
}
