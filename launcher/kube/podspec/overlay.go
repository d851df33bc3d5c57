package podspec

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// overlay is the part of a pod that a kernelspec can change. Fields of a pod that are not in these types cannot be set:
// names, other containers (see extraContainer), the restart policy, host namespaces.
type overlay struct {
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
	Containers                    []overlayContainer                `json:"containers,omitempty"` // at most the kernel's
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

type overlayContainer struct {
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

// asOverlay returns the short keys as an overlay.
func (e *extension) asOverlay() overlay {
	c := overlayContainer{Name: ContainerKernel, Env: e.Env, Image: e.Image, ImagePullPolicy: e.ImagePullPolicy,
		SecurityContext: e.SecurityContext, VolumeMounts: e.VolumeMounts, WorkingDir: e.WorkingDir}
	if e.Resources.Limits != nil || e.Resources.Requests != nil || e.Resources.Claims != nil {
		c.Resources = &e.Resources
	}
	return overlay{
		Metadata: overlayMetadata{Labels: e.Labels, Annotations: e.Annotations},
		Spec: overlaySpec{Affinity: e.Affinity, Containers: []overlayContainer{c}, ImagePullSecrets: e.ImagePullSecrets,
			NodeSelector: e.NodeSelector, PriorityClassName: e.PriorityClassName, ResourceClaims: e.ResourceClaims,
			RuntimeClassName: e.RuntimeClassName, SchedulerName: e.SchedulerName, ServiceAccountName: e.ServiceAccountName,
			TerminationGracePeriodSeconds: e.TerminationGracePeriodSeconds, Tolerations: e.Tolerations, Volumes: e.Volumes},
	}
}

// kernel returns the overlay of the kernel's container, which may be empty.
func (o *overlay) kernel() overlayContainer {
	if len(o.Spec.Containers) == 0 {
		return overlayContainer{Name: ContainerKernel}
	}
	return o.Spec.Containers[0]
}

// empty reports whether the overlay changes nothing.
func (o *overlay) empty() bool {
	return reflect.ValueOf(*o).IsZero()
}

// applyOverlay returns the pod with an overlay applied by Kubernetes' strategic merge: containers, volumes and
// variables are merged by name, mounts by path, and other lists are replaced.
func applyOverlay(pod *corev1.Pod, o overlay) (*corev1.Pod, error) {
	c := o.kernel()
	c.Name = ContainerKernel
	o.Spec.Containers = []overlayContainer{c}
	pod = pod.DeepCopy()
	k := kernelOf(pod)
	k.Env = slices.DeleteFunc(k.Env, func(e corev1.EnvVar) bool { // else a value and a valueFrom would be merged
		return slices.ContainsFunc(c.Env, func(over corev1.EnvVar) bool { return over.Name == e.Name })
	})
	original, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	patch, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return strategicMerge(original, patch)
}

// strategicMerge applies a strategic merge patch to a pod.
func strategicMerge(original, patch []byte) (*corev1.Pod, error) {
	result, err := strategicpatch.StrategicMergePatch(original, patch, corev1.Pod{})
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(result, pod); err != nil {
		return nil, err
	}
	// A patch puts what is new first. The order of containers is that of their start.
	slices.SortStableFunc(pod.Spec.Containers, func(a, b corev1.Container) int {
		return strings.Compare(b.Name, a.Name) // supervisor, kernel
	})
	own := func(v corev1.Volume) int {
		if i := slices.Index(reservedVolumes, v.Name); i >= 0 {
			return i
		}
		return len(reservedVolumes)
	}
	slices.SortStableFunc(pod.Spec.Volumes, func(a, b corev1.Volume) int { return own(a) - own(b) })
	return pod, nil
}
