package podspec

import (
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"
	corev1 "k8s.io/api/core/v1"
)

// gpuUnit says what an amount of a resource counts.
type gpuUnit int

const (
	gpuNone    gpuUnit = iota // no GPU
	gpuDevices                // GPUs, or slices of GPUs, that no other pod uses
	gpuShares                 // parts of GPUs that other pods use too, such as their memory
)

// gpuResource is an extended resource that stands for GPUs or for similar accelerators.
type gpuResource struct {
	name  string // of the resource; a pattern of MatchesPattern
	unit  gpuUnit
	other bool // no device of NVIDIA: its device plugin leaves VisibleDevices alone, and NVIDIA's driver does not know it
}

// gpuResources are the resources that ekg counts as GPUs. The first match holds. The file that documents the names
// stands above each group. docs/kernelspecs.md lists the same names.
var gpuResources = []gpuResource{
	// intel/intel-device-plugins-for-kubernetes: cmd/gpu_plugin/README.md; the resources of fractions up to its 0.31
	{"gpu.intel.com/*_monitoring", gpuNone, true},
	{"gpu.intel.com/i915", gpuDevices, true},
	{"gpu.intel.com/xe", gpuDevices, true},
	{"gpu.intel.com/*", gpuShares, true}, // millicores, memory.max, tiles
	// docs.habana.ai: Installation_Guide, Kubernetes
	{"habana.ai/gaudi", gpuDevices, true},
	// awsdocs-neuron.readthedocs-hosted.com: containers/kubernetes-getting-started
	{"aws.amazon.com/neuron", gpuDevices, true},
	{"aws.amazon.com/neurondevice", gpuDevices, true},
	{"aws.amazon.com/neuroncore", gpuDevices, true},
	// cloud.google.com/kubernetes-engine/docs/concepts/tpus; the second is of Cloud TPUs outside the node, up to 2023
	{"google.com/tpu", gpuDevices, true},
	{"cloud-tpus.google.com/*", gpuDevices, true},
	// Ascend/ascend-device-plugin: README.md; memory: Project-HAMi/HAMi, docs/ascend910b-support.md
	{"huawei.com/Ascend*-memory", gpuShares, true},
	{"huawei.com/Ascend*", gpuDevices, true}, // whole, and slices such as Ascend310P-2c
	{"huawei.com/npu-core", gpuShares, true},
	// ROCm/k8s-device-plugin: docs/user-guide/resource-allocation.md; partitions such as cpx_nps4
	{"amd.com/gpu", gpuDevices, true},
	{"amd.com/*_nps*", gpuDevices, true},
	// Project-HAMi/HAMi: charts/hami/values.yaml
	{"cambricon.com/*.smlu.*", gpuShares, true}, // vmemory, vcore
	{"cambricon.com/*mlu*", gpuDevices, true},
	{"hygon.com/dcunum", gpuDevices, true},
	{"hygon.com/hcunum", gpuDevices, true},
	{"hygon.com/dcu*", gpuShares, true},
	{"hygon.com/hcu*", gpuShares, true},
	{"metax-tech.com/*gpu", gpuDevices, true},
	{"metax-tech.com/v*", gpuShares, true}, // vcore, vmemory
	{"enflame.com/*gcu", gpuDevices, true},
	{"enflame.com/*gcu-*", gpuShares, true},
	{"kunlunxin.com/*xpu", gpuDevices, true},
	{"kunlunxin.com/*xpu-memory", gpuShares, true},
	{"vastaitech.com/va", gpuDevices, true},
	{"birentech.com/*gpu", gpuDevices, true},
	// koordinator.sh/docs/user-manuals/fine-grained-device-scheduling: 100 of koordinator.sh/gpu are one GPU
	{"koordinator.sh/gpu.shared", gpuDevices, false},
	{"koordinator.sh/gpu*", gpuShares, false},
	// NVIDIA/k8s-device-plugin: README.md (gpu, gpu.shared, mig-1g.5gb, and names of the operator's choice), and the
	// names that other plugins have made like them
	{"*/gpu", gpuDevices, false},
	{"*/gpu.*", gpuDevices, false},
	{"*/mig-*", gpuDevices, false},
	// aliyun.com/gpu-mem, nvidia.com/gpumem, tencent.com/vcuda-core, volcano.sh/vgpu-memory
	{"*/*gpu*", gpuShares, false},
	{"*/*cuda*", gpuShares, false},
}

// gpuResourceOf returns the entry of a resource; its unit is gpuNone if the resource stands for no GPU.
func gpuResourceOf(name corev1.ResourceName) gpuResource {
	if r, known := knownResources.Get(name); known {
		return r
	}
	r := findGPUResource(name)
	knownResources.Add(name, r)
	return r
}

// knownResources are results of findGPUResource. A view of a large cluster asks for the same names very often.
var knownResources = func() *lru.Cache[corev1.ResourceName, gpuResource] {
	cache, err := lru.New[corev1.ResourceName, gpuResource](256)
	if err != nil {
		panic("podspec: " + err.Error()) // its size is a constant
	}
	return cache
}()

func findGPUResource(name corev1.ResourceName) gpuResource {
	for _, r := range gpuResources {
		if MatchesPattern(r.name, string(name)) {
			return r
		}
	}
	return gpuResource{}
}

// IsGPU reports whether a resource stands for GPUs, and whether it counts parts of GPUs that other pods use too.
func IsGPU(name corev1.ResourceName) (gpu, shared bool) {
	unit := gpuResourceOf(name).unit
	return unit != gpuNone, unit == gpuShares
}

// MatchesPattern reports whether a text matches a pattern, in which each * stands for any number of any characters.
func MatchesPattern(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	rest, ok := strings.CutPrefix(text, parts[0])
	if !ok || len(parts) == 1 {
		return ok && rest == ""
	}
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(rest, part)
		if i < 0 {
			return false
		}
		rest = rest[i+len(part):]
	}
	return strings.HasSuffix(rest, parts[len(parts)-1])
}
