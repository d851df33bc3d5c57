package podstatus

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// FailureOf returns the class of a start that has failed, from its pod.
func FailureOf(pod *corev1.Pod) launcher.Failure {
	e := explanation{pod: pod}
	if pod.Annotations[podspec.AnnotationLimit] != "" {
		return launcher.FailedLimit
	}
	if e.disruption() != nil || pod.Status.Reason == "NodeLost" || pod.Status.Reason == "Evicted" {
		return launcher.FailedEvicted
	}
	if pod.Spec.NodeName == "" && !e.scheduled() {
		return launcher.FailedUnscheduled
	}
	for _, st := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := st.State.Waiting; w != nil {
			switch {
			case strings.Contains(w.Reason, "Image"), w.Reason == "RegistryUnavailable", w.Reason == "SignatureValidationFailed":
				return launcher.FailedImage
			case strings.HasSuffix(w.Reason, "Error"):
				return launcher.FailedContainer
			}
		}
		for _, t := range []*corev1.ContainerStateTerminated{st.State.Terminated, st.LastTerminationState.Terminated} {
			switch {
			case t == nil || st.Name != podspec.ContainerKernel && st.Name != podspec.ContainerSupervisor:
			case t.Reason == "OOMKilled":
				return launcher.FailedMemory
			case t.Reason == "StartError" || t.Reason == "ContainerCannotRun":
				return launcher.FailedContainer
			case st.Name == podspec.ContainerKernel || t.ExitCode != 0 || HasEnded(pod):
				return launcher.FailedExited
			}
		}
	}
	if st := ContainerStatus(pod, podspec.ContainerKernel); st != nil && st.State.Running != nil {
		return launcher.FailedSilent
	}
	return launcher.FailedContainer
}

// ErrorFailure returns the class of a start whose pod could not be created, from the API server's error.
func ErrorFailure(err error) launcher.Failure {
	switch {
	case quotaExceeded.MatchString(err.Error()):
		return launcher.FailedQuota
	case ExplainError(err).Class == ClassNever:
		return launcher.FailedInvalid
	}
	return launcher.FailedUnavailable
}
