// Package podspec says what the pod of a kernel is: the names of its parts, its labels and annotations, the record that
// these are, its secret and keys, and what it asks for of GPUs. Package wish says what may be wished of a pod, and
// package podbuild makes it. Begin with Record.
//
// Everything is a pure function of its arguments, and may be called concurrently.
package podspec

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// reservedKeys are labels and annotations that kernelspecs cannot set: ekg's own, and those that would weaken a
// container's security context. Entries that end in "/" are prefixes.
var reservedKeys = []string{
	Domain,
	LabelManagedBy,
	LabelName,
	LabelComponent,
	AnnotationSafeToEvict,
	AnnotationDoNotDisrupt,
	AnnotationDefaultContainer,
	AnnotationIstio,
	AnnotationLinkerd,
	"container.apparmor.security.beta.kubernetes.io/",
	"container.seccomp.security.alpha.kubernetes.io/",
	"seccomp.security.alpha.kubernetes.io/",
	"security.alpha.kubernetes.io/",
}

// IsReserved reports whether kernelspecs and policies cannot set a label or an annotation.
func IsReserved(key string) bool {
	return slices.ContainsFunc(reservedKeys, func(r string) bool {
		return key == r || strings.HasSuffix(r, "/") && strings.HasPrefix(key, r)
	})
}

// Labels and annotations of a kernel's pod besides those of its record.
const (
	LabelName      = "app.kubernetes.io/name"
	LabelComponent = "app.kubernetes.io/component"

	AnnotationSafeToEvict      = "cluster-autoscaler.kubernetes.io/safe-to-evict" // "false" unless the pod may be evicted
	AnnotationDoNotDisrupt     = "karpenter.sh/do-not-disrupt"                    // "true" unless the pod may be evicted
	AnnotationDefaultContainer = "kubectl.kubernetes.io/default-container"
	AnnotationIstio            = "sidecar.istio.io/inject" // a mesh's sidecar would outlive the kernel
	AnnotationLinkerd          = "linkerd.io/inject"
	AnnotationLaunchTimeout    = Domain + "launch-timeout"  // KERNEL_LAUNCH_TIMEOUT in whole seconds
	AnnotationRequestedName    = Domain + "wanted-pod-name" // KERNEL_POD_NAME, which names no pod
)

// Ports, users and paths that the programs of both containers agree on.
const (
	// SupervisorPort is the TCP port on which a supervisor serves its kernel.
	SupervisorPort     = 8889
	SupervisorPortName = "supervisor"
	SupervisorID       = 65532 // user and group of the supervisor's container

	SecretDir = "/ekg-secret"
	SpillDir  = "/ekg-spill"
	ShmDir    = "/dev/shm"
	// TokenDir is where a pod finds the token of its service account. Every client of Kubernetes looks there.
	TokenDir = "/var/run/secrets/kubernetes.io/serviceaccount"

	VolumeShared = "ekg"
	VolumeSecret = "secret"
	VolumeSpill  = "spill"
	VolumeHome   = "home"
	VolumeShm    = "dshm"

	VolumeOwnerHome = "owner-home" // wish.Policy.Home
	VolumeToken     = "ekg-token"  // the service account's

	// VolumeCommon begins the names of the volumes of wish.Policy.Shared. Their numbers in the list follow.
	VolumeCommon = "ekg-shared-"
)

var (
	// ReservedVolumes are the names of ekg's own volumes.
	ReservedVolumes = []string{VolumeShared, VolumeSecret, VolumeSpill, VolumeHome, VolumeShm, VolumeOwnerHome,
		VolumeToken}
	// ReservedPaths cannot be mounted over in the kernel's container.
	ReservedPaths = []string{api.PodSharedDir, SecretDir, SpillDir, api.PodHomeDir, api.PodTerminationLog, "/proc", "/sys"}
)

// KernelOf returns the container of a pod that runs the kernel, or nil.
func KernelOf(pod *corev1.Pod) *corev1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == ContainerKernel {
			return &pod.Spec.Containers[i]
		}
	}
	return nil
}

// ReservedVolume reports whether a name is that of one of ekg's own volumes, which kernelspecs cannot use.
func ReservedVolume(name string) bool {
	return slices.Contains(ReservedVolumes, name) || strings.HasPrefix(name, VolumeCommon)
}
