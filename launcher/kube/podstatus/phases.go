package podstatus

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Phases returns the phases of a start that has succeeded now: asked is when the start was called, made when the pod
// was created and admitted. Their sum is the whole duration. The cluster's times are whole seconds, so that a short
// phase may take 0. A phase whose end the cluster does not report is counted in the next one.
func Phases(pod *corev1.Pod, events []corev1.Event, asked, made, now time.Time) []launcher.Phase {
	all := []launcher.Phase{{Name: launcher.PhaseAdmission, Took: made.Sub(asked)}}
	last := made
	reached := func(name string, at time.Time) {
		if at.IsZero() {
			return
		}
		if at.Before(last) {
			at = last
		}
		if at.After(now) { // the node's clock is ahead
			at = now
		}
		all = append(all, launcher.Phase{Name: name, Took: at.Sub(last)})
		last = at
	}
	scheduled, _ := gpuHold(pod)
	reached(launcher.PhaseScheduled, scheduled)
	e := explanation{pod: pod}
	for i := range slices.Backward(events) {
		if event := &events[i]; event.Reason == "Pulled" && event.InvolvedObject.UID == pod.UID &&
			e.ofContainer(event, podspec.ContainerKernel) {
			reached(launcher.PhasePulled, EventTime(event))
			break
		}
	}
	if st := ContainerStatus(pod, podspec.ContainerKernel); st != nil && st.State.Running != nil {
		reached(launcher.PhaseStarted, st.State.Running.StartedAt.Time)
	}
	reached(launcher.PhaseReady, now)
	return all
}
