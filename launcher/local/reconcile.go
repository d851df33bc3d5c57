package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// liveness is what a kernel's folder says about its supervisor.
type liveness int

const (
	uncertain liveness = iota // another goroutine or gateway works on it, or it could not be read
	alive                     // its supervisor lives
	inLine                    // it waits for a GPU and has no supervisor
	dead                      // its supervisor has ended; the kernel is shown as dead
	gone                      // the folder has been removed
)

// reconcile reads a kernel's folder, and makes memory and folder agree. It cleans up after a supervisor that ended, and
// removes a kernel that has been shown as dead for long enough. It never waits for others.
func (l *Launcher) reconcile(k *kernel) liveness {
	if !k.tryTurn() {
		return uncertain
	}
	defer k.giveTurn()
	folder, err := flock.Folder(k.dir)
	if errors.Is(err, syscall.ENOTDIR) {
		l.layout.setAside(k.dir, err)
		err = fs.ErrNotExist
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.mu.Lock()
		lives := k.livesLocked() && !k.place.Waits()
		l.mu.Unlock()
		if lives {
			l.strays.endRemoved(k.rec)
		}
		l.markGone(k, l.layout.goneError(k.id))
		return gone
	case errors.Is(err, flock.ErrBusy):
		return l.reconcileBusy(k)
	case err != nil:
		l.log.Warn("kernel cannot be looked at", logkey.Kernel, k.id, logkey.Err, err)
		l.ensureFollowed(k)
		return uncertain
	}
	defer flock.Unlock(folder)
	v, err := l.reconcileFolder(k)
	if err != nil {
		l.log.Warn("kernel's end cannot be recorded", logkey.Kernel, k.id, logkey.Err, err)
		l.ensureFollowed(k)
		return uncertain
	}
	return v
}

// reconcileBusy reconciles a kernel whose folder another gateway has locked. A kernel that seems to wait counts as
// waiting, so that no later kernel gets its GPU. The Lender looks again. The turn is held.
func (l *Launcher) reconcileBusy(k *kernel) liveness {
	if since, waits := l.layout.seemsToWait(k); waits {
		l.markWaiting(k, since, nil)
		return inLine
	}
	l.mu.Lock()
	k.unsure = k.rec.Want != nil
	l.mu.Unlock()
	l.ensureFollowed(k)
	return uncertain
}

// reconcileFolder does the work of reconcile. The turn and the folder's lock are held.
func (l *Launcher) reconcileFolder(k *kernel) (liveness, error) {
	l.mu.Lock()
	k.unsure = false
	l.mu.Unlock()
	held, err := l.layout.supervised(k.id)
	if err != nil {
		return uncertain, err
	}
	if held {
		l.endWaiting(k)
		l.markAlive(k)
		return alive, nil
	}
	end, err := l.layout.readEnding(k.id)
	if err != nil {
		l.log.Error("record of a kernel's end cannot be read", logkey.Kernel, k.id, logkey.Err, err)
		end = nil
	}
	if since, waits := k.place.Stored(); waits && end == nil {
		l.markWaiting(k, since, nil)
		return inLine, nil
	}
	l.mu.Lock()
	known := k.end != nil
	l.mu.Unlock()
	removed := end != nil && (end.Stopped || l.timing.now().Sub(end.At) >= l.opts.DeadLinger)
	switch {
	case end == nil:
		if end, err = l.processes.cleanUp(k); err != nil {
			return uncertain, err
		}
	case !known || removed: // not at each look at a dead kernel: this reads all of /proc
		l.processes.killRemains(k, l.processes.readProcesses(k.id))
	}
	if removed {
		return gone, l.removeWithEnding(k, *end)
	}
	l.markDead(k, end)
	return dead, nil
}

// lockIsRight decides which of two different process ids is that of the kernel's last supervisor: the one in lockFile,
// or the one in processFile. processFile may not be written yet, or be about an earlier supervisor. A supervisor of an
// earlier version writes nothing into lockFile, so the id there may be an earlier one, too. A living one decides.
// If none lives, the file that was written last does.
func (l layout) lockIsRight(id string, locked, noted int) bool {
	switch {
	case noted == 0, l.checkSupervisor(id, locked) == nil:
		return true
	case l.checkSupervisor(id, noted) == nil:
		return false
	}
	lock, err1 := os.Stat(l.file(id, lockFile))
	process, err2 := os.Stat(l.file(id, processFile))
	return err1 != nil || err2 != nil || !process.ModTime().After(lock.ModTime())
}

// errStarts says that a supervisor has taken the kernel's lock meanwhile. A gateway that was killed had started it.
var errStarts = fmt.Errorf("%w: its supervisor has just started", launcher.ErrUnavailable)

// removeEnded removes a kernel that callers do not get again. The turn and the folder's lock are held, and no
// supervisor had the kernel's lock. The error may be errStarts.
func (l *Launcher) removeEnded(k *kernel) error {
	lock, err := l.keepFromStart(k)
	if err != nil {
		return err
	}
	defer flock.Unlock(lock)
	if err := l.remove(k); err != nil {
		return err
	}
	l.markGone(k, launcher.ErrNotFound)
	return nil
}

// keepFromStart takes the lock of a kernel that is about to be removed. A supervisor that took it now would run on
// without a folder. The error may be errStarts.
func (l *Launcher) keepFromStart(k *kernel) (*os.File, error) {
	lock, err := flock.Try(l.layout.file(k.id, lockFile))
	if errors.Is(err, flock.ErrBusy) {
		err = errStarts
	}
	return lock, err
}

// removeWithEnding is removeEnded, and stores the ending for later requests.
func (l *Launcher) removeWithEnding(k *kernel, end api.Ending) error {
	lock, err := l.keepFromStart(k)
	if err != nil {
		return err
	}
	defer flock.Unlock(lock)
	end.KernelID = k.id
	if err := files.WriteJSON(l.layout.endingFile(k.id), storedEnding{end, k.rec.SpecName, k.rec.Owner,
		k.rec.Flavor, k.rec.GPUs}); err != nil {
		return err
	}
	if err := l.remove(k); err != nil {
		return err
	}
	l.mu.Lock()
	l.tally.cullLocked(k, &end)
	l.mu.Unlock()
	l.markGone(k, &launcher.GoneError{ID: k.id, Owner: k.rec.Owner, Reason: end.Reason, At: end.At})
	return nil
}

// remove removes everything that a kernel has on disk. The turn and the folder's lock are held.
func (l *Launcher) remove(k *kernel) error {
	l.processes.removeGroup(k) // the folder says which one it is
	return errors.Join(l.layout.removeRunDir(k.rec), l.layout.removeFolder(k.id))
}

func (l *Launcher) markAlive(k *kernel) {
	l.mu.Lock()
	revived := k.end != nil
	l.kernels.setEnd(k, nil)
	if revived {
		k.supervisor.HasStatus, k.pushedLimit = false, 0
		k.supervisor.LeaveLocked() // a stream that began before would not repeat the status
		k.supervisor.ChangedLocked()
	}
	l.mu.Unlock()
	l.ensureFollowed(k)
	if revived {
		l.logs.recount()
	}
}

func (l *Launcher) markDead(k *kernel, end *api.Ending) {
	l.mu.Lock()
	was := k.end
	l.tally.gpusLocked(k)
	l.kernels.setEnd(k, end)
	k.supervisor.Unsupported = ""
	k.place.Leave()
	k.supervisor.LeaveLocked()
	l.tally.startLocked(k)
	l.tally.cullLocked(k, end)
	if was == nil || *was != *end {
		k.supervisor.ChangedLocked()
	}
	l.mu.Unlock()
	if was == nil {
		l.lender.Wake() // it has given its GPUs back
		l.log.Info("kernel is dead", logkey.Kernel, k.id, logkey.Spec, k.rec.SpecName, logkey.Reason, end.Reason)
		l.logs.recount()
	}
}

// markGone forgets a kernel. Callers that still use it get the error why.
func (l *Launcher) markGone(k *kernel, why error) {
	l.mu.Lock()
	first := k.gone == nil
	if first {
		l.tally.gpusLocked(k)
		k.gone = why
		k.place.Leave()
		k.supervisor.LeaveLocked()
		l.tally.startLocked(k)
		k.supervisor.ChangedLocked()
		l.forgetLocked(k)
	}
	l.mu.Unlock()
	if first {
		l.lender.Wake()
		l.log.Info("kernel is gone", logkey.Kernel, k.id, logkey.Spec, k.rec.SpecName, logkey.Err, why)
		l.logs.recount()
	}
}

// rescan compares memory with the folders. The error is an ErrUnavailable: an incomplete list is worse than none.
func (l *Launcher) rescan(ctx context.Context) error {
	version := l.changes.Begin()
	names, err := readNames(l.layout.kernels())
	if err != nil {
		return fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	unfollowed, missing := l.compare(names)
	var errs []error
	for _, name := range unfollowed {
		if err := ctx.Err(); err != nil {
			return err
		}
		if isTemporary(name) {
			continue
		}
		if !launcher.ValidID(name) {
			l.layout.setAside(l.layout.kernel(name), errors.New("its name is not a kernel id"))
			continue
		}
		errs = append(errs, l.refresh(name))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	settled := true
	for _, k := range missing { // another gateway has removed it, or it was created after the read
		settled = l.reconcile(k) == gone && settled
	}
	if settled {
		l.changes.Complete(version)
	}
	return nil
}

// readNames returns the names in a folder, in no order.
func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	return f.Readdirnames(-1)
}

// compare returns the names that are not those of followed kernels, and the kernels in memory that have no name. It
// takes the lock once: a list compares thousands of names.
func (l *Launcher) compare(names []string) (unfollowed []string, missing []*kernel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rescans++
	for _, name := range names {
		k := l.kernels.byID[name]
		if k != nil {
			k.seen = l.rescans
		}
		if k == nil || k.lookLocked() {
			unfollowed = append(unfollowed, name)
		}
	}
	for _, k := range l.kernels.byID {
		if k.seen != l.rescans {
			missing = append(missing, k)
		}
	}
	return unfollowed, missing
}

// refresh brings one kernel of the state directory up to date. A kernel with a live supervisor is left to its status
// stream.
func (l *Launcher) refresh(id string) error {
	l.mu.Lock()
	k := l.kernels.byID[id]
	followed := k != nil && !k.lookLocked()
	l.mu.Unlock()
	if followed {
		return nil
	}
	if k != nil {
		l.reconcile(k)
		return nil
	}
	_, err := l.adopt(id)
	if errors.Is(err, launcher.ErrNotFound) {
		return nil // set aside or removed
	}
	if errors.As(err, new(*badRecordError)) {
		l.log.Warn("bad entry of the state directory is locked", logkey.Entry, id, logkey.Err, err)
		return nil // no gateway makes such an entry
	}
	return err
}
