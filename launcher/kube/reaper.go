package kube

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// One of the gateways is the reaper. It removes what is no longer needed: leftovers of kernels, starts that no client
// has claimed, old endings, pieces of old records, homes that the policy lets it delete. It keeps the warm
// kernels. It holds a lease in the kernels' namespace. Two reapers at one time would do no harm: each deletes exactly
// the pods that it has found to be leftovers, and a leftover never becomes needed again.
const (
	reaperLease = "ekg-reaper"

	unclaimedReason = "its start was interrupted, and no client has asked for it since"
	pruneEvery      = time.Hour
)

// reap takes part in the election of the reaper for as long as the launcher lives.
func (l *Launcher) reap() { l.elect(l.leaseLock(reaperLease), l.timing.lease, l.reapUntil) }

// reapUntil removes leftovers until ctx ends, which happens when the lease is lost.
func (l *Launcher) reapUntil(ctx context.Context) {
	l.reaping.Store(true)
	defer l.reaping.Store(false)
	var pruned time.Time
	for l.warm.Rest(ctx, l.timing.maintenance) == nil {
		if now := l.timing.now(); now.Sub(pruned) >= pruneEvery {
			pruned = now
			for _, ns := range l.namespaces.Common() {
				if l.namespaces.Denial(ns) == "" {
					l.endings.Prune(ctx, ns)
				}
			}
			if err := l.records.Sweep(ctx); err != nil && ctx.Err() == nil {
				l.log.Warn("pieces of old records could not be removed; this is tried again", logkey.Err, err)
			}
			if err := l.homes.Sweep(ctx); err != nil && ctx.Err() == nil {
				l.log.Warn("old homes could not be looked for or deleted; this is tried again", logkey.Err, err)
			}
		}
		l.announceNodes()
		l.markEvictable(ctx)
		l.warm.Keep(ctx)
		for _, informer := range l.watches.pods {
			for _, o := range informer.GetStore().List() {
				pod, ok := o.(*corev1.Pod)
				switch {
				case !ok || pod.DeletionTimestamp != nil || !l.namespaces.Serves(pod): // another installation may have others
				case l.keepsObjects(pod): // a later round removes it
				case l.isLeftover(pod):
					l.removeLeftover(ctx, pod)
				case l.isHeldOpen(pod):
					l.removeHeldOpen(ctx, pod)
				case l.isUnclaimed(pod), warmKernels{l}.isHalfTaken(pod):
					l.removeUnclaimed(ctx, pod)
				}
			}
		}
	}
}

// keepsObjects reports whether an earlier pod of a kernel may still be the only owner of the kernel's objects. The
// cluster would delete these with the pod, and a claim with its files. The present pod gets its secret after it owns
// the objects.
func (l *Launcher) keepsObjects(pod *corev1.Pod) bool {
	if pod.Annotations[podspec.AnnotationKernelObjects] == "" {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[pod.Labels[podspec.LabelKernel]]
	return k != nil && k.pod.UID != pod.UID && k.end == nil && !k.removed && k.secretCreated.IsZero() &&
		!k.supervisor.HasStatus && k.supervisor.Unsupported == ""
}

// isLeftover reports whether a pod may be deleted: its kernel was stopped or has been shown as dead for long enough, or
// it is an earlier generation of the kernel. The gateway that has ended the kernel gets some time to delete the pod. A
// pod with an unreadable record is not the pod of a kernel, and is ignored.
func (l *Launcher) isLeftover(pod *corev1.Pod) bool {
	rec, err := podspec.ReadRecord(pod)
	if err != nil {
		return false
	}
	now := l.clusterNow()
	if end := endOf(pod, now); end != nil &&
		((end.Stopped || refusedUnclaimed(pod)) && now.Sub(end.At) > l.timing.grace || l.lingered(end)) {
		return true
	}
	if podstatus.MayRetry(pod, now.Add(-retryTime)) {
		return false // the gateway that creates its second pod removes it, and takes an earlier removal for a Stop
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[rec.ID]
	return k != nil && k.pod.UID != pod.UID && k.rec.Generation > rec.Generation &&
		now.Sub(k.pod.CreationTimestamp.Time) > l.timing.grace
}

func (l *Launcher) removeLeftover(ctx context.Context, pod *corev1.Pod) {
	if err := l.deletePod(ctx, pod); err != nil {
		l.log.Warn("a leftover pod could not be removed; this is tried again", logkey.Pod, pod.Name, logkey.Err, err)
		return
	}
	l.log.Info("leftover pod removed", logkey.Kernel, pod.Labels[podspec.LabelKernel], logkey.Pod, pod.Name)
}

// isHeldOpen reports whether a pod holds its node's resources although its kernel has ended: a container that an
// admission webhook has added still runs. The pod's phase stays Running until that container ends, and so do its GPUs.
func (l *Launcher) isHeldOpen(pod *corev1.Pod) bool {
	end := endOf(pod, l.clusterNow())
	return end != nil && !podstatus.HasEnded(pod) && l.clusterNow().Sub(end.At) > l.timing.grace
}

// removeHeldOpen deletes a pod whose kernel has ended. The ending is stored first, because the pod is its only record.
// Every gateway that has seen the pod shows the kernel as dead as usual.
func (l *Launcher) removeHeldOpen(ctx context.Context, pod *corev1.Pod) {
	if err := l.endings.Store(ctx, pod.Labels[podspec.LabelKernel], l.namespaces.OfEnding(pod), pod.UID); err != nil {
		l.log.Warn("the ending of a kernel could not be stored, so its pod stays; this is tried again", logkey.Pod, pod.Name,
			logkey.Err, err)
		return
	}
	l.removeLeftover(ctx, pod)
}

// isUnclaimed reports whether a kernel's client has most likely never received its id. Then the gateway that created
// the pod has not recorded a claim. No request has named the kernel since then, and no client has connected to it.
func (l *Launcher) isUnclaimed(pod *corev1.Pod) bool {
	began := pod.CreationTimestamp.Time
	if taken := podspec.TakenAt(pod); taken.After(began) {
		began = taken
	}
	if pod.Annotations[podspec.AnnotationClaimed] != podspec.Unclaimed || l.clusterNow().Sub(began) < l.timing.claim {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[pod.Labels[podspec.LabelKernel]]
	return k != nil && k.pod.UID == pod.UID && k.end == nil && k.stop == nil && !k.claimed &&
		k.supervisor.Status.Connections == 0
}

// removeUnclaimed removes an unclaimed kernel, unless its pod has changed meanwhile: it may have been claimed.
func (l *Launcher) removeUnclaimed(ctx context.Context, pod *corev1.Pod) {
	err := l.annotate(ctx, pod, pod.ResourceVersion,
		endingAnnotation(pod, endings.Ending{Reason: unclaimedReason, At: l.clusterNow().UTC(), Stopped: true}))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return // the next round looks again
	case err != nil:
		l.log.Warn("an unclaimed kernel could not be removed; this is tried again", logkey.Pod, pod.Name, logkey.Err, err)
		return
	}
	l.log.Info("unclaimed kernel removed: "+unclaimedReason, logkey.Kernel, pod.Labels[podspec.LabelKernel], logkey.Pod,
		pod.Name)
	l.removeLeftover(ctx, pod)
}

// Claim records in the background that a client knows the kernel's id.
func (l *Launcher) Claim(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.kernels[id]; k != nil && !k.claimed {
		k.claimed = true
		if k.pod.Annotations[podspec.AnnotationClaimed] == podspec.Unclaimed {
			l.goroutines.Go(func() { l.recordClaim(l.ctx, k) })
		}
	}
}

// recordClaim records a claim in the kernel's pod. If it fails, maintain repeats it.
func (l *Launcher) recordClaim(ctx context.Context, k *kernel) {
	l.mu.Lock()
	pod := k.pod
	l.mu.Unlock()
	err := l.annotate(ctx, pod, "", map[string]string{podspec.AnnotationClaimed: podspec.Claimed})
	if err != nil && l.ctx.Err() == nil {
		l.log.Debug("a claim could not be recorded; this is tried again", logkey.Pod, pod.Name, logkey.Err, err)
	}
}
