package kube

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/sleep"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// secretRetry is a little longer than the kubelet's longest pause between two attempts to mount a volume.
const secretRetry = 3 * time.Minute

// evictableAfter is how long a kernel must be idle before its pod may be evicted.
const evictableAfter = 5 * time.Minute

// maintain does the regular work for all kernels, at intervals.
func (l *Launcher) maintain() {
	for sleep.For(l.ctx, l.timing.maintenance) == nil {
		// The time limit holds for a whole round, in case the cluster does not answer.
		round, cancel := context.WithTimeout(l.ctx, l.timing.api)
		l.catchUp(round)
		for _, k := range l.snapshot() {
			l.maintainKernel(round, k)
		}
		cancel()
	}
}

// maintainKernel does what is due for one kernel. Every gateway does it: each step is harmless if another gateway was
// faster.
func (l *Launcher) maintainKernel(ctx context.Context, k *kernel) {
	now := l.timing.now()
	l.mu.Lock()
	pod, end, removed, hasStatus, stopping := k.pod, k.end, k.removed, k.supervisor.HasStatus, k.stop != nil
	unstarted := k.isUnstartedLocked()
	state, active := k.supervisor.Status.State, k.supervisor.Status.LastActivity
	streaming, complete := k.supervisor.Streaming, k.secretCreated
	missed := missesSecret(pod, l.events[pod.UID], complete, now)
	k.claimed = k.claimed || k.supervisor.Status.Connections > 0
	claims := k.claimed && pod.Annotations[annotationClaimed] == unclaimed
	l.mu.Unlock()
	if claims && end == nil && !removed && !stopping {
		l.recordClaim(ctx, k)
	}
	age := now.Sub(pod.CreationTimestamp.Time)
	switch {
	case stopping:
	case end != nil && removed && l.lingered(end):
		l.mu.Lock()
		l.forgetLocked(k)
		k.supervisor.ChangedLocked()
		l.mu.Unlock()
	case end != nil || removed:
	case missed, !hasStatus && complete.IsZero() && age > l.timing.secretOverdue && pod.Status.Phase == corev1.PodPending:
		// The gateway that created the pod may have died before it created the secret, or the secret was deleted.
		if err := l.createSecret(ctx, pod); err != nil {
			l.log.Warn("secret of a waiting pod could not be created; this is tried again", logkey.Pod, pod.Name, logkey.Err,
				err)
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.pod.UID == pod.UID {
			k.secretCreated = now
		}
	case unstarted:
		l.endOverdue(k, pod)
	case streaming:
		l.updateEvictable(ctx, pod, state, now.Sub(active))
	}
}

// missesSecret reports whether the kubelet has not found a pod's secret lately, at a time after the secret was last
// known to exist.
func missesSecret(pod *corev1.Pod, events []corev1.Event, there, now time.Time) bool {
	missing := fmt.Sprintf("secret %q not found", podspec.SecretName(pod.Name))
	return slices.ContainsFunc(events, func(e corev1.Event) bool {
		at := podstatus.EventTime(&e)
		return e.Reason == "FailedMount" && strings.Contains(e.Message, missing) && at.After(there) &&
			now.Sub(at) < secretRetry
	})
}

// endOverdue ends a kernel whose start has made no progress for too long, or can no longer succeed.
func (l *Launcher) endOverdue(k *kernel, pod *corev1.Pod) {
	now, limit, events := l.timing.now(), l.startLimit(pod), l.eventsOf(pod)
	why := podstatus.Explain(pod, events, now)
	text := why.Text // a reason may become final with time, without any event
	if why.Class != podstatus.ClassNever {
		if now.Sub(podstatus.Progress(pod, events, now)) <= limit {
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

// startLimit is how long a start may make no progress: the operator's limit, or the client's if that is longer.
func (l *Launcher) startLimit(pod *corev1.Pod) time.Duration {
	seconds, err := strconv.Atoi(pod.Annotations[podspec.AnnotationLaunchTimeout])
	if err != nil { // it is absent
		return l.opts.StartLimit
	}
	return max(l.opts.StartLimit, time.Duration(seconds)*time.Second)
}

// updateEvictable updates the annotations that protect a pod from eviction: at once when the kernel becomes busy, and
// after some minutes of idleness. No request is sent if they need no change.
func (l *Launcher) updateEvictable(ctx context.Context, pod *corev1.Pod, state api.State, idle time.Duration) {
	evict := state == api.Idle && idle > evictableAfter
	if pod.Annotations[podspec.AnnotationSafeToEvict] == fmt.Sprint(evict) ||
		!evict && idle > evictableAfter && state != api.Busy {
		return
	}
	err := l.annotate(ctx, pod, "", map[string]string{
		podspec.AnnotationSafeToEvict:  fmt.Sprint(evict),
		podspec.AnnotationDoNotDisrupt: fmt.Sprint(!evict),
	})
	if err != nil {
		l.log.Debug("a pod's annotations could not be changed", logkey.Pod, pod.Name, logkey.Err, err)
	}
}
