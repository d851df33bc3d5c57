package kube

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Annotations that tell who would move a pod whether it may.
const (
	annotationEvict   = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	annotationDisrupt = "karpenter.sh/do-not-disrupt"
)

// idleLong is after how much idleness a kernel's node may be given up.
const idleLong = 5 * time.Minute

// tend does what is due, now and then.
func (l *Launcher) tend() {
	for sleep(l.ctx, l.timing.tend) == nil {
		for _, k := range l.known() {
			l.tendKernel(k)
		}
		for _, informer := range l.informers {
			for _, o := range informer.GetStore().List() {
				if pod, ok := o.(*corev1.Pod); ok && l.useless(pod) {
					l.clearAway(pod)
				}
			}
		}
	}
}

// useless reports whether a pod is what is left of a kernel: one that was stopped or has been shown as dead for long enough, or
// an earlier life of one that lives. A pod that cannot be read is nobody's, and is left alone.
func (l *Launcher) useless(pod *corev1.Pod) bool {
	rec, err := readRecord(pod)
	if err != nil || pod.DeletionTimestamp != nil {
		return false
	}
	if end := endOf(pod, l.timing.now()); end != nil && (end.stopped || l.overdue(end)) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[rec.id]
	return k != nil && k.pod.UID != pod.UID && k.rec.generation > rec.generation
}

func (l *Launcher) clearAway(pod *corev1.Pod) {
	if err := l.deletePod(l.ctx, pod); err != nil {
		l.log.Warn("what is left of a kernel could not be removed; this is tried again", "pod", pod.Name, "err", err)
		return
	}
	l.log.Info("what was left of a kernel was removed", "kernel", pod.Labels[LabelKernel], "pod", pod.Name)
}

// tendKernel does what is due for one kernel. Every gateway does it: each step is harmless if another was faster.
func (l *Launcher) tendKernel(k *kernel) {
	now := l.timing.now()
	l.mu.Lock()
	pod, end, removed, heard, stopping := k.pod, k.end, k.removed, k.heard, k.stop != nil
	up := k.wasUp()
	state, active := launcher.State(k.status.State), k.status.LastActivity
	streaming, complete := k.streaming, k.complete
	l.mu.Unlock()
	age := now.Sub(pod.CreationTimestamp.Time)
	switch {
	case stopping:
	case end != nil && removed && l.overdue(end):
		l.mu.Lock()
		l.enterGone(k)
		k.touch()
		l.mu.Unlock()
	case end != nil || removed:
	case !heard && !complete && age > l.timing.half && pod.Status.Phase == corev1.PodPending:
		// Whoever made the pod may have died before it made the secret.
		if err := l.createSecret(l.ctx, pod); err != nil {
			l.log.Warn("secret of a waiting pod could not be made; this is tried again", "pod", pod.Name, "err", err)
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.pod.UID == pod.UID {
			k.complete = true
		}
	case !up:
		l.endOverdue(k, pod, age)
	case streaming:
		l.tellMovers(pod, state, now.Sub(active))
	}
}

// endOverdue ends a kernel that has been starting for too long.
func (l *Launcher) endOverdue(k *kernel, pod *corev1.Pod, age time.Duration) {
	limit := l.startLimit(pod)
	if age <= limit {
		return
	}
	text := fmt.Sprintf("it was not up after %s", limit)
	if why := podReason(pod, l.eventsOf(pod), l.timing.now()); why.text != "" {
		text += ": " + why.text
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.end == nil && k.stop == nil && !k.wasUp() {
		l.beginStopLocked(k, text, false)
	}
}

// startLimit is how long a kernel may take to be up: what its client has asked for, or what holds for all.
func (l *Launcher) startLimit(pod *corev1.Pod) time.Duration {
	if seconds, err := strconv.Atoi(pod.Annotations[annotationLaunchTimeout]); err == nil && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return l.opts.StartLimit
}

// tellMovers has the annotations that keep a pod where it is follow the kernel's state: at once when it is busy, and after some
// minutes of idleness. Nothing is asked of the cluster while they are right.
func (l *Launcher) tellMovers(pod *corev1.Pod, state launcher.State, idle time.Duration) {
	evict := state == launcher.Idle && idle > idleLong
	if pod.Annotations[annotationEvict] == fmt.Sprint(evict) || !evict && idle > idleLong && state != launcher.Busy {
		return
	}
	if err := l.annotate(l.ctx, pod, "", map[string]string{annotationEvict: fmt.Sprint(evict), annotationDisrupt: fmt.Sprint(!evict)}); err != nil {
		l.log.Debug("a pod's annotations could not be changed", "pod", pod.Name, "err", err)
	}
}
