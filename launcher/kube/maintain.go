package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/objects"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// secretRetry is a little longer than the kubelet's longest pause between two attempts to mount a volume.
const secretRetry = 3 * time.Minute

// maintain does the regular work for all kernels, at intervals.
func (l *Launcher) maintain() {
	for goroutines.Sleep(l.ctx, l.timing.maintenance) == nil {
		// The time limit holds for a whole round, in case the cluster does not answer.
		round, cancel := context.WithTimeout(l.ctx, l.timing.api)
		l.catchUp(round)
		l.replicas.Maintain(round)
		for _, k := range l.snapshot() {
			l.maintainKernel(round, k)
		}
		cancel()
	}
}

// maintainKernel does what is due for one kernel. Every gateway does it: each step is harmless if another gateway was
// faster.
func (l *Launcher) maintainKernel(ctx context.Context, k *kernel) {
	now := l.clusterNow()
	l.mu.Lock()
	pod, end, removed, hasStatus, stopping := k.pod, k.end, k.removed, k.supervisor.HasStatus, k.stop != nil
	unstarted := k.isUnstartedLocked()
	status := k.supervisor.Status
	streaming, complete := k.supervisor.Streaming, k.secretCreated
	missed := missesSecret(pod, l.events.Of(pod.UID), complete, now)
	k.claimed = k.claimed || k.supervisor.Status.Connections > 0
	unheard := k.unheard
	claims := k.claimed && pod.Annotations[podspec.AnnotationClaimed] == podspec.Unclaimed
	l.mu.Unlock()
	if claims && end == nil && !removed && !stopping {
		l.recordClaim(ctx, k)
	}
	age := now.Sub(pod.CreationTimestamp.Time)
	switch {
	case stopping:
	case end != nil && (removed || unheard) && l.lingered(end):
		l.mu.Lock()
		l.forgetLocked(k)
		k.supervisor.ChangedLocked()
		l.mu.Unlock()
	case end != nil || removed || l.endUnheard(k):
	case missed, !hasStatus && complete.IsZero() && age > l.timing.secretOverdue && pod.Status.Phase == corev1.PodPending:
		// The gateway that created the pod may have died before it created the secret, or the secret was deleted.
		// Each round tries once: a part that cannot be created yet must not use up the time of other kernels.
		part, err := l.objects.TryCreate(ctx, pod)
		switch {
		case errors.Is(err, objects.ErrForeignKeys): // it may have its secret. Without one it ends as overdue
			l.log.Warn("a waiting pod gets no secret", logkey.Pod, pod.Name, logkey.Err, err)
		case err != nil:
			l.log.Warn("the "+part+" of a waiting pod could not be created; this is tried again", logkey.Pod, pod.Name,
				logkey.Err, err)
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.pod.UID == pod.UID {
			k.secretCreated = now
		}
	case podstatus.MayRetry(pod, now) && !hasStatus:
		l.retryRejected(k)
	case unstarted:
		l.endOverdue(k, pod)
	case streaming:
		l.protect(ctx, k, pod, status, now)
	}
}

// missesSecret reports whether the kubelet has not found a pod's secret lately, or an object of its kernelspec. The
// time is after they were last known to exist.
func missesSecret(pod *corev1.Pod, events []corev1.Event, there, now time.Time) bool {
	own, kept := podspec.SecretName(pod.Name), "ekg-"+pod.Labels[podspec.LabelKernel]+"-"
	return slices.ContainsFunc(events, func(e corev1.Event) bool {
		missing := func(what string) bool {
			_, rest, ok := strings.Cut(e.Message, what)
			return ok && strings.Contains(rest, `" not found`)
		}
		at := podstatus.EventTime(&e)
		return (e.Reason == "FailedMount" || e.Reason == "Failed") && at.After(there) && now.Sub(at) < secretRetry &&
			(missing(`secret "`+own) || missing(`configmap "`+kept))
	})
}

// endOverdue ends a kernel whose start has made no progress for too long, or can no longer succeed.
func (l *Launcher) endOverdue(k *kernel, pod *corev1.Pod) {
	now, limit, events := l.clusterNow(), startLimitOf(pod), l.events.Of(pod.UID)
	l.mu.Lock()
	dequeued := k.dequeued
	l.mu.Unlock()
	why := podstatus.Explain(pod, events, now)
	text := why.Text // a reason may become final with time, without any event
	if why.Class != podstatus.ClassNever {
		if now.Sub(podstatus.Progress(pod, events, now)) <= limit || l.timing.now().Sub(dequeued) <= limit {
			return
		}
		if text = fmt.Sprintf("its start made no progress for %s", limit); why.Text != "" {
			text += ": " + why.Text
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.end == nil && k.stop == nil && k.isUnstartedLocked() {
		l.beginStopLocked(k, text, "", false)
	}
}

// startLimitOf is how long a start may make no progress: startLimit, or the client's limit if that is longer.
func startLimitOf(pod *corev1.Pod) time.Duration {
	seconds, err := strconv.Atoi(pod.Annotations[podspec.AnnotationLaunchTimeout])
	if err != nil { // it is absent
		return startLimit
	}
	return max(startLimit, time.Duration(seconds)*time.Second)
}

// mayBeEvicted reports whether the cluster's autoscalers may evict a kernel's pod. Then no request runs, no page is
// connected, the owner does not keep it, its processes do not compute, and its last activity is EvictIdleAfter ago.
func mayBeEvicted(after time.Duration, st api.Status, now time.Time) bool {
	return after > 0 && st.State == api.Idle && st.Connections == 0 && !st.Computes && !now.Before(st.KeepUntil) &&
		now.Sub(st.LastActivity) > after
}

// protect takes the mark away from the pod of a kernel in use. The reaper does it at once. Another gateway does it only
// if the mark stays, as when the reaper is frozen: otherwise each of them would send the same patch.
func (l *Launcher) protect(ctx context.Context, k *kernel, pod *corev1.Pod, status api.Status, now time.Time) {
	wrong := pod.Annotations[podspec.AnnotationSafeToEvict] == "true" && !mayBeEvicted(l.opts.EvictIdleAfter, status, now)
	l.mu.Lock()
	switch {
	case !wrong:
		k.wronglyMarked = time.Time{}
	case k.wronglyMarked.IsZero():
		k.wronglyMarked = l.timing.now()
	}
	since := k.wronglyMarked
	l.mu.Unlock()
	if wrong && (l.reaper.active.Load() || l.timing.now().Sub(since) >= l.timing.lease.Duration) {
		l.setEvictable(ctx, pod, false)
	}
}

// markEvictable marks the pods that may be evicted, once their supervisors announce it. The reaper does it, and takes
// the mark away from a kernel in use: see protect.
func (r *reaper) markEvictable(ctx context.Context) {
	if r.l.opts.EvictIdleAfter == 0 {
		return
	}
	now := r.l.clusterNow()
	var pods []*corev1.Pod
	r.l.mu.Lock()
	for _, k := range r.l.kernels {
		if k.end == nil && k.stop == nil && !k.removed && k.supervisor.Streaming &&
			k.pod.Annotations[podspec.AnnotationSafeToEvict] != "true" && k.supervisor.Status.NodeNotice != "" &&
			mayBeEvicted(r.l.opts.EvictIdleAfter, k.supervisor.Status, now) {
			pods = append(pods, k.pod)
		}
	}
	r.l.mu.Unlock()
	for _, pod := range pods {
		r.l.setEvictable(ctx, pod, true)
	}
}

// setEvictable sets the annotations that protect a pod from eviction.
func (l *Launcher) setEvictable(ctx context.Context, pod *corev1.Pod, evict bool) {
	err := l.annotate(ctx, pod, "", map[string]string{
		podspec.AnnotationSafeToEvict:  fmt.Sprint(evict),
		podspec.AnnotationDoNotDisrupt: fmt.Sprint(!evict),
	})
	if err != nil {
		l.log.Debug("a pod's annotations could not be changed", logkey.Pod, pod.Name, logkey.Err, err)
	}
}
