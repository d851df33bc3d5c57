package podspec

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// Annotations of pods with a flavor. LabelFlavor has the flavor's name too, see LabelValue.
const (
	annotationFlavor = Domain + "flavor" // the flavor's name
	AnnotationGPUs   = Domain + "gpus"   // gpu.Amount that limits and GPU hours count, for example "0.25"

	// LabelFlavor selects the pods of one flavor.
	LabelFlavor = annotationFlavor
)

// Resources of the kinds of flavors.
const (
	resourceGPUMem        corev1.ResourceName = "aliyun.com/gpu-mem"
	resourceGPUMemCore    corev1.ResourceName = "aliyun.com/gpu-core.percentage"
	resourceReplica       corev1.ResourceName = "nvidia.com/gpu.shared" // renameByDefault of NVIDIA/k8s-device-plugin
	resourceHAMiMemory    corev1.ResourceName = "nvidia.com/gpumem"     // MiB of each GPU
	resourceHAMiPercent   corev1.ResourceName = "nvidia.com/gpumem-percentage"
	resourceHAMiCores     corev1.ResourceName = "nvidia.com/gpucores" // percent of each GPU
	prefixMIG                                 = "nvidia.com/mig-"
	strategySingle                            = "single"
	ClaimOfFlavor                             = "gpu" // name of the claim in the pod
	claimTemplatePrefix                       = "ekg-flavor-"
	maxClaimTemplateDigit                     = 10 // hexadecimal digits of the claim template's content in its name
)

// FlavorRequest is what a flavor asks for in a pod.
type FlavorRequest struct {
	// Counted is the resource that says how many GPUs or units are asked for, Amount how many; "" for a claim and for
	// nothing. Others depend on it.
	Counted corev1.ResourceName
	Amount  int64
	Others  map[corev1.ResourceName]int64

	// Scalable: KERNEL_GPUS may change Amount.
	Scalable bool

	Template string // of the resource claim; "" for none
}

// RequestOf returns what a flavor asks for, by its kind.
func RequestOf(f *flavor.Flavor) FlavorRequest {
	switch {
	case f.GPU != nil:
		return wholeGPUs(f.GPU)
	case f.MIG != nil:
		return migSlices(f.MIG)
	case f.Replica != nil:
		return gpuReplica(f.Replica)
	case f.GPUMem != nil:
		return gpuMemory(f.GPUMem)
	case f.HAMi != nil:
		return hamiShare(f.HAMi)
	case f.DRA != nil:
		return resourceClaim(f)
	case f.Resource != nil:
		return extendedResource(f.Resource)
	}
	return FlavorRequest{}
}

func wholeGPUs(d *flavor.Devices) FlavorRequest {
	return FlavorRequest{Counted: defaultGPU, Amount: flavor.Count(d.Count), Scalable: true}
}

func migSlices(m *flavor.MIG) FlavorRequest {
	r := FlavorRequest{Counted: prefixMIG + corev1.ResourceName(m.Profile), Amount: flavor.Count(m.Count), Scalable: true}
	if m.Strategy == strategySingle {
		r.Counted = defaultGPU
	}
	return r
}

// gpuReplica asks for one replica: several give a kernel no more of a GPU, and some plugins reject them.
func gpuReplica(d *flavor.Replica) FlavorRequest {
	r := FlavorRequest{Counted: resourceReplica, Amount: 1}
	if d.Resource != "" {
		r.Counted = corev1.ResourceName(d.Resource)
	}
	return r
}

func gpuMemory(m *flavor.GPUMem) FlavorRequest {
	r := FlavorRequest{Counted: resourceGPUMem, Amount: m.Units}
	if m.CorePercent > 0 {
		r.Others = map[corev1.ResourceName]int64{resourceGPUMemCore: m.CorePercent}
	}
	return r
}

func hamiShare(h *flavor.HAMi) FlavorRequest {
	r := FlavorRequest{Counted: defaultGPU, Amount: flavor.Count(h.Count), Scalable: true,
		Others: map[corev1.ResourceName]int64{}}
	for name, n := range map[corev1.ResourceName]int64{
		resourceHAMiMemory: h.MemoryMiB, resourceHAMiPercent: h.MemoryPercent, resourceHAMiCores: h.CorePercent,
	} {
		if n > 0 {
			r.Others[name] = n
		}
	}
	return r
}

func extendedResource(e *flavor.Extended) FlavorRequest {
	return FlavorRequest{Counted: corev1.ResourceName(e.Name), Amount: flavor.Count(e.Count), Scalable: true}
}

func resourceClaim(f *flavor.Flavor) FlavorRequest {
	if f.DRA.Template != "" {
		return FlavorRequest{Template: f.DRA.Template}
	}
	return FlavorRequest{Template: claimTemplateName(f)}
}

// GPUs returns how many GPUs a pod counts as for limits and GPU hours.
func GPUs(pod *corev1.Pod) gpu.Amount {
	if text, ok := pod.Annotations[AnnotationGPUs]; ok {
		if a, err := gpu.ParseAmount(text); err == nil {
			return a
		}
	}
	return gpu.Whole(GPURequestOf(pod).Count())
}

// claimTemplateName returns the name of the claim template that ekg creates for a flavor. The name changes with the
// content, because the content of a template cannot change.
func claimTemplateName(f *flavor.Flavor) string {
	text, err := json.Marshal(claimSpec(f.DRA))
	if err != nil {
		panic("podspec: a claim cannot be encoded: " + err.Error()) // it has only strings and numbers
	}
	sum := sha256.Sum256(text)
	return claimTemplatePrefix + f.Name + "-" + hex.EncodeToString(sum[:])[:maxClaimTemplateDigit]
}

// ClaimTemplate returns the resource claim template that the pods of a flavor need in a namespace. It returns nil if
// the flavor needs none, or names one that the operator has made.
func ClaimTemplate(f *flavor.Flavor, namespace string) *resourcev1.ResourceClaimTemplate {
	if f == nil || f.DRA == nil || f.DRA.Template != "" {
		return nil
	}
	return &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      claimTemplateName(f),
			Labels:    map[string]string{LabelManagedBy: Manager, LabelFlavor: f.Name},
		},
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: claimSpec(f.DRA)},
	}
}

// claimSpec returns the claim of a flavor (Kubernetes API, resource.k8s.io/v1).
func claimSpec(d *flavor.DRA) resourcev1.ResourceClaimSpec {
	selectors := func(r *flavor.Request) (list []resourcev1.DeviceSelector) {
		for _, expression := range r.Selectors {
			list = append(list, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: expression}})
		}
		return list
	}
	request := resourcev1.DeviceRequest{Name: ClaimOfFlavor}
	if len(d.FirstAvailable) == 0 {
		request.Exactly = &resourcev1.ExactDeviceRequest{
			DeviceClassName: d.DeviceClass,
			Selectors:       selectors(&d.Request),
			AllocationMode:  resourcev1.DeviceAllocationModeExactCount,
			Count:           flavor.Count(d.Count),
		}
	}
	for i := range d.FirstAvailable {
		r := &d.FirstAvailable[i]
		request.FirstAvailable = append(request.FirstAvailable, resourcev1.DeviceSubRequest{
			Name:            "choice-" + strconv.Itoa(i+1),
			DeviceClassName: r.DeviceClass,
			Selectors:       selectors(r),
			AllocationMode:  resourcev1.DeviceAllocationModeExactCount,
			Count:           flavor.Count(r.Count),
		})
	}
	return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{request}}}
}
