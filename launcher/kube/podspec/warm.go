package podspec

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A warm kernel's pod has another LabelManagedBy than the pods of kernels, so that no gateway takes it for a kernel. A
// start takes it with one patch, which sets the label and all that the record of a kernel has.
const (
	// ManagerWarm is the value of LabelManagedBy while the pod's kernel has no owner.
	ManagerWarm = "ekg-warm"
	// AnnotationWarm of a pod that is or was warm has the Content of its podbuild.WarmKind.
	AnnotationWarm = Domain + "warm"
	// AnnotationClaim of a pod that was warm is ClaimUndecided until limits have admitted the start that has taken it. It
	// is ClaimDiscarded if the kernel could not be given to its owner.
	AnnotationClaim = Domain + "warm-claim"
	// ClaimUndecided, ClaimDecided and ClaimDiscarded are its values.
	ClaimUndecided = "undecided"
	ClaimDecided   = "decided"
	ClaimDiscarded = "discarded"
)

// IsDiscarded reports whether a pod's warm kernel was taken and could not be given to its owner. Until the pod is gone,
// it counts as one of the warm kernels, and not for its owner.
func IsDiscarded(pod *corev1.Pod) bool { return pod.Annotations[AnnotationClaim] == ClaimDiscarded }

// KueueDomain is how Kueue's gates and labels begin. It holds a pod until its queue has room, which may take days.
const KueueDomain = "kueue.x-k8s.io/"

// TakenAt returns when a pod that was warm has got its owner; the zero time if it never was warm.
func TakenAt(pod *corev1.Pod) time.Time {
	if pod.Annotations[AnnotationWarm] == "" {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, pod.Annotations[annotationCreated])
	if err != nil {
		return time.Time{}
	}
	return at
}
