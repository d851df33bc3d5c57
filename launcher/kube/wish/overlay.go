package wish

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Overlay is the part of a pod that a kernelspec can change. Fields of a pod that are not in these types cannot be set:
// names, other containers (see ExtraContainer), the restart policy, host namespaces.
type Overlay struct {
	Metadata overlayMetadata `json:"metadata,omitzero"`
	Spec     overlaySpec     `json:"spec,omitzero"`
}

type overlayMetadata struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type overlaySpec struct {
	ActiveDeadlineSeconds         *int64                            `json:"activeDeadlineSeconds,omitempty"`
	Affinity                      *corev1.Affinity                  `json:"affinity,omitempty"`
	Containers                    []OverlayContainer                `json:"containers,omitempty"` // at most the kernel's
	DNSConfig                     *corev1.PodDNSConfig              `json:"dnsConfig,omitempty"`
	DNSPolicy                     corev1.DNSPolicy                  `json:"dnsPolicy,omitempty"`
	HostAliases                   []corev1.HostAlias                `json:"hostAliases,omitempty"`
	HostUsers                     *bool                             `json:"hostUsers,omitempty"`
	ImagePullSecrets              []corev1.LocalObjectReference     `json:"imagePullSecrets,omitempty"`
	NodeSelector                  map[string]string                 `json:"nodeSelector,omitempty"`
	PreemptionPolicy              *corev1.PreemptionPolicy          `json:"preemptionPolicy,omitempty"`
	PriorityClassName             string                            `json:"priorityClassName,omitempty"`
	ResourceClaims                []corev1.PodResourceClaim         `json:"resourceClaims,omitempty"`
	RuntimeClassName              *string                           `json:"runtimeClassName,omitempty"`
	SchedulerName                 string                            `json:"schedulerName,omitempty"`
	SecurityContext               *overlaySecurity                  `json:"securityContext,omitempty"`
	ServiceAccountName            string                            `json:"serviceAccountName,omitempty"`
	TerminationGracePeriodSeconds *int64                            `json:"terminationGracePeriodSeconds,omitempty"`
	Tolerations                   []corev1.Toleration               `json:"tolerations,omitempty"`
	TopologySpreadConstraints     []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
	Volumes                       []corev1.Volume                   `json:"volumes,omitempty"`
}

// overlaySecurity is the part of the pod's security context that a kernelspec can change. Users are set per container,
// because the supervisor's container has a user of its own.
type overlaySecurity struct {
	FSGroup                  *int64                           `json:"fsGroup,omitempty"`
	FSGroupChangePolicy      *corev1.PodFSGroupChangePolicy   `json:"fsGroupChangePolicy,omitempty"`
	SELinuxChangePolicy      *corev1.PodSELinuxChangePolicy   `json:"seLinuxChangePolicy,omitempty"`
	SELinuxOptions           *corev1.SELinuxOptions           `json:"seLinuxOptions,omitempty"`
	SupplementalGroups       []int64                          `json:"supplementalGroups,omitempty"`
	SupplementalGroupsPolicy *corev1.SupplementalGroupsPolicy `json:"supplementalGroupsPolicy,omitempty"`
}

// OverlayContainer is the part of the kernel's container that a kernelspec can change.
type OverlayContainer struct {
	Name            string                       `json:"name,omitempty"`
	Env             []corev1.EnvVar              `json:"env,omitempty"`
	EnvFrom         []corev1.EnvFromSource       `json:"envFrom,omitempty"`
	Image           string                       `json:"image,omitempty"`
	ImagePullPolicy corev1.PullPolicy            `json:"imagePullPolicy,omitempty"`
	Resources       *corev1.ResourceRequirements `json:"resources,omitempty"`
	SecurityContext *corev1.SecurityContext      `json:"securityContext,omitempty"`
	VolumeDevices   []corev1.VolumeDevice        `json:"volumeDevices,omitempty"`
	VolumeMounts    []corev1.VolumeMount         `json:"volumeMounts,omitempty"`
	WorkingDir      string                       `json:"workingDir,omitempty"`
}

// AsOverlay returns the short keys as an overlay.
func (e *Extension) AsOverlay() Overlay {
	c := OverlayContainer{Name: podspec.ContainerKernel, Env: e.Env, Image: e.Image, ImagePullPolicy: e.ImagePullPolicy,
		SecurityContext: e.SecurityContext, VolumeMounts: e.VolumeMounts, WorkingDir: e.WorkingDir}
	if e.Resources.Limits != nil || e.Resources.Requests != nil || e.Resources.Claims != nil {
		c.Resources = &e.Resources
	}
	return Overlay{
		Metadata: overlayMetadata{Labels: e.Labels, Annotations: e.Annotations},
		Spec: overlaySpec{Affinity: e.Affinity, Containers: []OverlayContainer{c}, ImagePullSecrets: e.ImagePullSecrets,
			NodeSelector: e.NodeSelector, PriorityClassName: e.PriorityClassName, ResourceClaims: e.ResourceClaims,
			RuntimeClassName: e.RuntimeClassName, SchedulerName: e.SchedulerName, ServiceAccountName: e.ServiceAccountName,
			TerminationGracePeriodSeconds: e.TerminationGracePeriodSeconds, Tolerations: e.Tolerations, Volumes: e.Volumes},
	}
}

// Kernel returns the overlay of the kernel's container, which may be empty.
func (o *Overlay) Kernel() OverlayContainer {
	if len(o.Spec.Containers) == 0 {
		return OverlayContainer{Name: podspec.ContainerKernel}
	}
	return o.Spec.Containers[0]
}

// empty reports whether the overlay changes nothing.
func (o *Overlay) empty() bool {
	return reflect.ValueOf(*o).IsZero()
}
