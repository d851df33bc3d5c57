package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// If there are limits, a gateway that starts a kernel first takes a flock on one file of the state directory. It holds
// the flock while it counts the kernels, and until its own kernel counts. A new kernel counts once its folder has its
// name. A dead kernel counts once restartLock in its folder is flocked. The kernel's processes are started after that.
const (
	startsLock  = "starts.lock" // in the state directory
	restartLock = "again.lock"  // in a kernel's folder; shared by all that restart it
)

// starts has the lock on starts. With it, it decides about starts under limits.
type starts struct {
	l    *Launcher
	path string
	turn chan struct{} // capacity 1: held by the caller that has the flock, or is next
}

func newStarts(l *Launcher) *starts {
	return &starts{l, filepath.Join(l.layout.state, startsLock), make(chan struct{}, 1)}
}

// lock keeps every other gateway of the state directory from starting kernels until unlock is called.
func (s *starts) lock(ctx context.Context) (unlock func(), err error) {
	select { // so that only one goroutine of this process polls the flock
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	f, err := flock.Wait(ctx, s.path)
	if err == nil {
		return func() { flock.Unlock(f); <-s.turn }, nil
	}
	<-s.turn
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("%s: %w", startsLock, err)
}

// admit decides about a start. It holds the lock on starts until the caller calls done. Before that call the kernel
// must count. The error is a *launcher.LimitError if there are too many kernels.
func (s *starts) admit(ctx context.Context, start launcher.Held) (done func(), err error) {
	if !launcher.HasLimits(s.l.opts.Limits) {
		return func() {}, nil
	}
	done, err = s.lock(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.decide(ctx, start); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// heldBy returns the kernel of a record in the form in which limits count kernels.
func heldBy(rec record) launcher.Held {
	return launcher.Held{
		ID:           rec.ID,
		SpecName:     rec.SpecName,
		Owner:        rec.Owner,
		Groups:       rec.Groups,
		GPUs:         rec.GPUs,
		State:        api.Starting,
		LastActivity: rec.Created,
	}
}

// decide decides about a start. The caller holds the lock on starts. Memory knows every kernel that counts, because
// all that begin to count do so under this lock; see package changes. Memory may also have kernels that have ended
// unnoticed. So a start is admitted by what memory has. Before it is refused, the folders of the kernels that count
// against the limit are read, which takes some system calls for each. Which kernels live and which have ended is read
// at one moment, so each is counted once.
func (s *starts) decide(ctx context.Context, start launcher.Held) error {
	l := s.l
	if err := l.catchUp(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	held := make([]launcher.Held, 0, len(l.kernels.ordered))
	for _, k := range l.kernels.ordered {
		if k.end == nil && k.id != start.ID {
			h := heldBy(k.rec)
			k.supervisor.HeldLocked(&h)
			h.Ending = k.stop != nil
			held = append(held, h)
		}
	}
	ended := slices.Collect(maps.Keys(l.kernels.ended))
	l.mu.Unlock()
	checked := map[string]bool{} // kernels in held that a look at their folders has found to count
	for _, k := range ended {
		if k.id == start.ID {
			continue
		}
		again, err := s.checkHeld(ctx, k.id)
		if err != nil {
			return err
		}
		if again { // it is being restarted
			held, checked[k.id] = append(held, heldBy(k.rec)), true
		}
	}
	for {
		verdict := l.opts.Limits.Decide(start, held)
		if verdict.Refused == nil {
			return nil
		}
		gone := map[string]bool{}
		for _, id := range verdict.Against {
			if checked[id] {
				continue
			}
			counts, err := s.checkHeld(ctx, id)
			if err != nil {
				return err
			}
			checked[id], gone[id] = counts, !counts
		}
		before := len(held)
		held = slices.DeleteFunc(held, func(h launcher.Held) bool { return gone[h.ID] })
		if len(held) == before {
			return verdict.Refused
		}
	}
}

// checkHeld reports whether a kernel counts, by its folder.
func (s *starts) checkHeld(ctx context.Context, id string) (bool, error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	counts, err := s.counts(id)
	if err != nil {
		return false, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	return counts, nil
}

// counts reports whether a kernel lives, is being started by any gateway, or is ending. A kernel that has ended does
// not count, although its supervisor may linger. A kernel whose supervisor was killed, or whose gateway died before it
// started one, does not count either.
func (s *starts) counts(id string) (bool, error) {
	l := s.l
	switch _, err := os.Stat(l.layout.file(id, endFile)); {
	case err == nil:
		return l.layout.isRestarting(id)
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	folder, err := flock.Folder(l.layout.kernel(id))
	switch {
	case errors.Is(err, flock.ErrBusy):
		return true, nil // it is being started, ended or reconciled
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	}
	held, err := l.layout.supervised(id)
	flock.Unlock(folder)
	if held || err != nil {
		return held, err
	}
	// Processes that its supervisor left behind run until the kernel is reconciled.
	k, _, err := l.enter(id)
	switch {
	case errors.Is(err, launcher.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	}
	v := l.reconcile(k)
	return v == alive || v == inLine || v == uncertain, nil
}

// isRestarting reports whether a dead kernel is being restarted. The caller holds the lock on starts, without which no
// restart begins.
func (l layout) isRestarting(id string) (bool, error) {
	return flock.Held(l.file(id, restartLock), false)
}

// countRestart makes a kernel count until done is called, even if it is dead or dies at this moment. When the caller
// calls done, the kernel lives or its restart was given up. The error is a *launcher.LimitError if there are too many
// kernels.
func (s *starts) countRestart(ctx context.Context, k *kernel) (done func(), err error) {
	l := s.l
	if !launcher.HasLimits(l.opts.Limits) {
		return func() {}, nil
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	already := false
	if _, err := os.Stat(l.layout.file(k.id, endFile)); errors.Is(err, fs.ErrNotExist) {
		already = true // the kernel lives; it must go on counting if it ends before its restart
	} else if err != nil {
		return nil, err
	}
	if !already {
		if err := s.decide(ctx, heldBy(k.rec)); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(l.layout.file(k.id, restartLock), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, l.layout.goneError(k.id)
	}
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("lock %s: %w", restartLock, err)
	}
	return func() { flock.Unlock(f) }, nil
}

// Restarting makes a kernel count before its supervisor is asked to restart it.
func (l *Launcher) Restarting(ctx context.Context, id string) (done func(), err error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := l.endLingering(ctx, k); err != nil {
		return nil, err
	}
	return l.starts.countRestart(ctx, k)
}
