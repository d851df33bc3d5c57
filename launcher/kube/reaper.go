package kube

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// One gateway of all, the reaper, removes what nobody needs any more: what is left of kernels, starts that nobody has asked
// for again, the ends of long ago. It holds a lease in the kernels' namespace. Were there two of them for a moment, no harm
// would be done: each deletes exactly the pods that it has seen to be of no use, and none of these reasons passes.
const (
	reaperLease = "ekg-reaper"

	unclaimedReason = "its start was interrupted, and nobody has asked for it since"
	pruneEvery      = time.Hour
)

// reaping runs for as long as the launcher, and reaps while this gateway holds the lease.
func (l *Launcher) reaping() { l.elect(l.leaseLock(reaperLease), l.timing.lease, l.reapUntil) }

// reapUntil clears away until ctx ends, which it does when the lease is lost.
func (l *Launcher) reapUntil(ctx context.Context) {
	var pruned time.Time
	for sleep(ctx, l.timing.tend) == nil {
		if now := l.timing.now(); now.Sub(pruned) >= pruneEvery {
			pruned = now
			l.pruneEndings(ctx)
		}
		for _, informer := range l.informers {
			for _, o := range informer.GetStore().List() {
				pod, ok := o.(*corev1.Pod)
				switch {
				case !ok || pod.DeletionTimestamp != nil:
				case l.useless(pod):
					l.clearAway(ctx, pod)
				case l.unclaimed(pod):
					l.removeUnclaimed(ctx, pod)
				}
			}
		}
	}
}

// useless reports whether a pod is what is left of a kernel: one that was stopped or has been shown as dead for long enough, or
// an earlier life of one that lives. Whoever has ended it may be about to delete it, and has some time for that. A pod that
// cannot be read is nobody's, and is left alone.
func (l *Launcher) useless(pod *corev1.Pod) bool {
	rec, err := readRecord(pod)
	if err != nil {
		return false
	}
	now := l.timing.now()
	if end := endOf(pod, now); end != nil && ((end.Stopped || forgotten(pod)) && now.Sub(end.At) > l.timing.grace || l.overdue(end)) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[rec.id]
	return k != nil && k.pod.UID != pod.UID && k.rec.generation > rec.generation && now.Sub(k.pod.CreationTimestamp.Time) > l.timing.grace
}

func (l *Launcher) clearAway(ctx context.Context, pod *corev1.Pod) {
	if err := l.deletePod(ctx, pod); err != nil {
		l.log.Warn("what is left of a kernel could not be removed; this is tried again", "pod", pod.Name, "err", err)
		return
	}
	l.log.Info("what was left of a kernel was removed", "kernel", pod.Labels[LabelKernel], "pod", pod.Name)
}

// unclaimed reports whether a kernel's client has most likely never learned of it: the gateway that made the pod has told
// nobody so, and since then no request has named the kernel and no client has connected to it.
func (l *Launcher) unclaimed(pod *corev1.Pod) bool {
	if pod.Annotations[annotationClaimed] != unclaimed || l.timing.now().Sub(pod.CreationTimestamp.Time) < l.timing.claim {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[pod.Labels[LabelKernel]]
	return k != nil && k.pod.UID == pod.UID && k.end == nil && k.stop == nil && !k.claimed && k.status.Connections == 0
}

// removeUnclaimed removes an unclaimed kernel, unless its pod has changed meanwhile: it may have been claimed.
func (l *Launcher) removeUnclaimed(ctx context.Context, pod *corev1.Pod) {
	err := l.annotate(ctx, pod, pod.ResourceVersion, endingAnnotation(pod, ending{Reason: unclaimedReason, At: l.timing.now().UTC(), Stopped: true}))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return // to be looked at again
	case err != nil:
		l.log.Warn("a kernel that nobody knows of could not be removed; this is tried again", "pod", pod.Name, "err", err)
		return
	}
	l.log.Info("a kernel is removed: "+unclaimedReason, "kernel", pod.Labels[LabelKernel], "pod", pod.Name)
	l.clearAway(ctx, pod)
}

// Claim notes, in the background, that a client knows of the kernel.
func (l *Launcher) Claim(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.kernels[id]; k != nil && !k.claimed {
		k.claimed = true
		if k.pod.Annotations[annotationClaimed] == unclaimed {
			l.ownLocked(func() { l.noteClaim(l.ctx, k) })
		}
	}
}

// noteClaim notes a claim in the kernel's pod. It is repeated by tend if it fails.
func (l *Launcher) noteClaim(ctx context.Context, k *kernel) {
	l.mu.Lock()
	pod := k.pod
	l.mu.Unlock()
	if err := l.annotate(ctx, pod, "", map[string]string{annotationClaimed: claimed}); err != nil && l.ctx.Err() == nil {
		l.log.Debug("that a kernel is known to its client could not be noted; this is tried again", "pod", pod.Name, "err", err)
	}
}
