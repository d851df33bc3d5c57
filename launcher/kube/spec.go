package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// entrypointKeep is the value of metadata.ekg.entrypoint for images whose ENTRYPOINT must run.
const entrypointKeep = "keep"

// Where the places of a kernelspec begin.
const (
	extensionPath = "metadata.ekg"
	overlayPath   = extensionPath + ".pod"
)

// extension is metadata.ekg of a kernelspec as far as it says how the kernel's pod looks. Most keys are those of a
// Kubernetes pod or container under their own name; Pod is the same in the shape of a pod.
type extension struct {
	Transport string `json:"transport,omitempty"` // means nothing here: the containers of a pod share no files to hold sockets

	Cull   kernelspecs.Cull   `json:"cull,omitzero"`
	Limits kernelspecs.Limits `json:"limits,omitzero"`

	Image            string                        `json:"image,omitempty"`
	ImagePullPolicy  corev1.PullPolicy             `json:"imagePullPolicy,omitempty"`
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	ImageKernelspec  string                        `json:"imageKernelspec,omitempty"` // kernelspec inside the image whose argv is run
	Entrypoint       string                        `json:"entrypoint,omitempty"`      // "" or entrypointKeep
	WorkingDir       string                        `json:"workingDir,omitempty"`

	Resources      corev1.ResourceRequirements `json:"resources,omitempty"`
	ResourceClaims []corev1.PodResourceClaim   `json:"resourceClaims,omitempty"`
	ShmSize        *resource.Quantity          `json:"shmSize,omitempty"` // of /dev/shm; nil: defaultShmSize with a GPU, else the runtime's own

	NodeSelector      map[string]string   `json:"nodeSelector,omitempty"`
	Tolerations       []corev1.Toleration `json:"tolerations,omitempty"`
	Affinity          *corev1.Affinity    `json:"affinity,omitempty"`
	PriorityClassName string              `json:"priorityClassName,omitempty"`
	RuntimeClassName  *string             `json:"runtimeClassName,omitempty"`
	SchedulerName     string              `json:"schedulerName,omitempty"`

	Volumes            []corev1.Volume         `json:"volumes,omitempty"`
	VolumeMounts       []corev1.VolumeMount    `json:"volumeMounts,omitempty"`
	Env                []corev1.EnvVar         `json:"env,omitempty"`
	SecurityContext    *corev1.SecurityContext `json:"securityContext,omitempty"`
	ServiceAccountName string                  `json:"serviceAccountName,omitempty"`

	Labels                        map[string]string `json:"labels,omitempty"`
	Annotations                   map[string]string `json:"annotations,omitempty"`
	TerminationGracePeriodSeconds *int64            `json:"terminationGracePeriodSeconds,omitempty"`

	Pod overlay `json:"pod,omitzero"`
}

// overlay is what can be laid over a kernel's pod: the part of a pod that is not ekg's own. What is not in these types
// cannot be set at all: names, other containers, the restart policy, host namespaces, the service account's token.
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

// overlaySecurity is what the whole pod's security context may hold; the supervisor's container has its own user.
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

// short is the short keys in the shape of an overlay.
func (e *extension) short() overlay {
	c := overlayContainer{Name: containerKernel, Env: e.Env, Image: e.Image, ImagePullPolicy: e.ImagePullPolicy,
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

// kernel is the overlay's container of the kernel, an empty one if it has none.
func (o *overlay) kernel() overlayContainer {
	if len(o.Spec.Containers) == 0 {
		return overlayContainer{Name: containerKernel}
	}
	return o.Spec.Containers[0]
}

// shortPath and podPath name a value of the pod, by its name there, as the kernelspec's author wrote it.
func shortPath(key string) string { return extensionPath + "." + key }

func podPath(key string) string {
	switch key, _, _ := strings.Cut(key, "."); key {
	case "labels", "annotations":
		return overlayPath + ".metadata." + key
	case "env", "envFrom", "image", "imagePullPolicy", "resources", "securityContext", "volumeDevices", "volumeMounts", "workingDir":
		return overlayPath + ".spec.containers[0]." + key
	case "podSecurityContext":
		return overlayPath + ".spec.securityContext"
	}
	return overlayPath + ".spec." + key
}

// readExtension decodes and checks metadata.ekg against the policy. The problems have their places. A kernelspec that says
// nothing of a pod may be meant for a process of this machine: then nothing is missing in it.
func (o PodOptions) readExtension(spec kernelspecs.Spec) (extension, []kernelspecs.Problem) {
	var e extension
	policy := o.Policy
	places, problems := spec.DecodeExtension(&e)
	if len(problems) > 0 {
		return e, problems
	}
	c := checker{bounds: &policy.Kernelspecs.Bounds, nonRoot: policy.NonRoot, spec: &policy.Kernelspecs}
	c.extension(&e)
	for _, p := range c.found {
		problems = append(problems, places.Problem(p.path, p.text))
	}
	slices.SortStableFunc(problems, func(a, b kernelspecs.Problem) int { return a.Line - b.Line })
	nothing := e
	nothing.Transport, nothing.Cull, nothing.Limits = "", kernelspecs.Cull{}, kernelspecs.Limits{}
	if reflect.ValueOf(nothing).IsZero() && o.KernelImage == "" {
		return e, problems
	}
	if e.Image == "" && e.Pod.kernel().Image == "" && o.KernelImage == "" && !slices.Contains(policy.Clients.Allow, "KERNEL_IMAGE") {
		problems = append(problems, places.Problem(shortPath("image"), "is missing: there is nothing that the kernel could run in"))
	}
	for i, arg := range spec.Argv {
		for _, name := range []string{"{resource_dir}", "{prefix}"} {
			if strings.Contains(arg, name) {
				problems = append(problems, places.Problem(fmt.Sprintf("argv[%d]", i),
					name+" is a directory of the gateway's machine, which a pod does not have: write a path of the image"))
			}
		}
	}
	return e, problems
}

// Check returns a function that says what is wrong with a kernelspec whose kernels run as pods: what kernelspecs.Options and
// kernelspecs.Check ask for. The function may be called concurrently.
func (o PodOptions) Check() func(kernelspecs.Spec) []kernelspecs.Problem {
	o = o.withDefaults()
	return func(spec kernelspecs.Spec) []kernelspecs.Problem {
		_, problems := o.readExtension(spec)
		return problems
	}
}

// merged lays an overlay over a pod, by Kubernetes' strategic merge: containers, volumes and variables by name, mounts by
// path, other lists as a whole.
func merged(pod *corev1.Pod, o overlay) (*corev1.Pod, error) {
	c := o.kernel()
	c.Name = containerKernel
	o.Spec.Containers = []overlayContainer{c}
	pod = pod.DeepCopy()
	k := kernelOf(pod)
	k.Env = slices.DeleteFunc(k.Env, func(e corev1.EnvVar) bool { // a value and a valueFrom would be joined
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
	return mergePod(original, patch)
}

// volumeSource names the kind of a volume, and says how many it has.
func volumeSource(s corev1.VolumeSource) (kind string, n int) {
	b, err := json.Marshal(s)
	if err != nil {
		return "", 0
	}
	var kinds map[string]json.RawMessage
	if err := json.Unmarshal(b, &kinds); err != nil {
		return "", 0
	}
	names := slices.Sorted(maps.Keys(kinds))
	return strings.Join(names, " and "), len(names)
}
