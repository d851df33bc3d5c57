package podspec

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

// GPUAmounts returns how much of each resource that stands for GPUs a pod holds, by Kubernetes' rule: the sum of its
// containers and of the init containers that go on running, or the largest sum while its init containers run one after
// another.
func GPUAmounts(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	running, most := map[corev1.ResourceName]int64{}, map[corev1.ResourceName]int64{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			addGPUs(running, c)
			continue
		}
		begin := maps.Clone(running)
		addGPUs(begin, c)
		for name, n := range begin {
			most[name] = max(most[name], n)
		}
	}
	for i := range pod.Spec.Containers {
		addGPUs(running, &pod.Spec.Containers[i])
	}
	for name, n := range most {
		running[name] = max(running[name], n)
	}
	return running
}

// addGPUs adds what a container asks for. Its request and its limit of a GPU are equal.
func addGPUs(sum map[corev1.ResourceName]int64, c *corev1.Container) {
	amounts := corev1.ResourceList{}
	maps.Copy(amounts, c.Resources.Requests)
	maps.Copy(amounts, c.Resources.Limits)
	for name, q := range amounts {
		if gpu, _ := IsGPU(name); gpu && q.Sign() > 0 && !isSecondMeasure(name) {
			sum[name] += q.Value()
		}
	}
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

// FlavorAmount returns how much of which resource a kernel with a flavor books. The amount is 0 for a flavor without
// GPUs, and for one with a resource claim.
func FlavorAmount(f *flavor.Flavor) (corev1.ResourceName, int64) {
	r := requestOf(f)
	return r.counted, r.amount
}

// GPUPools returns the resources of a node that stand for GPUs, each with its amount.
func GPUPools(amounts corev1.ResourceList) map[corev1.ResourceName]int64 {
	pools := map[corev1.ResourceName]int64{}
	for name, q := range amounts {
		if gpu, _ := IsGPU(name); gpu && q.Sign() > 0 && !isSecondMeasure(name) {
			pools[name] = q.Value()
		}
	}
	return pools
}
