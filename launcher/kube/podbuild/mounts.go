package podbuild

import (
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// mountsAt reports whether a container has a volume at a folder, which is a clean path.
func mountsAt(c *corev1.Container, folder string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return path.Clean(m.MountPath) == folder
	})
}

// mountClaim mounts a claim into the kernel's container, as a volume of this name.
func mountClaim(pod *corev1.Pod, name, claim, folder string, readOnly bool) {
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: readOnly}}})
	k := podspec.KernelOf(pod)
	k.VolumeMounts = append(k.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: folder, ReadOnly: readOnly})
}
