package local

import (
	"context"
	"errors"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Kernels returns all kernels by creation. Most of them are described from memory, see package changes.
func (l *Launcher) Kernels(ctx context.Context) ([]launcher.Kernel, error) {
	return l.list(ctx, func(*kernel) bool { return true })
}

// KernelsFor implements launcher.Launcher.
func (l *Launcher) KernelsFor(ctx context.Context, user string, groups []string) ([]launcher.Kernel, error) {
	return l.list(ctx, func(k *kernel) bool { return k.rec.Owner == user || k.mayBeSharedLocked(user, groups) })
}

// mayBeSharedLocked reports whether the kernel's notes share it with the user or one of the groups, or are to be read.
func (k *kernel) mayBeSharedLocked(user string, groups []string) bool {
	return !k.notesKnownLocked() || slices.ContainsFunc(k.notes.notes.SharedWith, func(g launcher.Grant) bool {
		return g.User != "" && g.User == user || g.Group != "" && slices.Contains(groups, g.Group)
	})
}

// list returns the kernels for which wantedLocked is true, by creation. It leaves out those that go just now.
func (l *Launcher) list(ctx context.Context, wantedLocked func(*kernel) bool) ([]launcher.Kernel, error) {
	if err := l.catchUp(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	wanted := make([]*kernel, 0, len(l.kernels.ordered))
	for _, k := range l.kernels.ordered {
		if wantedLocked(k) {
			wanted = append(wanted, k)
		}
	}
	all := make([]launcher.Kernel, len(wanted)) // no room for the others: it is large
	slow := map[int]*kernel{}                   // by place in all: a list has to wait for them, or to read a file
	for i, k := range wanted {
		if !k.inMemoryLocked() {
			slow[i] = k
			continue
		}
		d := &all[i]
		k.describeLocked(d)
		d.Notes = k.notes.notes.Clone()
	}
	l.mu.Unlock()
	if len(slow) == 0 {
		return all, nil
	}
	deadline := l.timing.now().Add(l.timing.firstStatus)
	for i := range all {
		k := slow[i]
		if k == nil {
			continue
		}
		l.awaitFirstStatus(ctx, k, deadline.Sub(l.timing.now()))
		d, err := l.describe(k)
		if err != nil && !errors.Is(err, launcher.ErrNotFound) {
			return nil, err
		}
		all[i] = d
	}
	return slices.DeleteFunc(all, func(k launcher.Kernel) bool { return k.ID == "" }), nil
}

// inMemoryLocked reports whether the kernel can be described without a look at its folder.
func (k *kernel) inMemoryLocked() bool {
	return k.gone == nil && k.notesKnownLocked() && k.hasAnswerLocked() && !k.supervisorAwayLocked()
}

// catchUp makes memory agree with the folders, at the cost of what has changed.
func (l *Launcher) catchUp(ctx context.Context) error {
	if !l.changes.Known() {
		return l.rescan(ctx)
	}
	l.mu.Lock()
	var looks []*kernel
	for _, k := range l.kernels.ordered {
		if k.lookLocked() {
			looks = append(looks, k)
		}
	}
	l.mu.Unlock()
	for _, k := range looks {
		if err := ctx.Err(); err != nil {
			return err
		}
		l.reconcile(k)
	}
	return nil
}

// addLocked records a kernel and watches its folder. It returns an earlier one with the id, which is forgotten.
func (l *Launcher) addLocked(k *kernel) (before *kernel) {
	if before = l.kernels.add(k); before != nil {
		l.changes.Leave(before.folder)
	}
	k.folder = l.changes.Enter(k.id)
	return before
}

// forgetLocked removes a kernel from memory, if it is there.
func (l *Launcher) forgetLocked(k *kernel) {
	if l.kernels.remove(k) {
		l.changes.Leave(k.folder)
	}
}

// snapshot returns the kernels in memory, by creation.
func (l *Launcher) snapshot() []*kernel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.kernels.ordered)
}
