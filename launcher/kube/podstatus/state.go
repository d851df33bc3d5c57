package podstatus

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// IsGated reports whether limits have not admitted a pod: it waits for them, or was refused.
func IsGated(pod *corev1.Pod) bool {
	return pod.Annotations[podspec.AnnotationClaim] == podspec.ClaimUndecided ||
		slices.ContainsFunc(pod.Spec.SchedulingGates,
			func(g corev1.PodSchedulingGate) bool { return g.Name == podspec.GateLimits })
}

// IsUndecided reports whether a pod waits for limits to admit or refuse it.
func IsUndecided(pod *corev1.Pod) bool {
	return IsGated(pod) && pod.DeletionTimestamp == nil && pod.Annotations[podspec.AnnotationEnding] == "" &&
		!HasEnded(pod)
}

// IsQueued reports whether Kueue has not admitted a pod yet.
func IsQueued(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && !HasEnded(pod) && slices.ContainsFunc(pod.Spec.SchedulingGates,
		func(g corev1.PodSchedulingGate) bool { return strings.HasPrefix(g.Name, podspec.KueueDomain) })
}

// MayHaveQueued reports whether Kueue manages a pod that has no node yet. The cluster does not report when Kueue
// admitted it.
func MayHaveQueued(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" &&
		(pod.Labels[podspec.KueueDomain+"managed"] != "" || pod.Labels[podspec.KueueDomain+"queue-name"] != "")
}

// HasEnded reports whether a pod has succeeded or failed.
func HasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// ContainerStatus returns the status of a container of a pod, or nil.
func ContainerStatus(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == name {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// Older reports whether one version of a pod is older than another. Resource versions are growing numbers: Kubernetes
// guarantees that since 1.35, and etcd has always made them so.
func Older(a, b *corev1.Pod) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order < 0
}
