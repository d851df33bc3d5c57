// Package wish reads what kernelspecs and clients wish of a kernel's pod, and refuses what the operator's policy does
// not allow. Policy.Read turns metadata.ekg of a kernelspec into an Extension, and Policy.Client the KERNEL_* variables
// of a client into Choices. It makes no pod: package podbuild does, from what is allowed.
//
// Everything is a pure function of its arguments, and may be called concurrently.
package wish

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

// EntrypointKeep is the value of metadata.ekg.entrypoint for images whose ENTRYPOINT must run before the kernel.
const EntrypointKeep = "keep"

// Prefixes of the keys that problems name.
const (
	extensionPath = "metadata.ekg"
	overlayPath   = extensionPath + ".pod"
)

// Extension is metadata.ekg of a kernelspec that describes a pod. Most keys are short keys: fields of a Kubernetes pod
// or container under their own names. Pod has the same fields, and more, in the shape of a pod.
type Extension struct {
	Transport string `json:"transport,omitempty"` // ignored: the containers of a pod share no directory for sockets

	Launcher string                `json:"launcher,omitempty"` // kernelspecs.Spec.Launcher has it
	Flavor   string                `json:"flavor,omitempty"`   // the gateway has read it
	Profiles []kernelspecs.Profile `json:"profiles,omitempty"` // the gateway has applied one, or none
	Warm     int                   `json:"warm,omitempty"`     // kernels that are kept ready

	Cull   kernelspecs.CullTimes `json:"cull,omitzero"`
	Limits kernelspecs.Limits    `json:"limits,omitzero"`
	Park   *bool                 `json:"park,omitempty"` // false: it keeps a GPU that it takes turns at; nil: as true

	Image            string                        `json:"image,omitempty"`
	ImagePullPolicy  corev1.PullPolicy             `json:"imagePullPolicy,omitempty"`
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	ImageKernelspec  string                        `json:"imageKernelspec,omitempty"` // whose argv is run, in the image
	Entrypoint       string                        `json:"entrypoint,omitempty"`      // "" or EntrypointKeep
	WorkingDir       string                        `json:"workingDir,omitempty"`

	Resources      corev1.ResourceRequirements `json:"resources,omitempty"`
	ResourceClaims []corev1.PodResourceClaim   `json:"resourceClaims,omitempty"`
	ShmSize        *resource.Quantity          `json:"shmSize,omitempty"` // of /dev/shm; nil: see podbuild

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

	InitContainers []ExtraContainer  `json:"initContainers,omitempty"` // before the kernel starts
	Containers     []ExtraContainer  `json:"containers,omitempty"`     // beside the kernel
	Lifecycle      *corev1.Lifecycle `json:"lifecycle,omitempty"`      // of the kernel's container

	ServiceAccountToken bool                   `json:"serviceAccountToken,omitempty"` // the kernel gets it
	Ports               []corev1.ContainerPort `json:"ports,omitempty"`               // for the kernel's workers

	Objects []SpecObject `json:"objects,omitempty"` // created with the pod

	Labels                        map[string]string `json:"labels,omitempty"`
	Annotations                   map[string]string `json:"annotations,omitempty"`
	TerminationGracePeriodSeconds *int64            `json:"terminationGracePeriodSeconds,omitempty"`

	Pod Overlay `json:"pod,omitzero"`
}

// ShortPath returns the key of a short key's value in the kernelspec.
func ShortPath(key string) string { return extensionPath + "." + key }

// podPath returns the key of the same value under metadata.ekg.pod.
func podPath(key string) string {
	switch key, _, _ := strings.Cut(key, "."); key {
	case "labels", "annotations":
		return overlayPath + ".metadata." + key
	case "env", "envFrom", "image", "imagePullPolicy", "resources", "securityContext",
		"volumeDevices", "volumeMounts", "workingDir":
		return overlayPath + ".spec.containers[0]." + key
	case "podSecurityContext":
		return overlayPath + ".spec.securityContext"
	}
	return overlayPath + ".spec." + key
}

// Read decodes metadata.ekg for a kernel of this owner and checks it against the policy. Problems have the line of
// their key. A kernelspec without any key for pods may be meant for processes of this machine, and needs no image. Nor
// does one if there is an image for kernelspecs that name none.
func (p *Policy) Read(spec kernelspecs.Spec, owner, image string) (Extension, []kernelspecs.Problem) {
	var e Extension
	places, problems := spec.DecodeExtension(&e)
	if len(problems) > 0 {
		return e, problems
	}
	c := checker{bounds: p.Kernelspecs.forOwner(owner, p.OwnerNames), nonRoot: p.NonRoot,
		spec: &p.Kernelspecs, policyLabels: p.Labels,
		tokens:         p.Kernelspecs.ServiceAccountTokens.forOwner(owner, p.OwnerNames),
		storageClasses: p.Kernelspecs.StorageClasses}
	c.found = e.fillOwner(owner, p.OwnerNames)
	c.extension(&e)
	if spec.Launcher != nil && e.ImageKernelspec != "" {
		c.refuse(ShortPath("imageKernelspec"),
			"cannot be used with a launcher of Enterprise Gateway, which starts the kernel by itself")
	}
	if e.Image == "" && e.Pod.Kernel().Image == "" && spec.Image != "" {
		e.Image = spec.Image
		c.keyAllowed(kernelspecs.ImageNamePath, "image")
		c.image(kernelspecs.ImageNamePath, spec.Image)
	}
	for _, r := range c.found {
		problems = append(problems, places.Problem(r.path, r.text))
	}
	slices.SortStableFunc(problems, func(a, b kernelspecs.Problem) int { return a.Line - b.Line })
	podKeys := e
	podKeys.Transport, podKeys.Flavor, podKeys.Cull, podKeys.Limits = "", "", kernelspecs.CullTimes{}, kernelspecs.Limits{}
	podKeys.Profiles, podKeys.Warm, podKeys.Park = nil, 0, nil
	if reflect.ValueOf(podKeys).IsZero() && image == "" {
		return e, problems
	}
	if e.Image == "" && e.Pod.Kernel().Image == "" && image == "" &&
		!slices.Contains(p.Clients.Allow, "KERNEL_IMAGE") {
		problems = append(problems, places.Problem(ShortPath("image"), "is missing: the kernel has no image to run in"))
	}
	for i, arg := range spec.Argv {
		if spec.Launcher != nil && e.Launcher == "" {
			break // the image's own program runs
		}
		for _, name := range []string{"{resource_dir}", "{prefix}"} {
			if strings.Contains(arg, name) {
				problems = append(problems, places.Problem(fmt.Sprintf("argv[%d]", i),
					name+" is a directory on the gateway's machine, which a pod does not have; write a path of the image"))
			}
		}
	}
	return e, problems
}

// FlavorProblems returns the flavors that a kernelspec or its profiles name and the operator does not have. If flavors
// is nil, they are not known.
func FlavorProblems(spec kernelspecs.Spec, flavors map[string]flavor.Flavor) (all []kernelspecs.Problem) {
	if flavors == nil {
		return nil
	}
	var e Extension
	places, _ := spec.DecodeExtension(&e) // it has no problems
	unknown := func(where, name string) {
		if _, known := flavors[name]; name != "" && !known {
			all = append(all, places.Problem(where, fmt.Sprintf("%q is not in the file of flavors, which has: %s", name,
				listOrNothing(slices.Sorted(maps.Keys(flavors))))))
		}
	}
	unknown(ShortPath("flavor"), e.Flavor)
	for i, p := range e.Profiles {
		unknown(fmt.Sprintf("%s[%d].flavor", ShortPath("profiles"), i), p.Flavor)
	}
	return all
}

// ProfileProblems returns the problems that a kernelspec has with one of its profiles, and not without. They have the
// line of the profile.
func (p *Policy) ProfileProblems(spec kernelspecs.Spec, image string) (all []kernelspecs.Problem) {
	var e Extension
	places, _ := spec.DecodeExtension(&e) // it has no problems
	for i, profile := range e.Profiles {
		where := fmt.Sprintf("%s[%d]", ShortPath("profiles"), i)
		with, _, err := spec.WithProfile(profile.Name)
		if err != nil {
			all = append(all, places.Problem(where, err.Error()))
			continue
		}
		_, problems := p.Read(with, ExampleOwner, image)
		for _, problem := range problems {
			all = append(all, places.Problem(where, "with this profile, "+problem.Key+": "+problem.Message))
		}
	}
	return all
}
