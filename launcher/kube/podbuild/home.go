package podbuild

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// Annotations of a home that no pod has, each with a time as time.RFC3339 in UTC. A home in use has neither.
const (
	AnnotationHomeUnused = podspec.Domain + "home-unused-since"
	AnnotationHomeSeen   = podspec.Domain + "home-unused-seen" // when that was seen last
)

const (
	// HomeSeenEvery is how old AnnotationHomeSeen becomes before it is written again.
	HomeSeenEvery = 4 * time.Hour
	// HomeSeenMost is how old AnnotationHomeSeen may be. If it is older, the gateways have not looked meanwhile, and the
	// time of AnnotationHomeUnused begins again. HomeSeenMost is shorter than each valid wish.Home.DeleteAfter.
	HomeSeenMost = 12 * time.Hour
)

// mountHome mounts the owner's home. A kernelspec or client that mounts something at the same path, or sets HOME, keeps
// it.
func (b *builder) mountHome(pod *corev1.Pod) error {
	h := b.o.Policy.Home
	if h == nil || b.req.Owner == "" {
		return nil
	}
	k := podspec.KernelOf(pod)
	if mountsAt(k, h.MountPath) {
		return nil
	}
	name := b.o.Policy.HomeOf(b.req.Owner)
	if len(name) > wish.MaxOwnerPart {
		return wish.Refused("the home of this user cannot have a claim: its name is longer than %d bytes", wish.MaxOwnerPart)
	}
	mountClaim(pod, podspec.VolumeOwnerHome, name, h.MountPath, false)
	if !slices.ContainsFunc(k.Env, func(e corev1.EnvVar) bool { return e.Name == "HOME" }) {
		k.Env = append(k.Env, corev1.EnvVar{Name: "HOME", Value: h.MountPath})
	}
	if h.FSGroup == nil {
		return nil
	}
	if pod.Spec.SecurityContext == nil {
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	if pod.Spec.SecurityContext.FSGroup == nil {
		pod.Spec.SecurityContext.FSGroup = h.FSGroup
	}
	return nil
}

// HomeClaim returns the claim of the owner's home that a pod mounts, or nil. It also finds the claim if the kernelspec
// mounts it elsewhere.
func HomeClaim(o Options, pod *corev1.Pod) *corev1.PersistentVolumeClaim {
	owner := pod.Annotations[podspec.AnnotationOwner]
	if o.Policy == nil || o.Policy.Home == nil || owner == "" {
		return nil
	}
	h := o.Policy.Home
	name := o.Policy.HomeOf(owner)
	if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name
	}) {
		return nil
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name,
			Labels:      map[string]string{podspec.LabelManagedBy: podspec.Manager, LabelKernelsOf: o.Namespace},
			Annotations: map[string]string{podspec.AnnotationOwner: owner}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: h.StorageClass,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(h.Size)}},
		},
	}
	for _, mode := range h.AccessModes {
		claim.Spec.AccessModes = append(claim.Spec.AccessModes, corev1.PersistentVolumeAccessMode(mode))
	}
	if len(h.AccessModes) == 0 {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	return claim
}

// HomesDeletedAfter returns after which time without a pod homes are deleted; 0 means never.
func HomesDeletedAfter(o Options) time.Duration {
	if o.Policy == nil || o.Policy.Home == nil {
		return 0
	}
	return o.Policy.Home.DeleteAfter
}

// IsHome reports whether these gateways have created a claim as the home of the owner that it names. All else is the
// operator's, or another installation's.
func IsHome(o Options, claim *corev1.PersistentVolumeClaim) bool {
	owner := claim.Annotations[podspec.AnnotationOwner]
	return o.Policy != nil && o.Policy.Home != nil && owner != "" &&
		claim.Labels[podspec.LabelManagedBy] == podspec.Manager &&
		claim.Labels[LabelKernelsOf] == o.Namespace && claim.Name == o.Policy.HomeOf(owner)
}
