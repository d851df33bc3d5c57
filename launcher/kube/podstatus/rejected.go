package podstatus

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// A kubelet rejects a pod if its node cannot take it after all: a device plugin has been restarted, or another pod has
// taken the room in between. The scheduler knows better some seconds later, so the kernel gets a second pod.
const (
	// RejectionPause is how long after its scheduling a rejected pod is replaced. A kubelet reports devices and room
	// that have changed every 10 seconds.
	RejectionPause = 10 * time.Second
	// rejectionWindow is the longest time after its scheduling until a rejected pod is replaced. Later, a kubelet that was
	// restarted may reject a pod that has run, and the pod then shows no trace of its containers.
	rejectionWindow = time.Minute
)

// MayRetry reports whether a kernel gets a second pod, because a node has rejected its first pod before any container
// ran. It is false later than a minute after the scheduling of the pod.
func MayRetry(pod *corev1.Pod, now time.Time) bool {
	why := pod.Status.Reason
	e := explanation{pod: pod, now: now}
	return isRejected(pod) && pod.DeletionTimestamp == nil && pod.Annotations[podspec.AnnotationRejected] == "" &&
		pod.Annotations[podspec.AnnotationEnding] == "" && !hasRun(pod) && now.Sub(e.started()) < rejectionWindow &&
		(why == "UnexpectedAdmissionError" || why == "NodeAffinity" || strings.HasPrefix(why, "OutOf"))
}

// hasRun reports whether a container of a pod has been started.
func hasRun(pod *corev1.Pod) bool {
	all := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	return slices.ContainsFunc(all, func(s corev1.ContainerStatus) bool {
		return s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil ||
			s.RestartCount > 0
	})
}

// isRejected reports whether the kubelet of a pod's node has rejected the pod. Up to Kubernetes 1.27 the message begins
// with "Pod ", and has no common words.
func isRejected(pod *corev1.Pod) bool {
	why := pod.Status.Reason
	return pod.Status.Phase == corev1.PodFailed && (strings.HasPrefix(pod.Status.Message, "Pod was rejected: ") ||
		why == "UnexpectedAdmissionError" || why == "NodeAffinity" || strings.HasPrefix(why, "OutOf") ||
		why == "NodePorts" || strings.HasSuffix(why, "NotSupported") || strings.HasPrefix(why, "Topology"))
}

var rejectionPrefix = regexp.MustCompile(`^Pod (was rejected: )?`)

// rejected explains a pod that its node has rejected.
func (e *explanation) rejected(since time.Time) Reason {
	why := e.pod.Status.Reason
	said := cmp.Or(OneLine(rejectionPrefix.ReplaceAllString(e.pod.Status.Message, ""), quoteLimit), why)
	switch {
	case MayRetry(e.pod, e.now):
		return newReason(ClassWaiting, since, "its node refused it, and it is tried once more: %s", said)
	case e.pod.Annotations[podspec.AnnotationRejected] != "":
		return newReason(ClassNever, since, "nodes refused it twice: %s%s", said, rejectionHelp(why))
	}
	return newReason(ClassNever, since, "its node refused it: %s%s", said, rejectionHelp(why))
}

// rejectionHelp says what helps after a kubelet has rejected a pod, to be appended.
func rejectionHelp(why string) string {
	switch {
	case why == "UnexpectedAdmissionError":
		return "; its devices were not ready, so start it again"
	case strings.HasPrefix(why, "OutOf"):
		return "; other pods had taken the room, so start it again"
	case why == "NodeAffinity":
		return "; the labels of its node have changed, so start it again"
	case strings.HasPrefix(why, "Topology"):
		return "; its processors and devices are too far apart there, so start it again or ask for less"
	}
	return ""
}
