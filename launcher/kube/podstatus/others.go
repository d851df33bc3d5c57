package podstatus

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// anotherPod is in the place of the name of a pod that the reader of a reason may not see.
const anotherPod = "another pod"

// Words in texts of the cluster that name what others have. The first group is kept.
var (
	// The scheduler, of the pod that has taken a kernel's place: by its UID, and before Kubernetes 1.24 by its name.
	preemptedBy = regexp.MustCompile(`(Preempted by )(?:pod )?\S+`)
	// Kueue, of the workload that has taken a kernel's place.
	accommodated = regexp.MustCompile(`(a workload) \(UID: [^)]*\)`)
	// The controller of volumes, of the pods that have a volume.
	usedBy = regexp.MustCompile(`(already used by )pod\(s\) .*$`)

	kernelPod = regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}-[0-9]+\b`)
)

// withoutOthers returns a reason that names no other pod: the owner of a kernel, and those with whom it is shared, may
// not see the kernels of other users, whose ids are in the names of their pods.
func withoutOthers(pod *corev1.Pod, r Reason) Reason {
	r.Text = preemptedBy.ReplaceAllString(r.Text, "${1}"+anotherPod)
	r.Text = accommodated.ReplaceAllString(r.Text, "${1}")
	r.Text = usedBy.ReplaceAllString(r.Text, "${1}"+anotherPod)
	own := pod.Labels[podspec.LabelKernel]
	r.Text = kernelPod.ReplaceAllStringFunc(r.Text, func(name string) string {
		if name == pod.Name || own != "" && strings.HasPrefix(name, own) {
			return name
		}
		return anotherPod
	})
	return r
}
