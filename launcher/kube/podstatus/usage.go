package podstatus

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// gpuHold returns from when to when a pod holds its GPUs: from its scheduling to the end of its containers. A zero time
// has not come yet.
func gpuHold(pod *corev1.Pod) (from, to time.Time) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			from = c.LastTransitionTime.Time
		}
	}
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		return from, time.Time{}
	}
	to = from
	for _, st := range pod.Status.ContainerStatuses {
		if t := st.State.Terminated; t != nil && t.FinishedAt.After(to) {
			to = t.FinishedAt.Time
		}
	}
	return from, to
}

// GPUsHeld returns how many GPUs a pod holds at a time.
func GPUsHeld(pod *corev1.Pod, now time.Time) gpu.Amount {
	from, to := gpuHold(pod)
	if from.IsZero() || from.After(now) || !to.IsZero() && !to.After(now) {
		return 0
	}
	return podspec.GPUs(pod)
}

// GPUSeconds returns for how many seconds a pod held GPUs between two times, multiplied by their number.
func GPUSeconds(pod *corev1.Pod, since, until time.Time) float64 {
	from, to := gpuHold(pod)
	if from.IsZero() {
		return 0
	}
	if from.Before(since) {
		from = since
	}
	if to.IsZero() || to.After(until) {
		to = until
	}
	return max(0, to.Sub(from).Seconds()) * podspec.GPUs(pod).Float()
}

// UsageOf returns what a pod held until its kernel's end, or until its containers ended, if that was earlier: a dead
// kernel may be removed long after.
func UsageOf(pod *corev1.Pod, end time.Time) launcher.Usage {
	from, to := gpuHold(pod)
	if from.IsZero() {
		return launcher.Usage{}
	}
	if taken := podspec.TakenAt(pod); taken.After(from) {
		from = taken // before it was nobody's
	}
	if to.After(from) && to.Before(end) { // else its node was lost, and to is unknown
		end = to
	}
	return launcher.Usage{
		Started: from.UTC(),
		Seconds: max(0, int64(end.Sub(from).Round(time.Second)/time.Second)),
		GPUs:    podspec.GPUs(pod),
	}
}
