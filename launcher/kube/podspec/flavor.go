package podspec

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// Annotations of pods with a flavor. LabelFlavor has the flavor's name too, see LabelValue.
const (
	annotationFlavor = Domain + "flavor" // the flavor's name
	annotationGPUs   = Domain + "gpus"   // gpu.Amount that limits and GPU hours count, for example "0.25"

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
	claimOfFlavor                             = "gpu" // name of the claim in the pod
	claimTemplatePrefix                       = "ekg-flavor-"
	maxClaimTemplateDigit                     = 10 // hexadecimal digits of the claim template's content in its name
)

// flavorRequest is what a flavor asks for in a pod.
type flavorRequest struct {
	// counted is the resource that says how many GPUs or units are asked for, amount how many; "" for a claim and for
	// nothing. others depend on it.
	counted corev1.ResourceName
	amount  int64
	others  map[corev1.ResourceName]int64

	// scalable: KERNEL_GPUS may change amount.
	scalable bool

	template string // of the resource claim; "" for none
}

// requestOf returns what a flavor asks for, by its kind.
func requestOf(f *flavor.Flavor) flavorRequest {
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
	return flavorRequest{}
}

func wholeGPUs(d *flavor.Devices) flavorRequest {
	return flavorRequest{counted: defaultGPU, amount: flavor.Count(d.Count), scalable: true}
}

func migSlices(m *flavor.MIG) flavorRequest {
	r := flavorRequest{counted: prefixMIG + corev1.ResourceName(m.Profile), amount: flavor.Count(m.Count), scalable: true}
	if m.Strategy == strategySingle {
		r.counted = defaultGPU
	}
	return r
}

// gpuReplica asks for one replica: several give a kernel no more of a GPU, and some plugins reject them.
func gpuReplica(d *flavor.Replica) flavorRequest {
	r := flavorRequest{counted: resourceReplica, amount: 1}
	if d.Resource != "" {
		r.counted = corev1.ResourceName(d.Resource)
	}
	return r
}

func gpuMemory(m *flavor.GPUMem) flavorRequest {
	r := flavorRequest{counted: resourceGPUMem, amount: m.Units}
	if m.CorePercent > 0 {
		r.others = map[corev1.ResourceName]int64{resourceGPUMemCore: m.CorePercent}
	}
	return r
}

func hamiShare(h *flavor.HAMi) flavorRequest {
	r := flavorRequest{counted: defaultGPU, amount: flavor.Count(h.Count), scalable: true,
		others: map[corev1.ResourceName]int64{}}
	for name, n := range map[corev1.ResourceName]int64{
		resourceHAMiMemory: h.MemoryMiB, resourceHAMiPercent: h.MemoryPercent, resourceHAMiCores: h.CorePercent,
	} {
		if n > 0 {
			r.others[name] = n
		}
	}
	return r
}

func extendedResource(e *flavor.Extended) flavorRequest {
	return flavorRequest{counted: corev1.ResourceName(e.Name), amount: flavor.Count(e.Count), scalable: true}
}

func resourceClaim(f *flavor.Flavor) flavorRequest {
	if f.DRA.Template != "" {
		return flavorRequest{template: f.DRA.Template}
	}
	return flavorRequest{template: claimTemplateName(f)}
}

// applyFlavor replaces the GPUs and the resource claims of the kernelspec by those of the flavor. A pod with both would
// ask for two kinds of GPUs. Node labels of the flavor override those of the kernelspec.
func applyFlavor(pod *corev1.Pod, f *flavor.Flavor) {
	k := kernelOf(pod)
	for _, amounts := range []corev1.ResourceList{k.Resources.Requests, k.Resources.Limits} {
		maps.DeleteFunc(amounts, func(name corev1.ResourceName, _ resource.Quantity) bool {
			return gpuResourceOf(name).unit != gpuNone
		})
	}
	pod.Spec.ResourceClaims, k.Resources.Claims = nil, nil
	r := requestOf(f)
	ask := func(name corev1.ResourceName, n int64) {
		q := *resource.NewQuantity(n, resource.DecimalSI)
		setRequest(k, name, q)
		setLimit(k, name, q)
	}
	if r.counted != "" {
		ask(r.counted, r.amount)
	}
	for name, n := range r.others {
		ask(name, n)
	}
	if r.template != "" {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: claimOfFlavor, ResourceClaimTemplateName: &r.template}}
	}
	if len(f.NodeSelector) > 0 {
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		maps.Copy(pod.Spec.NodeSelector, f.NodeSelector)
	}
	for _, t := range f.Tolerations {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
			Key:               t.Key,
			Operator:          corev1.TolerationOperator(t.Operator),
			Value:             t.Value,
			Effect:            corev1.TaintEffect(t.Effect),
			TolerationSeconds: t.TolerationSeconds,
		})
	}
	if f.RuntimeClass != "" {
		pod.Spec.RuntimeClassName = &f.RuntimeClass
	}
}

// sizeOf returns the GPUs that a complete pod with the flavor counts as. A client may have changed how many it asks
// for.
func sizeOf(pod *corev1.Pod, f *flavor.Flavor) gpu.Amount {
	r := requestOf(f)
	if r.counted != "" {
		now := kernelOf(pod).Resources.Limits[r.counted]
		return f.Size().Times(now.Value(), r.amount)
	}
	if len(pod.Spec.ResourceClaims) == 0 {
		return 0
	}
	return f.Size()
}

// GPUs returns how many GPUs a pod counts as for limits and GPU hours.
func GPUs(pod *corev1.Pod) gpu.Amount {
	if text, ok := pod.Annotations[annotationGPUs]; ok {
		if a, err := gpu.ParseAmount(text); err == nil {
			return a
		}
	}
	return gpu.Whole(GPURequestOf(pod).Count())
}

// applyFlavorGPUs applies KERNEL_GPUS to a pod with a flavor. It changes the amount of the flavor's own resource and
// never asks for another kind. 0 gives all of it up.
func (c *clientChecker) applyFlavorGPUs(f *flavor.Flavor) {
	const variable = "KERNEL_GPUS"
	r := requestOf(f)
	giveUp := func() {
		c.removeResources([]corev1.ResourceName{r.counted})
		for name := range r.others {
			c.removeResources([]corev1.ResourceName{name})
		}
		c.pod.Spec.ResourceClaims, c.kernel.Resources.Claims = nil, nil
	}
	if r.scalable {
		c.applyAmount(variable, r.counted)
		if now := c.kernel.Resources.Limits[r.counted]; now.IsZero() {
			giveUp()
		}
		return
	}
	for _, v := range []string{variable, variable + "_LIMIT"} {
		c.apply(v, func(v, value string) {
			switch {
			case value == "0":
				giveUp()
			case f.None:
				c.refuse(v, "the flavor %s has no GPU; choose a flavor with one", f.Name)
			case value != "1":
				c.refuse(v, "the flavor %s says how much of a GPU the kernel gets; this variable can only be 0 or 1", f.Name)
			}
		})
	}
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
	request := resourcev1.DeviceRequest{Name: claimOfFlavor}
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
