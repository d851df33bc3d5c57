package kube

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// secretRetry is a little more than the kubelet's longest pause between two attempts to mount a volume.
const secretRetry = 3 * time.Minute

// idleLong is after how much idleness a kernel's node may be given up.
const idleLong = 5 * time.Minute

// tend does what is due, now and then.
func (l *Launcher) tend() {
	for sleep(l.ctx, l.timing.tend) == nil {
		// A cluster that does not answer holds up a round, and not each kernel's part of it.
		round, cancel := context.WithTimeout(l.ctx, l.timing.api)
		l.catchUp(round)
		for _, k := range l.known() {
			l.tendKernel(round, k)
		}
		cancel()
	}
}

// tendKernel does what is due for one kernel. Every gateway does it: each step is harmless if another was faster.
func (l *Launcher) tendKernel(ctx context.Context, k *kernel) {
	now := l.timing.now()
	l.mu.Lock()
	pod, end, removed, heard, stopping := k.pod, k.end, k.removed, k.heard, k.stop != nil
	up := k.wasUp()
	state, active := launcher.State(k.status.State), k.status.LastActivity
	streaming, complete := k.streaming, k.complete
	missed := missesSecret(pod, l.events[pod.UID], complete, now)
	k.claimed = k.claimed || k.status.Connections > 0
	claims := k.claimed && pod.Annotations[annotationClaimed] == unclaimed
	l.mu.Unlock()
	if claims && end == nil && !removed && !stopping {
		l.noteClaim(ctx, k)
	}
	age := now.Sub(pod.CreationTimestamp.Time)
	switch {
	case stopping:
	case end != nil && removed && l.overdue(end):
		l.mu.Lock()
		l.enterGone(k)
		k.touch()
		l.mu.Unlock()
	case end != nil || removed:
	case missed, !heard && complete.IsZero() && age > l.timing.half && pod.Status.Phase == corev1.PodPending:
		// Whoever made the pod may have died before it made the secret, or somebody has deleted that.
		if err := l.createSecret(ctx, pod); err != nil {
			l.log.Warn("secret of a waiting pod could not be made; this is tried again", "pod", pod.Name, "err", err)
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.pod.UID == pod.UID {
			k.complete = now
		}
	case !up:
		l.endOverdue(k, pod)
	case streaming:
		l.tellMovers(ctx, pod, state, now.Sub(active))
	}
}

// missesSecret reports whether the kubelet has lately not found a pod's secret, which was there at that time.
func missesSecret(pod *corev1.Pod, events []corev1.Event, there, now time.Time) bool {
	missing := fmt.Sprintf("secret %q not found", secretName(pod.Name))
	return slices.ContainsFunc(events, func(e corev1.Event) bool {
		at := eventTime(&e)
		return e.Reason == "FailedMount" && strings.Contains(e.Message, missing) && at.After(there) && now.Sub(at) < secretRetry
	})
}

// endOverdue ends a kernel whose start has made no progress for too long.
func (l *Launcher) endOverdue(k *kernel, pod *corev1.Pod) {
	now, limit, events := l.timing.now(), l.startLimit(pod), l.eventsOf(pod)
	if now.Sub(progress(pod, events, now)) <= limit {
		return
	}
	text := fmt.Sprintf("its start made no progress for %s", limit)
	if why := podReason(pod, events, now); why.text != "" {
		text += ": " + why.text
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.end == nil && k.stop == nil && !k.wasUp() {
		l.beginStopLocked(k, text, "", false)
	}
}

// startLimit is how long a start may make no progress: what holds for all, or what its client has asked for if that is more.
func (l *Launcher) startLimit(pod *corev1.Pod) time.Duration {
	seconds, err := strconv.Atoi(pod.Annotations[annotationLaunchTimeout])
	if err != nil { // it is absent
		return l.opts.StartLimit
	}
	return max(l.opts.StartLimit, time.Duration(seconds)*time.Second)
}

// progress is when the start of a kernel came further last: a node was found or is being made, a volume or an image has come,
// its first containers began. An image that is being pulled counts as progress for as long as it is: how far it is nobody tells, and
// container runtimes give a pull up that gets no bytes.
func progress(pod *corev1.Pod, events []corev1.Event, now time.Time) time.Time {
	if undecided(pod) {
		return now // its start has not begun
	}
	last := pod.CreationTimestamp.Time
	further := func(at time.Time) {
		if at.After(last) {
			last = at
		}
	}
	if at, err := time.Parse(time.RFC3339Nano, pod.Annotations[annotationAdmitted]); err == nil { // else it needed no decision
		further(at)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			further(c.LastTransitionTime.Time)
		}
	}
	for _, st := range pod.Status.ContainerStatuses {
		if st.State.Running != nil && st.RestartCount == 0 {
			further(st.State.Running.StartedAt.Time)
		}
	}
	pulling := false
	for i := range events {
		switch e := &events[i]; e.Reason {
		case "Pulling":
			pulling = true
		case "Pulled", "Scheduled", "TriggeredScaleUp", "SuccessfulAttachVolume":
			pulling = pulling && e.Reason != "Pulled"
			further(eventTime(e))
		case "Failed", "BackOff", "NodeNotReady":
			pulling = false
		}
	}
	if pulling && pod.Status.Phase == corev1.PodPending {
		return now
	}
	return last
}

// tellMovers has the annotations that keep a pod where it is follow the kernel's state: at once when it is busy, and after some
// minutes of idleness. Nothing is asked of the cluster while they are right.
func (l *Launcher) tellMovers(ctx context.Context, pod *corev1.Pod, state launcher.State, idle time.Duration) {
	evict := state == launcher.Idle && idle > idleLong
	if pod.Annotations[annotationSafeToEvict] == fmt.Sprint(evict) || !evict && idle > idleLong && state != launcher.Busy {
		return
	}
	if err := l.annotate(ctx, pod, "", map[string]string{annotationSafeToEvict: fmt.Sprint(evict), annotationDoNotDisrupt: fmt.Sprint(!evict)}); err != nil {
		l.log.Debug("a pod's annotations could not be changed", "pod", pod.Name, "err", err)
	}
}
