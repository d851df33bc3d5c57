package local

import (
	"context"
	"errors"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// describedAtOnce is how many kernels a list describes before it lets others have the lock.
const describedAtOnce = 1000

// Kernels returns all kernels by creation. Most of them are described from memory, see changes.
func (l *Launcher) Kernels(ctx context.Context) ([]launcher.Kernel, error) {
	return l.KernelsInto(ctx, nil)
}

var (
	_ launcher.ListerForUsers = (*Launcher)(nil)
	_ launcher.ListerInto     = (*Launcher)(nil)
)

// KernelsInto implements launcher.ListerInto.
func (l *Launcher) KernelsInto(ctx context.Context, list []launcher.Kernel) ([]launcher.Kernel, error) {
	return l.list(ctx, l.snapshot, list)
}

// KernelsFor implements launcher.ListerForUsers.
func (l *Launcher) KernelsFor(ctx context.Context, user string, groups []string) ([]launcher.Kernel, error) {
	return l.list(ctx, func() (found []*kernel) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, k := range l.ordered {
			if k.rec.Owner == user || k.mayBeSharedLocked(user, groups) {
				found = append(found, k)
			}
		}
		return found
	}, nil)
}

// mayBeSharedLocked reports whether the kernel's notes share it with the user or one of the groups, or are to be read.
func (k *kernel) mayBeSharedLocked(user string, groups []string) bool {
	return !k.notes.current || slices.ContainsFunc(k.notes.notes.SharedWith, func(g launcher.Grant) bool {
		return g.User != "" && g.User == user || g.Group != "" && slices.Contains(groups, g.Group)
	})
}

// list describes the kernels that choose returns, if possible in the memory of all. They are chosen when memory agrees
// with the folders.
func (l *Launcher) list(ctx context.Context, choose func() []*kernel, all []launcher.Kernel) (
	[]launcher.Kernel, error) {
	if err := l.catchUp(ctx); err != nil {
		return nil, err
	}
	deadline := l.timing.now().Add(l.timing.firstStatus)
	present := choose()
	all = slices.Grow(all[:0], len(present))[:len(present)]
	var others []int // kernels whose description has to wait, or to read a file
	for from := 0; from < len(present); from += describedAtOnce {
		l.mu.Lock()
		for i, k := range present[from:min(from+describedAtOnce, len(present))] {
			if l.inMemoryLocked(k) {
				k.describeLocked(&all[from+i])
				all[from+i].Notes = k.notes.notes.Clone()
			} else {
				others = append(others, from+i)
			}
		}
		l.mu.Unlock()
	}
	for _, i := range others {
		l.awaitFirstStatus(ctx, present[i], deadline.Sub(l.timing.now()))
		d, err := l.describe(present[i])
		if err != nil && !errors.Is(err, launcher.ErrNotFound) {
			return nil, err
		}
		all[i] = d // without an ID if it went just now
	}
	if len(others) > 0 {
		all = slices.DeleteFunc(all, func(k launcher.Kernel) bool { return k.ID == "" })
	}
	return all, nil
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
	var looks []*kernel
	for _, k := range l.ordered {
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

// addLocked records a kernel, instead of an earlier one with its id, which is returned.
func (l *Launcher) addLocked(k *kernel) (before *kernel) {
	if before = l.kernels[k.id]; before != nil {
		l.forgetLocked(before)
	}
	l.kernels[k.id] = k
	i, _ := slices.BinarySearchFunc(l.ordered, k, byCreation)
	l.ordered = slices.Insert(l.ordered, i, k)
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
