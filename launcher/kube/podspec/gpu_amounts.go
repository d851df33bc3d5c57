package podspec

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// GPUAmounts returns how much a pod holds of each resource that stands for GPUs. Kubernetes' rule is: the sum of its
// containers and of the init containers that keep running, or the largest sum at any time while init containers run, if
// that is more.
func GPUAmounts(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	var running, most map[corev1.ResourceName]int64 // nil while there are no GPUs: most pods have none
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			running = addGPUs(running, c)
			continue
		}
		for name, n := range addGPUs(maps.Clone(running), c) {
			if n > most[name] {
				most = set(most, name, n)
			}
		}
	}
	for i := range pod.Spec.Containers {
		running = addGPUs(running, &pod.Spec.Containers[i])
	}
	for name, n := range most {
		if n > running[name] {
			running = set(running, name, n)
		}
	}
	return running
}

// SetAmount sets an amount in a list. It makes the list if it is nil.
func SetAmount(list *corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = q
}

func set(all map[corev1.ResourceName]int64, name corev1.ResourceName, n int64) map[corev1.ResourceName]int64 {
	if all == nil {
		all = map[corev1.ResourceName]int64{}
	}
	all[name] = n
	return all
}

// addGPUs adds what a container asks for.
func addGPUs(sum map[corev1.ResourceName]int64, c *corev1.Container) map[corev1.ResourceName]int64 {
	for name, q := range amounts(c) {
		if isPool(name) && q.Sign() > 0 {
			sum = set(sum, name, sum[name]+q.Value())
		}
	}
	return sum
}

// isPool reports whether a resource stands for GPUs, and is the one by which they are booked.
func isPool(name corev1.ResourceName) bool {
	if !strings.Contains(string(name), "/") {
		return false // cpu, memory: most resources
	}
	gpu, _ := IsGPU(name)
	return gpu && !isSecondMeasure(name)
}

// isSecondMeasure reports whether a resource bounds something of a GPU that is booked by another resource: its
// computing power, beside its memory; or whether it counts the devices of a node that pods book by memory.
func isSecondMeasure(name corev1.ResourceName) bool {
	_, text, _ := strings.Cut(string(name), "/")
	switch {
	case strings.HasSuffix(text, "core"), strings.HasSuffix(text, "cores"), strings.HasSuffix(text, "core.percentage"):
		return text != "neuroncore"
	case strings.HasSuffix(text, "gpu-count"), strings.HasPrefix(text, "gpumem"):
		return true
	}
	return false
}

// GPUPools returns the resources of a node that stand for GPUs, each with its amount.
func GPUPools(amounts corev1.ResourceList) map[corev1.ResourceName]int64 {
	pools := map[corev1.ResourceName]int64{}
	for name, q := range amounts {
		if isPool(name) && q.Sign() > 0 {
			pools[name] = q.Value()
		}
	}
	return pools
}
