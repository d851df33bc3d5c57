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
	"github.com/elastic-kernel-gateway/ekg/launcher/sleep"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// If there are limits, a gateway that starts a kernel first takes a flock on one file of the state directory. It holds
// the flock while it counts the kernels, and until its own kernel counts. A new kernel counts once its folder has its
// name. A dead kernel counts once restartLock in its folder is flocked. The kernel's processes are started after that.
const (
	startsLock  = "starts.lock" // in the state directory
	restartLock = "again.lock"  // in a kernel's folder; shared by all that restart it

	lockPause    = time.Millisecond // between two attempts
	maxLockPause = 20 * time.Millisecond
)

// lockStarts keeps every other gateway of the state directory from starting kernels until unlockStarts is called.
func (l *Launcher) lockStarts(ctx context.Context) (unlockStarts func(), err error) {
	select { // so that only one goroutine of this process polls the flock
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
			err = sleep.For(ctx, pause)
		}
	}
	<-l.starting
	if f != nil {
		_ = f.Close() // nothing was written
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("lock %s: %w", startsLock, err)
}

// admit decides about a start. It holds the lock on starts until the caller calls done. Before that call the kernel
// must count. The error is a *launcher.LimitError if there are too many kernels.
func (l *Launcher) admit(ctx context.Context, start launcher.Held) (done func(), err error) {
	if !launcher.HasLimits(l.opts.Limits) {
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

// held returns the kernels that count, except one. The caller holds the lock on starts.
func (l *Launcher) held(ctx context.Context, but string) ([]launcher.Held, error) {
	entries, err := os.ReadDir(l.layout.kernels())
	if err != nil {
		return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	var all []launcher.Held
	for _, e := range entries {
		id := e.Name()
		if !launcher.ValidID(id) || id == but { // an unfinished folder has another name
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		rec, err := l.layout.readRecord(id)
		var bad *badRecordError
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.As(err, &bad): // it has gone, or was never a kernel
			continue
		case err != nil:
			return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
		case rec.Warm != "":
			continue
		}
		counts, err := l.counts(id)
		if err != nil {
			return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
		}
		if counts {
			all = append(all, l.withStatus(heldBy(rec)))
		}
	}
	return all, nil
}

// withStatus adds the last status that this launcher has received of a kernel.
func (l *Launcher) withStatus(h launcher.Held) launcher.Held {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[h.ID]
	if k == nil {
		return h
	}
	k.supervisor.HeldLocked(&h)
	h.Ending = k.stop != nil
	return h
}

// counts reports whether a kernel lives, is being started by any gateway, or is ending. A kernel that has ended does
// not count, although its supervisor may linger. A kernel whose supervisor was killed, or whose gateway died before it
// started one, does not count either.
func (l *Launcher) counts(id string) (bool, error) {
	switch _, err := os.Stat(l.layout.file(id, endFile)); {
	case err == nil:
		return l.isRestarting(id)
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	folder, err := lockFolder(l.layout.kernel(id))
	switch {
	case errors.Is(err, errBusy):
		return true, nil // it is being started, ended or reconciled
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
func (l *Launcher) isRestarting(id string) (bool, error) {
	f, err := os.Open(l.layout.file(id, restartLock))
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

// countRestart makes a kernel count until done is called, even if it is dead or dies at this moment. When the caller
// calls done, the kernel lives or its restart was given up. The error is a *launcher.LimitError if there are too many
// kernels.
func (l *Launcher) countRestart(ctx context.Context, k *kernel) (done func(), err error) {
	if !launcher.HasLimits(l.opts.Limits) {
		return func() {}, nil
	}
	unlockStarts, err := l.lockStarts(ctx)
	if err != nil {
		return nil, err
	}
	defer unlockStarts()
	already := false
	if _, err := os.Stat(l.layout.file(k.id, endFile)); errors.Is(err, fs.ErrNotExist) {
		already = true // the kernel lives; it must go on counting if it ends before its restart
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
	return func() { unlock(f) }, nil
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
	return l.countRestart(ctx, k)
}
