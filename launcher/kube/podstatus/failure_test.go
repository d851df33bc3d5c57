package podstatus

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

func TestFailureOf(t *testing.T) {
	waiting := func(name, reason string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
	}
	ended := func(name, reason string, code int32) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: code}}}
	}
	runs := corev1.ContainerStatus{Name: podspec.ContainerKernel,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	again := waiting(podspec.ContainerKernel, "CrashLoopBackOff")
	again.LastTerminationState = ended(podspec.ContainerKernel, "Error", 1).State
	for _, tt := range []struct {
		want     launcher.Failure
		node     string
		statuses []corev1.ContainerStatus
		change   func(*corev1.Pod)
	}{
		{launcher.FailedUnscheduled, "", nil, nil},
		{launcher.FailedImage, "n", []corev1.ContainerStatus{waiting(podspec.ContainerKernel, "ImagePullBackOff")}, nil},
		{launcher.FailedImage, "n", []corev1.ContainerStatus{waiting(podspec.ContainerKernel, "InvalidImageName")}, nil},
		{launcher.FailedContainer, "n",
			[]corev1.ContainerStatus{waiting(podspec.ContainerKernel, "CreateContainerConfigError")}, nil},
		{launcher.FailedContainer, "n", []corev1.ContainerStatus{waiting(podspec.ContainerKernel, "ContainerCreating")}, nil},
		{launcher.FailedContainer, "n", []corev1.ContainerStatus{ended(podspec.ContainerKernel, "StartError", 128)}, nil},
		{launcher.FailedMemory, "n", []corev1.ContainerStatus{ended(podspec.ContainerKernel, "OOMKilled", 137)}, nil},
		{launcher.FailedExited, "n", []corev1.ContainerStatus{ended(podspec.ContainerKernel, "Error", 1)}, nil},
		{launcher.FailedExited, "n", []corev1.ContainerStatus{again}, nil},
		{launcher.FailedSilent, "n", []corev1.ContainerStatus{runs}, nil},
		{launcher.FailedEvicted, "n", []corev1.ContainerStatus{runs}, func(p *corev1.Pod) { p.Status.Reason = "NodeLost" }},
		{launcher.FailedEvicted, "n", nil, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
		}},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: tt.node}, Status: corev1.PodStatus{ContainerStatuses: tt.statuses}}
		if tt.change != nil {
			tt.change(pod)
		}
		if got := FailureOf(pod); got != tt.want {
			t.Errorf("%+v: got %s, want %s", pod.Status, got, tt.want)
		}
	}
}
