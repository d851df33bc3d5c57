package podstatus

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

func TestProgress(t *testing.T) {
	now := reasonNow
	event := func(reason string, age time.Duration) corev1.Event {
		return corev1.Event{Reason: reason, LastTimestamp: ago(age)}
	}
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		events []corev1.Event
		want   time.Duration // ago
	}{
		"made": {podOf(), nil, time.Hour},
		"scheduled": {podOf(func(p *corev1.Pod) {
			condition(corev1.PodScheduled, corev1.ConditionTrue, "", "")(p)
		}), nil, 5 * time.Minute},
		"not scheduled": {podOf(unschedulable("no GPU")), []corev1.Event{event("FailedScheduling", time.Minute)},
			time.Hour},
		"a node is being made": {podOf(),
			[]corev1.Event{event("TriggeredScaleUp", 2*time.Minute), event("FailedScheduling", time.Minute)}, 2 * time.Minute},
		"an image is being pulled": {podOf(),
			[]corev1.Event{event("Scheduled", 50*time.Minute), event("Pulling", 49*time.Minute)}, 0},
		"a pull has failed": {podOf(),
			[]corev1.Event{event("Pulling", 49*time.Minute), event("Failed", 40*time.Minute), event("BackOff", time.Minute)},
			time.Hour},
		"an image has come": {podOf(), []corev1.Event{event("Pulling", 49*time.Minute), event("Pulled", 3*time.Minute)},
			3 * time.Minute},
		"its node is lost while it pulls": {podOf(),
			[]corev1.Event{event("Scheduled", 50*time.Minute), event("Pulling", 49*time.Minute),
				event("NodeNotReady", time.Minute)},
			50 * time.Minute},
		"Kueue holds it":   {podOf(gates("kueue.x-k8s.io/admission")), nil, 0},
		"Kueue's topology": {podOf(gates("kueue.x-k8s.io/topology")), nil, 0},
		"another gate":     {podOf(gates("example.com/gate")), nil, time.Hour},
		"a container runs": {podOf(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ContainerSupervisor,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: ago(time.Minute)}}}}
		}), nil, time.Minute},
		"a container runs again": {podOf(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: podspec.ContainerKernel, RestartCount: 3,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: ago(time.Minute)}}}}
		}), nil, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			if got := now.Sub(Progress(test.pod, test.events, now)); got != test.want {
				t.Errorf("%v ago, want %v", got, test.want)
			}
		})
	}
}

// gates gives a pod scheduling gates.
func gates(names ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, name := range names {
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
		}
	}
}
