package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Where there are limits, whoever starts a kernel holds a flock on one file of the state directory from counting the kernels that
// there are until its own one counts: until its folder has its name, or, where the folder is that of a dead kernel, until
// againLock in it is flocked. The kernel's processes are started after that.
const (
	startsLock = "starts.lock" // in the state directory
	againLock  = "again.lock"  // in a kernel's folder; shared by all who start it again

	lockPause    = time.Millisecond // between two attempts
	maxLockPause = 20 * time.Millisecond
)

// lockStarts keeps every other gateway of the state directory from starting kernels, until unlock.
func (l *Launcher) lockStarts(ctx context.Context) (unlockStarts func(), err error) {
	select { // within this process nobody has to try again and again
	case l.starting <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	f, err := os.OpenFile(filepath.Join(l.layout.state, startsLock), os.O_RDWR|os.O_CREATE, 0o600)
	for pause := lockPause; err == nil; pause = min(2*pause, maxLockPause) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { unlock(f); <-l.starting }, nil
		}
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = sleep(ctx, pause)
		}
	}
	<-l.starting
	if f != nil {
		f.Close() //nolint:errcheck // nothing was written
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("lock %s: %w", startsLock, err)
}

// admit decides about a start. The starts' lock is held until the caller calls done, by when the kernel has to count. The error is
// a *launcher.LimitError if there are too many kernels.
func (l *Launcher) admit(ctx context.Context, start launcher.Held) (done func(), err error) {
	if !launcher.Counts(l.opts.Limits) {
		return func() {}, nil
	}
	done, err = l.lockStarts(ctx)
	if err != nil {
		return nil, err
	}
	held, err := l.held(ctx, start.ID)
	if err == nil {
		err = l.opts.Limits.Admit(start, held)
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// heldBy is a kernel of a record as limits count it.
func heldBy(rec record) launcher.Held {
	return launcher.Held{ID: rec.ID, SpecName: rec.SpecName, Owner: rec.Owner, Groups: rec.Groups, State: launcher.Starting, LastActivity: rec.Created}
}

// held returns the kernels that count, but for one. The starts' lock is held.
func (l *Launcher) held(ctx context.Context, but string) ([]launcher.Held, error) {
	entries, err := os.ReadDir(l.layout.kernels())
	if err != nil {
		return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	var all []launcher.Held
	for _, e := range entries {
		id := e.Name()
		if !launcher.ValidID(id) || id == but { // what is only being made has no id for a name
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		rec, err := l.layout.readRecord(id)
		var bad *badRecordError
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.As(err, &bad): // it has gone, or never was a kernel
			continue
		case err != nil:
			return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
		}
		counts, err := l.counts(id)
		if err != nil {
			return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
		}
		if counts {
			all = append(all, l.shown(heldBy(rec)))
		}
	}
	return all, nil
}

// shown adds what this launcher has heard of a kernel.
func (l *Launcher) shown(h launcher.Held) launcher.Held {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[h.ID]
	if k == nil {
		return h
	}
	if k.heard {
		h.State = launcher.StateOf(k.status.State)
		if k.status.LastActivity.After(h.LastActivity) {
			h.LastActivity = k.status.LastActivity.UTC()
		}
	}
	h.Ending = k.stop != nil
	return h
}

// counts reports whether a kernel lives, is being started, by whatever gateway, or is ending. One that has ended does not, although
// its supervisor may still tell of it; nor does one whose supervisor was killed, or whose gateway has died before there was one.
func (l *Launcher) counts(id string) (bool, error) {
	switch _, err := os.Stat(l.layout.file(id, endFile)); {
	case err == nil:
		return l.comesAgain(id)
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	folder, err := lockFolder(l.layout.kernel(id))
	switch {
	case errors.Is(err, errBusy):
		return true, nil // it is being started, ended, or looked at
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	}
	held, err := l.layout.supervised(id)
	unlock(folder)
	if held || err != nil {
		return held, err
	}
	// What its supervisor has left runs until somebody looks.
	k, _, err := l.enter(id)
	switch {
	case errors.Is(err, launcher.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	}
	v := l.settle(k)
	return v == alive || v == uncertain, nil
}

// comesAgain reports whether a dead kernel is being started again. The starts' lock is held, under which alone that begins.
func (l *Launcher) comesAgain(id string) (bool, error) {
	f, err := os.Open(l.layout.file(id, againLock))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	unlock(f)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// again has a kernel that is dead, or may be dead this moment, count until done is called: by then it lives, or it is not to be
// started after all. The error is a *launcher.LimitError if there are too many kernels.
func (l *Launcher) again(ctx context.Context, k *kernel) (done func(), err error) {
	if !launcher.Counts(l.opts.Limits) {
		return func() {}, nil
	}
	unlockStarts, err := l.lockStarts(ctx)
	if err != nil {
		return nil, err
	}
	defer unlockStarts()
	already := false
	if _, err := os.Stat(l.layout.file(k.id, endFile)); errors.Is(err, fs.ErrNotExist) {
		already = true // it lives, and shall not stop to count if it ends before it is restarted
	} else if err != nil {
		return nil, err
	}
	if !already {
		held, err := l.held(ctx, k.id)
		if err == nil {
			err = l.opts.Limits.Admit(heldBy(k.rec), held)
		}
		if err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(l.layout.file(k.id, againLock), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, l.layout.goneError(k.id)
	}
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil {
		f.Close() //nolint:errcheck // nothing was written
		return nil, fmt.Errorf("lock %s: %w", againLock, err)
	}
	return func() { unlock(f) }, nil
}

// Restarting has a kernel count whose supervisor is about to be asked to restart it.
func (l *Launcher) Restarting(ctx context.Context, id string) (done func(), err error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return nil, err
	}
	return l.again(ctx, k)
}
