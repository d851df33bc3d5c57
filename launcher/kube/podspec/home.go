package podspec

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Annotations of a home that no pod has, each with a time as time.RFC3339 in UTC. A home in use has neither.
const (
	AnnotationHomeUnused = Domain + "home-unused-since"
	AnnotationHomeSeen   = Domain + "home-unused-seen" // when that was seen last
)

const (
	// shortestKeep is the least Home.DeleteAfter.
	shortestKeep = 24 * time.Hour
	// HomeSeenEvery is how old AnnotationHomeSeen becomes before it is written again.
	HomeSeenEvery = 4 * time.Hour
	// HomeSeenMost is how old it may be: else nobody has looked meanwhile, and the time of AnnotationHomeUnused begins
	// again. It is shorter than shortestKeep.
	HomeSeenMost = 12 * time.Hour
)

// Home is the volume that each owner's kernels have as home folder. Its claim is created for the owner's first kernel.
type Home struct {
	Claim        string   `yaml:"claim"`        // name, with {owner}
	MountPath    string   `yaml:"mountPath"`    // absolute; it is HOME of the kernels
	Size         string   `yaml:"size"`         // a quantity such as 10Gi
	StorageClass *string  `yaml:"storageClass"` // nil: the cluster's default
	AccessModes  []string `yaml:"accessModes"`  // of corev1.PersistentVolumeAccessMode; empty: ReadWriteOnce
	FSGroup      *int64   `yaml:"fsGroup"`      // group that owns the files, for kernels that are not root; nil: not set

	DeleteAfter time.Duration `yaml:"deleteAfter"` // since a pod was last seen with it; 0: the claim is never deleted
}

// accessModes are the modes that a home may have.
var accessModes = []string{
	string(corev1.ReadWriteOnce),
	string(corev1.ReadWriteMany),
	string(corev1.ReadWriteOncePod),
}

// problems calls report for each key with a bad value.
func (h *Home) problems(report func(key, text string)) {
	before, after, marked := strings.Cut(h.Claim, ownerMark)
	example := strings.Replace(h.Claim, ownerMark, exampleOwner, 1)
	switch {
	case !marked, hasOwnerMark(after):
		report("claim", fmt.Sprintf("%q needs %s once: each owner has a claim", h.Claim, ownerMark))
	case !joinsOwner(before):
		report("claim", fmt.Sprintf("%q %s", h.Claim, ownerProblem(h.Claim)))
	case len(validation.IsDNS1123Subdomain(example)) > 0:
		report("claim", fmt.Sprintf("%q makes no valid name of a claim", h.Claim))
	}
	if text := folderProblem(h.MountPath); text != "" {
		report("mountPath", text)
	}
	if q, err := resource.ParseQuantity(h.Size); err != nil || q.Sign() <= 0 {
		report("size", fmt.Sprintf("%q is not an amount like 10Gi", h.Size))
	}
	if h.StorageClass != nil && len(validation.IsDNS1123Subdomain(*h.StorageClass)) > 0 && *h.StorageClass != "" {
		report("storageClass", fmt.Sprintf("%q is not the name of a storage class", *h.StorageClass))
	}
	for _, mode := range h.AccessModes {
		if !slices.Contains(accessModes, mode) {
			report("accessModes", fmt.Sprintf("%q is not a mode; valid: %s", mode, strings.Join(accessModes, ", ")))
		}
	}
	if h.DeleteAfter != 0 && h.DeleteAfter < shortestKeep {
		report("deleteAfter", fmt.Sprintf("%s is too short; the least is %s, and 0 is never", h.DeleteAfter, shortestKeep))
	}
	if h.FSGroup != nil && (*h.FSGroup < 0 || *h.FSGroup > maxID) {
		report("fsGroup", fmt.Sprintf("%d is not a group id", *h.FSGroup))
	}
}

// within reports whether a clean path is another one or below it.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// homeOf returns the name of the claim of an owner's home. The policy must have homes.
func (p *Policy) homeOf(owner string) string {
	return strings.Replace(p.Home.Claim, ownerMark, p.OwnerNames.of(owner), 1)
}

// mountHome mounts the owner's home. A kernelspec or client that mounts something at the same path, or sets HOME, keeps
// it.
func (b *builder) mountHome(pod *corev1.Pod) error {
	h := b.o.Policy.Home
	if h == nil || b.req.Owner == "" {
		return nil
	}
	k := kernelOf(pod)
	if mountsAt(k, h.MountPath) {
		return nil
	}
	name := b.o.Policy.homeOf(b.req.Owner)
	if len(name) > maxOwnerPart {
		return refused("the home of this user cannot have a claim: its name is longer than %d bytes", maxOwnerPart)
	}
	mountClaim(pod, volumeOwnerHome, name, h.MountPath, false)
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
	owner := pod.Annotations[AnnotationOwner]
	if o.Policy == nil || o.Policy.Home == nil || owner == "" {
		return nil
	}
	h := o.Policy.Home
	name := o.Policy.homeOf(owner)
	if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name
	}) {
		return nil
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name,
			Labels:      map[string]string{LabelManagedBy: Manager, LabelKernelsOf: o.Namespace},
			Annotations: map[string]string{AnnotationOwner: owner}},
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
	owner := claim.Annotations[AnnotationOwner]
	return o.Policy != nil && o.Policy.Home != nil && owner != "" && claim.Labels[LabelManagedBy] == Manager &&
		claim.Labels[LabelKernelsOf] == o.Namespace && claim.Name == o.Policy.homeOf(owner)
}
