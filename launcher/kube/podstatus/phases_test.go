package podstatus

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

func TestPhases(t *testing.T) {
	asked, made := at(0), at(0.5)
	show := func(all []launcher.Phase) string {
		var total time.Duration
		var parts []string
		for _, p := range all {
			parts, total = append(parts, fmt.Sprintf("%s %v", p.Name, p.Took)), total+p.Took
		}
		return fmt.Sprintf("%s of %v", strings.Join(parts, ", "), total)
	}
	pod := gpuPod(nil, 3, -1)
	pod.UID = "1"
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ContainerKernel, State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at(63))}}}}
	pulled := func(uid, container string, second float64) corev1.Event {
		return corev1.Event{Reason: "Pulled", LastTimestamp: metav1.NewTime(at(second)),
			InvolvedObject: corev1.ObjectReference{UID: "1", FieldPath: "spec.containers{" + container + "}"}}
	}
	events := []corev1.Event{pulled("1", podspec.ContainerKernel, 61), pulled("1", podspec.ContainerSupervisor, 5)}
	if got, want := show(Phases(pod, events, asked, made, at(64.5))),
		"admission 500ms, scheduled 2.5s, pulled 58s, started 2s, ready 1.5s of 1m4.5s"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := show(Phases(pod, nil, asked, made, at(64.5))),
		"admission 500ms, scheduled 2.5s, started 1m0s, ready 1.5s of 1m4.5s"; got != want {
		t.Errorf("without events: got  %s\nwant %s", got, want)
	}
	// With whole seconds and different clocks no phase is negative, and the sum is the whole duration.
	pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(at(0))
	pod.Status.ContainerStatuses[0].State.Running.StartedAt = metav1.NewTime(at(70))
	if got, want := show(Phases(pod, nil, asked, made, at(64.5))),
		"admission 500ms, scheduled 0s, started 1m4s, ready 0s of 1m4.5s"; got != want {
		t.Errorf("other clocks: got  %s\nwant %s", got, want)
	}
}
