package podbuild

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// mountShared mounts the shared volumes. A kernelspec or client that mounts something at the same path keeps it.
func (b *builder) mountShared(pod *corev1.Pod) {
	for i, s := range b.o.Policy.Shared {
		if !mountsAt(podspec.KernelOf(pod), s.MountPath) {
			mountClaim(pod, fmt.Sprintf("%s%d", podspec.VolumeCommon, i), s.Claim, s.MountPath, true)
		}
	}
}
