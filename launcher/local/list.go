package local

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Kernels returns all kernels by creation. Most of them are described from memory, see lists and changes.
func (l *Launcher) Kernels(ctx context.Context) ([]launcher.Kernel, error) {
	list, err := l.ListShared(ctx)
	if err != nil {
		return nil, err
	}
	return ownCopies(list.Kernels), nil
}

// ownCopies returns kernels that the caller may modify.
func ownCopies(shared []*launcher.Kernel) []launcher.Kernel {
	all := make([]launcher.Kernel, len(shared))
	for i, k := range shared {
		all[i] = *k
		all[i].Notes = k.Notes.Clone()
	}
	return all
}

var (
	_ launcher.ListerForUsers = (*Launcher)(nil)
	_ launcher.ListerShared   = (*Launcher)(nil)
)

// ListShared implements launcher.ListerShared.
func (l *Launcher) ListShared(ctx context.Context) (*launcher.List, error) {
	if err := l.catchUp(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.settleLocked()
	list := l.wholeLocked()
	var present []*kernel
	if len(l.lists.slow) > 0 {
		present = slices.Clone(l.ordered)
	}
	l.mu.Unlock()
	if present == nil {
		return list, nil
	}
	all, err := l.describeSlow(ctx, present, slices.Clone(list.Kernels))
	if err != nil {
		return nil, err
	}
	return &launcher.List{Kernels: all}, nil
}

// KernelsFor implements launcher.ListerForUsers.
func (l *Launcher) KernelsFor(ctx context.Context, user string, groups []string) ([]launcher.Kernel, error) {
	if err := l.catchUp(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.settleLocked()
	found := slices.Clone(l.lists.owned[user])
	for k := range l.lists.shared {
		if k.rec.Owner != user && k.mayBeSharedLocked(user, groups) {
			found = append(found, k)
		}
	}
	slices.SortFunc(found, byCreation)
	all := make([]*launcher.Kernel, len(found))
	for i, k := range found {
		all[i] = k.listed
	}
	l.mu.Unlock()
	all, err := l.describeSlow(ctx, found, all)
	if err != nil {
		return nil, err
	}
	return ownCopies(all), nil
}

// mayBeSharedLocked reports whether the kernel's notes share it with the user or one of the groups, or are to be read.
func (k *kernel) mayBeSharedLocked(user string, groups []string) bool {
	return !k.notes.current || slices.ContainsFunc(k.notes.notes.SharedWith, func(g launcher.Grant) bool {
		return g.User != "" && g.User == user || g.Group != "" && slices.Contains(groups, g.Group)
	})
}

// describeSlow describes those kernels that have no description in all, into all. It leaves out those that went just
// now.
func (l *Launcher) describeSlow(ctx context.Context, present []*kernel, all []*launcher.Kernel) (
	[]*launcher.Kernel, error) {
	deadline := l.timing.now().Add(l.timing.firstStatus)
	for i, k := range present {
		if all[i] != nil {
			continue
		}
		l.awaitFirstStatus(ctx, k, deadline.Sub(l.timing.now()))
		d, err := l.describe(k)
		switch {
		case err == nil:
			all[i] = &d
		case !errors.Is(err, launcher.ErrNotFound):
			return nil, err
		}
	}
	return slices.DeleteFunc(all, func(k *launcher.Kernel) bool { return k == nil }), nil
}

// inMemoryLocked reports whether the kernel can be described without a look at its folder.
func (l *Launcher) inMemoryLocked(k *kernel) bool {
	return k.gone == nil && k.notes.current && k.hasAnswerLocked() && !k.supervisorAwayLocked()
}

// catchUp makes memory agree with the folders, at the cost of what has changed.
func (l *Launcher) catchUp(ctx context.Context) error {
	now, statErr := versionOf(l.layout.kernels())
	l.mu.Lock()
	l.readChangesLocked()
	c := l.changes
	known := c != nil && c.known && statErr == nil && now.sameFile(c.folder)
	l.mu.Unlock()
	if !known {
		return l.rescan(ctx)
	}
	l.mu.Lock()
	l.settleLocked()
	looks := slices.Collect(maps.Keys(l.lists.looks))
	l.mu.Unlock()
	for _, k := range looks {
		if err := ctx.Err(); err != nil {
			return err
		}
		l.reconcile(k)
	}
	return nil
}

// addLocked records a kernel, instead of an earlier one with its id, which is returned.
func (l *Launcher) addLocked(k *kernel) (before *kernel) {
	if before = l.kernels[k.id]; before != nil {
		l.forgetLocked(before)
	}
	l.kernels[k.id] = k
	i, _ := slices.BinarySearchFunc(l.ordered, k, byCreation)
	l.ordered = slices.Insert(l.ordered, i, k)
	l.listMemberLocked(k, true)
	l.sumLocked(k)
	l.watchLocked(k)
	return before
}

// forgetLocked removes a kernel from memory, if it is there.
func (l *Launcher) forgetLocked(k *kernel) {
	if l.kernels[k.id] != k {
		return
	}
	delete(l.kernels, k.id)
	if i, found := slices.BinarySearchFunc(l.ordered, k, byCreation); found {
		l.ordered = slices.Delete(l.ordered, i, i+1)
	}
	l.listMemberLocked(k, false)
	l.sumLocked(k)
	l.unwatchLocked(k)
}

// byCreation is launcher.ByCreation for kernels of this launcher.
func byCreation(a, b *kernel) int {
	return launcher.CompareCreation(a.rec.Created, a.id, b.rec.Created, b.id)
}

// snapshot returns the kernels in memory, by creation.
func (l *Launcher) snapshot() []*kernel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ordered)
}
