package kube

import (
	"context"
	"sync/atomic"
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

// reaper removes what is no longer needed while this gateway is elected for that.
type reaper struct {
	l      *Launcher
	active atomic.Bool // this gateway is elected
}

// reap takes part in the election of the reaper for as long as the launcher lives.
func (r *reaper) reap() { r.l.election(reaperLease, r.l.timing.lease).Run(r.l.ctx, r.reapUntil) }

// reapUntil removes leftovers until ctx ends, which happens when the lease is lost.
func (r *reaper) reapUntil(ctx context.Context) {
	r.active.Store(true)
	defer r.active.Store(false)
	var pruned time.Time
	for r.l.warm.Rest(ctx, r.l.timing.maintenance) == nil {
		if now := r.l.timing.now(); now.Sub(pruned) >= pruneEvery {
			pruned = now
			for _, ns := range r.l.namespaces.Common() {
				if r.l.namespaces.Denial(ns) == "" {
					r.l.endings.Prune(ctx, ns)
				}
			}
			if err := r.l.records.Sweep(ctx); err != nil && ctx.Err() == nil {
				r.l.log.Warn("pieces of old records could not be removed; this is tried again", logkey.Err, err)
			}
			if err := r.l.homes.Sweep(ctx); err != nil && ctx.Err() == nil {
				r.l.log.Warn("old homes could not be looked for or deleted; this is tried again", logkey.Err, err)
			}
		}
		r.announceNodes()
		r.markEvictable(ctx)
		r.l.warm.Keep(ctx)
		for _, informer := range r.l.watches.pods {
			for _, o := range informer.GetStore().List() {
				pod, ok := o.(*corev1.Pod)
				switch {
				case !ok || pod.DeletionTimestamp != nil || !r.l.namespaces.Serves(pod): // another installation may have others
				case r.keepsObjects(pod): // a later round removes it
				case r.isLeftover(pod):
					r.removeLeftover(ctx, pod)
				case r.isHeldOpen(pod):
					r.removeHeldOpen(ctx, pod)
				case r.isUnclaimed(pod), warmKernels{r.l}.isHalfTaken(pod):
					r.removeUnclaimed(ctx, pod)
				}
			}
		}
	}
}

// keepsObjects reports whether an earlier pod of a kernel may still be the only owner of the kernel's objects. The
// cluster would delete these with the pod, and a claim with its files. The present pod gets its secret after it owns
// the objects.
func (r *reaper) keepsObjects(pod *corev1.Pod) bool {
	if pod.Annotations[podspec.AnnotationKernelObjects] == "" {
		return false
	}
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	k := r.l.kernels[pod.Labels[podspec.LabelKernel]]
	return k != nil && k.pod.UID != pod.UID && k.end == nil && !k.removed && k.secretCreated.IsZero() &&
		!k.supervisor.HasStatus && k.supervisor.Unsupported == ""
}

// isLeftover reports whether a pod may be deleted: its kernel was stopped or has been shown as dead for long enough, or
// it is an earlier generation of the kernel. The gateway that has ended the kernel gets some time to delete the pod. A
// pod with an unreadable record is not the pod of a kernel, and is ignored.
func (r *reaper) isLeftover(pod *corev1.Pod) bool {
	rec, err := podspec.ReadRecord(pod)
	if err != nil {
		return false
	}
	now := r.l.clusterNow()
	if end := endOf(pod, now); end != nil &&
		((end.Stopped || refusedUnclaimed(pod)) && now.Sub(end.At) > r.l.timing.grace || r.l.lingered(end)) {
		return true
	}
	if podstatus.MayRetry(pod, now.Add(-retryTime)) {
		return false // the gateway that creates its second pod removes it, and takes an earlier removal for a Stop
	}
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	k := r.l.kernels[rec.ID]
	return k != nil && k.pod.UID != pod.UID && k.rec.Generation > rec.Generation &&
		now.Sub(k.pod.CreationTimestamp.Time) > r.l.timing.grace
}

func (r *reaper) removeLeftover(ctx context.Context, pod *corev1.Pod) {
	if err := r.l.deletePod(ctx, pod); err != nil {
		r.l.log.Warn("a leftover pod could not be removed; this is tried again", logkey.Pod, pod.Name, logkey.Err, err)
		return
	}
	r.l.log.Info("leftover pod removed", logkey.Kernel, pod.Labels[podspec.LabelKernel], logkey.Pod, pod.Name)
}

// isHeldOpen reports whether a pod holds its node's resources although its kernel has ended: a container that an
// admission webhook has added still runs. The pod's phase stays Running until that container ends, and so do its GPUs.
func (r *reaper) isHeldOpen(pod *corev1.Pod) bool {
	end := endOf(pod, r.l.clusterNow())
	return end != nil && !podstatus.HasEnded(pod) && r.l.clusterNow().Sub(end.At) > r.l.timing.grace
}

// removeHeldOpen deletes a pod whose kernel has ended. The ending is stored first, because the pod is its only record.
// Every gateway that has seen the pod shows the kernel as dead as usual.
func (r *reaper) removeHeldOpen(ctx context.Context, pod *corev1.Pod) {
	if err := r.l.endings.Store(ctx, pod.Labels[podspec.LabelKernel], r.l.namespaces.OfEnding(pod), pod.UID); err != nil {
		r.l.log.Warn("the ending of a kernel could not be stored, so its pod stays; this is tried again", logkey.Pod,
			pod.Name, logkey.Err, err)
		return
	}
	r.removeLeftover(ctx, pod)
}

// isUnclaimed reports whether a kernel's client has most likely never received its id. Then the gateway that created
// the pod has not recorded a claim. No request has named the kernel since then, and no client has connected to it.
func (r *reaper) isUnclaimed(pod *corev1.Pod) bool {
	began := pod.CreationTimestamp.Time
	if taken := podspec.TakenAt(pod); taken.After(began) {
		began = taken
	}
	if pod.Annotations[podspec.AnnotationClaimed] != podspec.Unclaimed || r.l.clusterNow().Sub(began) < r.l.timing.claim {
		return false
	}
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	k := r.l.kernels[pod.Labels[podspec.LabelKernel]]
	return k != nil && k.pod.UID == pod.UID && k.end == nil && k.stop == nil && !k.claimed &&
		k.supervisor.Status.Connections == 0
}

// removeUnclaimed removes an unclaimed kernel, unless its pod has changed meanwhile: it may have been claimed.
func (r *reaper) removeUnclaimed(ctx context.Context, pod *corev1.Pod) {
	err := r.l.annotate(ctx, pod, pod.ResourceVersion,
		endingAnnotation(pod, endings.Ending{Reason: unclaimedReason, At: r.l.clusterNow().UTC(), Stopped: true}))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return // the next round looks again
	case err != nil:
		r.l.log.Warn("an unclaimed kernel could not be removed; this is tried again", logkey.Pod, pod.Name, logkey.Err, err)
		return
	}
	r.l.log.Info("unclaimed kernel removed: "+unclaimedReason, logkey.Kernel, pod.Labels[podspec.LabelKernel], logkey.Pod,
		pod.Name)
	r.removeLeftover(ctx, pod)
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
