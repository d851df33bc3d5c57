package podbuild

import (
	"maps"
	"math"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// applyClient gives the pod what its client chooses, and the kernel's container all of the client's variables.
func (b *builder) applyClient(pod *corev1.Pod) error {
	k := podspec.KernelOf(pod)
	chosen, err := b.o.Policy.Client(b.req, &b.ext, wish.Choices{
		Image: k.Image, Namespace: pod.Namespace, ServiceAccount: pod.Spec.ServiceAccountName,
		User: k.SecurityContext.RunAsUser, Group: k.SecurityContext.RunAsGroup,
		Resources: k.Resources, Claims: pod.Spec.ResourceClaims,
		Volumes: pod.Spec.Volumes, Mounts: k.VolumeMounts,
		Beside: func(name corev1.ResourceName) resource.Quantity { return besideKernel(pod, name) },
	})
	if err != nil {
		return err
	}
	k.Image, pod.Namespace, pod.Spec.ServiceAccountName = chosen.Image, chosen.Namespace, chosen.ServiceAccount
	k.SecurityContext.RunAsUser, k.SecurityContext.RunAsGroup = chosen.User, chosen.Group
	k.Resources, pod.Spec.ResourceClaims = chosen.Resources, chosen.Claims
	pod.Spec.Volumes, k.VolumeMounts = chosen.Volumes, chosen.Mounts
	if chosen.PodName != "" {
		pod.Annotations[podspec.AnnotationRequestedName] = chosen.PodName
	}
	if timeout := b.req.Timeout(); timeout > 0 {
		pod.Annotations[podspec.AnnotationLaunchTimeout] = strconv.Itoa(int(math.Ceil(timeout.Seconds())))
	}
	for _, name := range slices.Sorted(maps.Keys(b.req.Env)) {
		if launcher.ReservedVariable(name) {
			continue
		}
		k.Env = slices.DeleteFunc(k.Env, func(e corev1.EnvVar) bool { return e.Name == name })
		k.Env = append(k.Env, corev1.EnvVar{Name: name, Value: b.req.Env[name]})
	}
	return nil
}
