package podspec

import (
	"maps"
	"slices"
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
		byResource, any  bool
		countable        corev1.ResourceName
	}{
		{name: "no GPU", limits: amounts{"cpu": "8", "rdma/hca": "1"}, countable: "nvidia.com/gpu"},
		{name: "no resource without a domain", limits: amounts{"gpu": "1"}, countable: "nvidia.com/gpu"},
		{name: "whole GPUs", limits: amounts{"amd.com/gpu": "2"}, requests: amounts{"amd.com/gpu": "2"},
			devices: counts{"amd.com/gpu": 2},
			count:   2, byResource: true, any: true, countable: "amd.com/gpu"},
		{name: "only as a request", requests: amounts{"amd.com/gpu": "2"}, devices: counts{"amd.com/gpu": 2},
			count: 2, byResource: true, any: true, countable: "amd.com/gpu"},
		{name: "an amount of 0", limits: amounts{"amd.com/gpu": "0"}, devices: counts{"amd.com/gpu": 0},
			countable: "amd.com/gpu"},
		{name: "slices", limits: amounts{"nvidia.com/mig-1g.5gb": "3"}, devices: counts{"nvidia.com/mig-1g.5gb": 3},
			count: 3, byResource: true, any: true, countable: "nvidia.com/mig-1g.5gb"},
		{name: "GPUs shared by time", limits: amounts{"nvidia.com/gpu.shared": "1"},
			devices: counts{"nvidia.com/gpu.shared": 1},
			count:   1, byResource: true, any: true, countable: "nvidia.com/gpu.shared"},
		{name: "GPUs of another name", limits: amounts{"nvidia.com/gpu.large": "1"},
			devices: counts{"nvidia.com/gpu.large": 1},
			count:   1, byResource: true, any: true, countable: "nvidia.com/gpu"},
		{name: "two kinds", limits: amounts{"nvidia.com/gpu": "1", "amd.com/gpu": "1"},
			devices: counts{"nvidia.com/gpu": 1, "amd.com/gpu": 1},
			count:   2, byResource: true, any: true, countable: "nvidia.com/gpu"},
		{name: "a share in bytes", limits: amounts{"nvidia.com/gpumem": "8000", "tencent.com/vcuda-core": "20"},
			shares: counts{"nvidia.com/gpumem": 8000, "tencent.com/vcuda-core": 20}, count: 1, byResource: true, any: true,
			countable: "nvidia.com/gpu"},
		{name: "a device and a share", limits: amounts{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"},
			devices: counts{"nvidia.com/gpu": 1},
			shares:  counts{"nvidia.com/gpumem": 8000}, count: 1, byResource: true, any: true, countable: "nvidia.com/gpu"},
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
			if r.Count() != tt.count || r.byResource() != tt.byResource || r.any() != tt.any || r.countable() != tt.countable {
				t.Errorf("got %d GPUs, by resource %v, any %v, KERNEL_GPUS counts %s", r.Count(), r.byResource(), r.any(),
					r.countable())
			}
		})
	}
}
