package kube

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// reader is a user or group that may see a kernel. Exactly one field is set.
type reader struct{ user, group string }

// readerIndex holds the kernels that each reader may see. Launcher.mu guards it. A user's list costs the kernels that
// the user may see, however many there are.
type readerIndex map[reader]map[*kernel]bool

// addLocked makes a kernel visible for exactly these readers.
func (x readerIndex) addLocked(k *kernel, readers []reader) {
	if slices.Equal(k.readers, readers) {
		return
	}
	for _, r := range k.readers {
		delete(x[r], k)
		if len(x[r]) == 0 {
			delete(x, r)
		}
	}
	k.readers = readers
	for _, r := range readers {
		if x[r] == nil {
			x[r] = map[*kernel]bool{}
		}
		x[r][k] = true
	}
}

// readersLocked returns the kernel's owner, and whom the owner has given a right.
func (k *kernel) readersLocked(log *slog.Logger) []reader {
	all := []reader{{user: k.rec.Owner}}
	if k.pod.Annotations[podspec.AnnotationShared] == "" {
		return all // most kernels are shared with no one
	}
	for _, grant := range k.notesLocked(log).SharedWith {
		all = append(all, reader{user: grant.User, group: grant.Group})
	}
	return all
}

// KernelsFor implements launcher.Launcher.
func (l *Launcher) KernelsFor(ctx context.Context, user string, groups []string) ([]launcher.Kernel, error) {
	return l.list(ctx, func() []*kernel {
		l.mu.Lock()
		defer l.mu.Unlock()
		found := maps.Clone(l.readers[reader{user: user}])
		if found == nil {
			found = map[*kernel]bool{}
		}
		for _, group := range groups {
			maps.Copy(found, l.readers[reader{group: group}])
		}
		return slices.SortedFunc(maps.Keys(found), byCreationLocked)
	})
}
