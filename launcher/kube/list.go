package kube

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// listedAtOnce is how many kernels a list describes before others get the lock: about half a millisecond.
const listedAtOnce = 1000

// Kernels returns all kernels by creation.
func (l *Launcher) Kernels(ctx context.Context) ([]launcher.Kernel, error) {
	return l.list(ctx, l.snapshot)
}

// list returns those kernels that choose returns from a complete memory.
func (l *Launcher) list(ctx context.Context, choose func() []*kernel) ([]launcher.Kernel, error) {
	if err := l.ensureComplete(ctx); err != nil {
		return nil, err
	}
	if l.ctx.Err() != nil {
		return nil, errClosed
	}
	known := choose()
	l.mu.Lock()
	awaited := slices.DeleteFunc(slices.Clone(known), (*kernel).firstStatusSettledLocked)
	l.mu.Unlock()
	deadline := l.timing.now().Add(l.timing.firstStatus)
	for _, k := range awaited { // supervisors that should answer at once
		l.awaitFirstStatus(ctx, k, deadline.Sub(l.timing.now()))
	}
	all := make([]launcher.Kernel, 0, len(known))
	for some := range slices.Chunk(known, listedAtOnce) {
		l.mu.Lock()
		for _, k := range some {
			// else it has gone, or its client is receiving the refusal
			if l.kernels[k.id] == k && (k.end == nil || k.end.Limit == "" || !refusedUnclaimed(k.pod)) {
				all = append(all, l.describeLocked(k))
			}
		}
		l.mu.Unlock()
	}
	return all, nil
}

// snapshot returns the kernels in memory by creation. Callers do not change the slice.
func (l *Launcher) snapshot() []*kernel {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ordered == nil {
		l.ordered = slices.AppendSeq(make([]*kernel, 0, len(l.kernels)), maps.Values(l.kernels))
		slices.SortFunc(l.ordered, byCreationLocked)
	}
	return l.ordered
}

// byCreationLocked orders kernels by creation.
func byCreationLocked(a, b *kernel) int {
	return launcher.CompareCreation(a.rec.Created, a.id, b.rec.Created, b.id)
}

// notesLocked returns the notes of the kernel's present pod, which are read once for each version of it.
func (k *kernel) notesLocked(log *slog.Logger) launcher.Notes {
	if k.notesOf == k.pod {
		return k.notes
	}
	notes, err := podspec.ReadNotes(k.pod)
	if err != nil {
		log.Warn("notes of a kernel cannot be read", logkey.Kernel, k.id, logkey.Err, err)
	}
	k.notes, k.notesOf = notes, k.pod
	return notes
}
