package podspec

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestGPURequestOf(t *testing.T) {
	list := func(amounts map[corev1.ResourceName]string) corev1.ResourceList {
		all := corev1.ResourceList{}
		for name, text := range amounts {
			all[name] = resource.MustParse(text)
		}
		return all
	}
	type amounts = map[corev1.ResourceName]string
	type counts = map[corev1.ResourceName]int64
	for _, tt := range []struct {
		name             string
		limits, requests amounts
		claims           []string
		devices, shares  counts
		count            int64
		nvidia, any      bool
		countable        corev1.ResourceName
	}{
		{name: "no GPU", limits: amounts{"cpu": "8", "rdma/hca": "1"}, countable: "nvidia.com/gpu"},
		{name: "no resource without a domain", limits: amounts{"gpu": "1"}, countable: "nvidia.com/gpu"},
		{name: "whole GPUs", limits: amounts{"amd.com/gpu": "2"}, requests: amounts{"amd.com/gpu": "2"},
			devices: counts{"amd.com/gpu": 2},
			count:   2, any: true, countable: "amd.com/gpu"},
		{name: "only as a request", requests: amounts{"amd.com/gpu": "2"}, devices: counts{"amd.com/gpu": 2},
			count: 2, any: true, countable: "amd.com/gpu"},
		{name: "an amount of 0", limits: amounts{"amd.com/gpu": "0"}, devices: counts{"amd.com/gpu": 0},
			countable: "amd.com/gpu"},
		{name: "slices", limits: amounts{"nvidia.com/mig-1g.5gb": "3"}, devices: counts{"nvidia.com/mig-1g.5gb": 3},
			count: 3, nvidia: true, any: true, countable: "nvidia.com/mig-1g.5gb"},
		{name: "GPUs shared by time", limits: amounts{"nvidia.com/gpu.shared": "1"},
			devices: counts{"nvidia.com/gpu.shared": 1},
			count:   1, nvidia: true, any: true, countable: "nvidia.com/gpu.shared"},
		{name: "GPUs of another name", limits: amounts{"nvidia.com/gpu.large": "1"},
			devices: counts{"nvidia.com/gpu.large": 1},
			count:   1, nvidia: true, any: true, countable: "nvidia.com/gpu.large"},
		{name: "two kinds without the common one",
			limits:  amounts{"nvidia.com/mig-1g.5gb": "1", "nvidia.com/mig-2g.10gb": "1"},
			devices: counts{"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-2g.10gb": 1},
			count:   2, nvidia: true, any: true, countable: ""},
		{name: "two kinds", limits: amounts{"nvidia.com/gpu": "1", "amd.com/gpu": "1"},
			devices: counts{"nvidia.com/gpu": 1, "amd.com/gpu": 1},
			count:   2, nvidia: true, any: true, countable: "nvidia.com/gpu"},
		{name: "a share in bytes", limits: amounts{"nvidia.com/gpumem": "8000", "tencent.com/vcuda-core": "20"},
			shares: counts{"nvidia.com/gpumem": 8000, "tencent.com/vcuda-core": 20}, count: 1, nvidia: true, any: true,
			countable: ""},
		{name: "Intel", limits: amounts{"gpu.intel.com/i915": "1", "gpu.intel.com/memory.max": "8G"},
			devices: counts{"gpu.intel.com/i915": 1}, shares: counts{"gpu.intel.com/memory.max": 8_000_000_000},
			count: 1, any: true, countable: "gpu.intel.com/i915"},
		{name: "Intel's other driver", limits: amounts{"gpu.intel.com/xe": "2"}, devices: counts{"gpu.intel.com/xe": 2},
			count: 2, any: true, countable: "gpu.intel.com/xe"},
		{name: "a monitor of Intel's GPUs", limits: amounts{"gpu.intel.com/xe_monitoring": "1"},
			countable: "nvidia.com/gpu"},
		{name: "Gaudi", limits: amounts{"habana.ai/gaudi": "8"}, devices: counts{"habana.ai/gaudi": 8},
			count: 8, any: true, countable: "habana.ai/gaudi"},
		{name: "Neuron", limits: amounts{"aws.amazon.com/neuroncore": "2"}, devices: counts{"aws.amazon.com/neuroncore": 2},
			count: 2, any: true, countable: "aws.amazon.com/neuroncore"},
		{name: "TPU", limits: amounts{"google.com/tpu": "4"}, devices: counts{"google.com/tpu": 4},
			count: 4, any: true, countable: "google.com/tpu"},
		{name: "Ascend", limits: amounts{"huawei.com/Ascend910B": "1", "huawei.com/Ascend910B-memory": "16384"},
			devices: counts{"huawei.com/Ascend910B": 1}, shares: counts{"huawei.com/Ascend910B-memory": 16384},
			count: 1, any: true, countable: "huawei.com/Ascend910B"},
		{name: "a slice of an Ascend", limits: amounts{"huawei.com/Ascend310P-2c": "1"},
			devices: counts{"huawei.com/Ascend310P-2c": 1}, count: 1, any: true, countable: "huawei.com/Ascend310P-2c"},
		{name: "cores of an Ascend", limits: amounts{"huawei.com/npu-core": "8"}, shares: counts{"huawei.com/npu-core": 8},
			count: 1, any: true, countable: ""},
		{name: "MLU", limits: amounts{"cambricon.com/mlu": "1", "cambricon.com/mlu.smlu.vmemory": "20"},
			devices: counts{"cambricon.com/mlu": 1}, shares: counts{"cambricon.com/mlu.smlu.vmemory": 20},
			count: 1, any: true, countable: "cambricon.com/mlu"},
		{name: "percents of a GPU", limits: amounts{"koordinator.sh/gpu": "100"}, shares: counts{"koordinator.sh/gpu": 100},
			count: 1, nvidia: true, any: true, countable: ""},
		{name: "a device and a share", limits: amounts{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"},
			devices: counts{"nvidia.com/gpu": 1},
			shares:  counts{"nvidia.com/gpumem": 8000}, count: 1, nvidia: true, any: true, countable: "nvidia.com/gpu"},
		{name: "a share of 0", limits: amounts{"aliyun.com/gpu-mem": "0"}, shares: counts{"aliyun.com/gpu-mem": 0},
			countable: "nvidia.com/gpu"},
		{name: "a claim", claims: []string{"gpu"}, any: true, countable: "nvidia.com/gpu"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: ContainerSupervisor},
				{Name: ContainerKernel,
					Resources: corev1.ResourceRequirements{Limits: list(tt.limits), Requests: list(tt.requests)}}}}}
			for _, name := range tt.claims {
				pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name})
			}
			r := GPURequestOf(pod)
			if !maps.Equal(r.Devices, tt.devices) || !maps.Equal(r.Shares, tt.shares) || !slices.Equal(r.Claims, tt.claims) {
				t.Errorf("got %+v", r)
			}
			if r.Count() != tt.count || r.NVIDIA() != tt.nvidia || r.Any() != tt.any || r.Countable() != tt.countable {
				t.Errorf("got %d GPUs, NVIDIA's %v, any %v, KERNEL_GPUS counts %s", r.Count(), r.NVIDIA(), r.Any(),
					r.Countable())
			}
		})
	}
}

// A name that is counted but not documented fails.
func TestGPUResources_Documented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/kernelspecs.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range gpuResources {
		if r.unit != gpuNone && !strings.Contains(string(text), "`"+r.name+"`") {
			t.Errorf("docs/kernelspecs.md does not name %s", r.name)
		}
	}
}
