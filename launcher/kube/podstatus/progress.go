package podstatus

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Progress returns when the start of a kernel last made progress: a node was found or requested, a volume was attached,
// an image was pulled, a container was started. A pull in progress always counts as progress: the cluster does not
// report how far it is, and container runtimes give up a pull that receives no bytes.
func Progress(pod *corev1.Pod, events []corev1.Event, now time.Time) time.Time {
	if IsUndecided(pod) || IsQueued(pod) {
		return now // the start has not begun
	}
	last := pod.CreationTimestamp.Time
	further := func(at time.Time) {
		if at.After(last) {
			last = at
		}
	}
	further(podspec.TakenAt(pod)) // before, nobody waited for it
	// The annotation is absent where there are no limits.
	if at, err := time.Parse(time.RFC3339Nano, pod.Annotations[podspec.AnnotationAdmitted]); err == nil {
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
	for _, st := range pod.Status.InitContainerStatuses {
		if t := st.State.Terminated; t != nil && t.ExitCode == 0 {
			further(t.FinishedAt.Time)
		}
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
			further(EventTime(e))
		case "Failed", "BackOff", "NodeNotReady":
			pulling = false
		}
	}
	if pulling && pod.Status.Phase == corev1.PodPending {
		return now
	}
	return last
}
