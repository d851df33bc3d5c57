package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// verdict is what a kernel's folder says of it.
type verdict int

const (
	uncertain verdict = iota // somebody else is at work on it, or it could not be read: look again later
	alive                    // its supervisor lives
	dead                     // its supervisor has ended; it is shown as dead for a while
	gone                     // it has been removed
)

// settle looks at a kernel's folder, does what has to be done about it (what a killed supervisor left is cleaned up, a
// kernel whose time is up is removed) and enters the result. It never waits for others.
func (l *Launcher) settle(k *kernel) verdict {
	if !k.tryTurn() {
		return uncertain
	}
	defer k.giveTurn()
	folder, err := lockFolder(k.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.enterGone(k, l.layout.goneError(k.id))
		return gone
	case errors.Is(err, errBusy):
		l.ensureWatch(k)
		return uncertain
	case err != nil:
		l.log.Warn("kernel cannot be looked at", "kernel", k.id, "err", err)
		l.ensureWatch(k)
		return uncertain
	}
	defer unlock(folder)
	v, err := l.judge(k)
	if err != nil {
		l.log.Warn("kernel's end cannot be settled", "kernel", k.id, "err", err)
		l.ensureWatch(k)
		return uncertain
	}
	return v
}

// judge is settle with the turn and the folder's lock held.
func (l *Launcher) judge(k *kernel) (verdict, error) {
	held, err := l.layout.supervised(k.id)
	if err != nil {
		return uncertain, err
	}
	if held {
		l.enterAlive(k)
		return alive, nil
	}
	end, err := l.layout.readEnding(k.id)
	if err != nil {
		l.log.Error("record of a kernel's end cannot be read", "kernel", k.id, "err", err)
		end = nil
	}
	if end == nil {
		if end, err = l.cleanUp(k); err != nil {
			return uncertain, err
		}
	}
	if end.Stopped || l.timing.now().Sub(end.At) >= l.opts.DeadLinger {
		return gone, l.bury(k, *end)
	}
	l.enterDead(k, end)
	return dead, nil
}

// cleanUp ends what is left of a kernel whose supervisor was killed, and records the end.
func (l *Launcher) cleanUp(k *kernel) (*supervisor.Ending, error) {
	var p processes
	err := readJSON(l.layout.file(k.id, processFile), &p)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("process ids of a kernel cannot be read", "kernel", k.id, "err", err)
	}
	reason := fmt.Sprintf("its supervisor process (pid %d) ended unexpectedly; its log and variables are lost", p.Supervisor)
	if p.Supervisor == 0 {
		reason = "its supervisor process ended unexpectedly; its log and variables are lost"
	}
	n, err := supervisor.KillRemains(k.id, p.Kernel)
	if err != nil {
		// It is dead all the same; a process that SIGKILL does not end is stuck in the system.
		l.log.Error("processes of a dead kernel remain", "kernel", k.id, "err", err)
	}
	l.log.Warn("kernel's supervisor ended unexpectedly", "kernel", k.id, "pid", p.Supervisor, "killed", n)
	end := &supervisor.Ending{KernelID: k.id, Reason: reason, At: l.timing.now().UTC()}
	return end, writeJSON(l.layout.file(k.id, endFile), end)
}

// bury removes the kernel's folder and leaves the reason. Turn and folder's lock are held.
func (l *Launcher) bury(k *kernel, end supervisor.Ending) error {
	end.KernelID = k.id
	if err := writeJSON(l.layout.tombstone(k.id), tombstone{end, k.rec.SpecName, k.rec.Owner}); err != nil {
		return err
	}
	if err := l.remove(k); err != nil {
		return err
	}
	l.mu.Lock()
	l.countCull(k, &end)
	l.mu.Unlock()
	l.enterGone(k, &launcher.GoneError{ID: k.id, Owner: k.rec.Owner, Reason: end.Reason, At: end.At})
	return nil
}

// remove removes all that a kernel has on disk. Turn and folder's lock are held.
func (l *Launcher) remove(k *kernel) error {
	return errors.Join(l.layout.removeRunDir(k.rec), l.layout.removeFolder(k.id))
}

func (l *Launcher) enterAlive(k *kernel) {
	l.mu.Lock()
	revived := k.end != nil
	k.end = nil
	if revived {
		k.heard, k.pushed = false, 0
		k.touch()
	}
	l.mu.Unlock()
	l.ensureWatch(k)
	if revived {
		l.countChanged()
	}
}

func (l *Launcher) enterDead(k *kernel, end *supervisor.Ending) {
	l.mu.Lock()
	was := k.end
	k.end, k.watcher, k.streaming, k.unsupported = end, nil, false, ""
	l.observe(k)
	l.countCull(k, end)
	if was == nil || *was != *end {
		k.touch()
	}
	l.mu.Unlock()
	if was == nil {
		l.log.Info("kernel is dead", "kernel", k.id, "spec", k.rec.SpecName, "reason", end.Reason)
		l.countChanged()
	}
}

// enterGone forgets a kernel. why is what callers get who still hold it.
func (l *Launcher) enterGone(k *kernel, why error) {
	l.mu.Lock()
	first := k.gone == nil
	if first {
		k.gone, k.watcher, k.streaming = why, nil, false
		l.observe(k)
		k.touch()
		if l.kernels[k.id] == k {
			delete(l.kernels, k.id)
		}
	}
	l.mu.Unlock()
	if first {
		l.log.Info("kernel is gone", "kernel", k.id, "spec", k.rec.SpecName, "err", why)
		l.countChanged()
	}
}

// rescan compares memory with the folders. The error is an ErrUnavailable: without a complete list there is none.
func (l *Launcher) rescan(ctx context.Context) error {
	entries, err := os.ReadDir(l.layout.kernels())
	if err != nil {
		return fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	present := make(map[string]bool, len(entries))
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := e.Name()
		if isTemporary(name) {
			continue
		}
		if !launcher.ValidID(name) {
			l.setAside(name, errors.New("its name is no kernel id"))
			continue
		}
		present[name] = true
		if err := l.look(name); err != nil {
			return err
		}
	}
	for _, k := range l.known() {
		if !present[k.id] {
			l.settle(k) // removed by another gateway, or made after the folder was read
		}
	}
	return nil
}

// look brings one kernel of the state directory up to date, unless its status stream does so.
func (l *Launcher) look(id string) error {
	l.mu.Lock()
	k := l.kernels[id]
	settled := k != nil && k.end == nil && k.unsupported == ""
	l.mu.Unlock()
	if settled {
		return nil
	}
	if k != nil {
		l.settle(k)
		return nil
	}
	_, err := l.adopt(id)
	if errors.Is(err, launcher.ErrNotFound) {
		return nil // set aside, or buried
	}
	return err
}
