package podspec

import (
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// defaultGPU is the resource that KERNEL_GPUS counts where the kernelspec asks for no GPU.
const defaultGPU corev1.ResourceName = "nvidia.com/gpu"

// Images made for NVIDIA's GPUs use all GPUs of the node unless the variable VisibleDevices has the value VisibleNone.
const (
	VisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	VisibleNone    = "void"
)

// GPURequest is what a pod asks for of GPUs, by the way in which it asks. A further way, such as a lease, becomes a
// further field. The zero value asks for nothing.
type GPURequest struct {
	// Devices counts GPUs, and slices of GPUs, that no other pod uses, by resource: nvidia.com/gpu,
	// nvidia.com/mig-1g.5gb. An amount of 0 asks for nothing, but names the resource that KERNEL_GPUS counts.
	Devices map[corev1.ResourceName]int64
	// Shares are parts of GPUs that other pods use too, in the unit of the resource: aliyun.com/gpu-mem,
	// nvidia.com/gpumem, tencent.com/vcuda-core.
	Shares map[corev1.ResourceName]int64
	// Claims are the names of the pod's resource claims. Only the cluster knows whether their devices are GPUs.
	Claims []string
}

// GPURequestOf returns what a pod asks for.
func GPURequestOf(pod *corev1.Pod) GPURequest {
	r := GPURequest{Devices: map[corev1.ResourceName]int64{}, Shares: map[corev1.ResourceName]int64{}}
	for _, c := range pod.Spec.Containers {
		for name, q := range amounts(&c) {
			switch gpuResourceOf(name).unit {
			case gpuDevices:
				r.Devices[name] += q.Value()
			case gpuShares:
				r.Shares[name] += q.Value()
			}
		}
	}
	for _, claim := range pod.Spec.ResourceClaims {
		r.Claims = append(r.Claims, claim.Name)
	}
	return r
}

// amounts ranges over what a container asks for. Request and limit of a GPU are equal in a pod that exists; a
// kernelspec may give only one of them.
func amounts(c *corev1.Container) iter.Seq2[corev1.ResourceName, resource.Quantity] {
	return func(yield func(corev1.ResourceName, resource.Quantity) bool) {
		for name, q := range c.Resources.Limits {
			if !yield(name, q) {
				return
			}
		}
		for name, q := range c.Resources.Requests {
			if _, limited := c.Resources.Limits[name]; !limited && !yield(name, q) {
				return
			}
		}
	}
}

// Count returns the number of GPUs, or slices of GPUs, that limits and measures count. A pod that asks only for shares
// counts as 1, one that asks only for claims as 0.
func (r GPURequest) Count() int64 {
	var n int64
	for _, devices := range r.Devices {
		n += devices
	}
	if n == 0 && AnyPositive(r.Shares) {
		return 1
	}
	return n
}

// Any reports whether the kernel may have a GPU, or a similar accelerator.
func (r GPURequest) Any() bool {
	return AnyPositive(r.Devices) || AnyPositive(r.Shares) || len(r.Claims) > 0
}

// NVIDIA reports whether devices or shares are asked for that may be NVIDIA's. Their device plugin then sets
// VisibleDevices.
func (r GPURequest) NVIDIA() bool {
	for _, amounts := range []map[corev1.ResourceName]int64{r.Devices, r.Shares} {
		for name, n := range amounts {
			if n > 0 && !gpuResourceOf(name).other {
				return true
			}
		}
	}
	return false
}

// Countable returns the resource that KERNEL_GPUS counts: the one resource of whole GPUs that the kernelspec asks for.
// It is defaultGPU if the kernelspec asks for no GPU, or for that and others. It is "" if the kernelspec asks for
// several others, or only for shares: a request for GPUs beside them would book two kinds.
func (r GPURequest) Countable() corev1.ResourceName {
	if _, ok := r.Devices[defaultGPU]; ok {
		return defaultGPU
	}
	switch names := slices.Collect(maps.Keys(r.Devices)); {
	case len(names) == 1:
		return names[0]
	case len(names) > 1 || AnyPositive(r.Shares):
		return ""
	}
	return defaultGPU
}

// Resources returns the names of all resources of GPUs in alphabetical order.
func (r GPURequest) Resources() []string {
	var names []string
	for _, amounts := range []map[corev1.ResourceName]int64{r.Devices, r.Shares} {
		for name := range amounts {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

// AnyPositive reports whether one of the amounts is more than 0.
func AnyPositive(amounts map[corev1.ResourceName]int64) bool {
	for _, n := range amounts {
		if n > 0 {
			return true
		}
	}
	return false
}
