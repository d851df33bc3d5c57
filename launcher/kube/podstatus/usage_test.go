package podstatus

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

// gpuPod returns a pod that was scheduled and ended at these seconds after noon; a negative time has not come.
func gpuPod(limits map[corev1.ResourceName]string, scheduled, ended float64) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: podspec.ContainerSupervisor},
		{Name: podspec.ContainerKernel}}}}
	list := corev1.ResourceList{}
	for name, q := range limits {
		list[name] = resource.MustParse(q)
	}
	pod.Spec.Containers[1].Resources.Limits = list
	if scheduled >= 0 {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(at(scheduled))}}
	}
	if ended >= 0 {
		pod.Status.Phase = corev1.PodSucceeded
		for i, name := range []string{podspec.ContainerSupervisor, podspec.ContainerKernel} {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses,
				corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
					Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(at(ended - float64(i)))}}})
		}
	}
	return pod
}

// The usage ends with the kernel, even if it is written much later.
func TestUsageOf(t *testing.T) {
	two := map[corev1.ResourceName]string{"nvidia.com/gpu": "2"}
	lost := gpuPod(two, 100, -1)
	lost.Status.Phase = corev1.PodFailed
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		end  float64
		want launcher.Usage
	}{
		{"its containers still end", gpuPod(two, 100, -1), 160.4,
			launcher.Usage{Started: at(100), Seconds: 60, GPUs: gpu.Whole(2)}},
		{"they have ended since", gpuPod(two, 100, 170), 160,
			launcher.Usage{Started: at(100), Seconds: 60, GPUs: gpu.Whole(2)}},
		{"dead for long when it is removed", gpuPod(two, 100, 160), 900,
			launcher.Usage{Started: at(100), Seconds: 60, GPUs: gpu.Whole(2)}},
		{"its node is lost", lost, 160, launcher.Usage{Started: at(100), Seconds: 60, GPUs: gpu.Whole(2)}},
		{"no GPU", gpuPod(nil, 100, 160), 160, launcher.Usage{Started: at(100), Seconds: 60}},
		{"its node's clock is ahead", gpuPod(nil, 100, -1), 99, launcher.Usage{Started: at(100)}},
		{"it never had a node", gpuPod(two, -1, -1), 160, launcher.Usage{}},
	} {
		if got := UsageOf(tt.pod, at(tt.end)); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestGPUSeconds(t *testing.T) {
	two := map[corev1.ResourceName]string{"nvidia.com/gpu": "2", "cpu": "8"}
	for _, tt := range []struct {
		name             string
		pod              *corev1.Pod
		since, until     float64
		want             float64
		heldAtEnd, count int64
	}{
		{"running all the time", gpuPod(two, 0, -1), 10, 40, 60, 2, 2},
		{"from its scheduling on", gpuPod(two, 30, -1), 10, 40, 20, 2, 2},
		{"until its containers ended", gpuPod(two, 0, 25), 10, 40, 30, 0, 2},
		{"within", gpuPod(two, 15, 20), 10, 40, 10, 0, 2},
		{"before", gpuPod(two, 0, 5), 10, 40, 0, 0, 2},
		{"later", gpuPod(two, 50, -1), 10, 40, 0, 0, 2},
		{"without a node", gpuPod(two, -1, -1), 10, 40, 0, 0, 2},
		{"no GPU", gpuPod(map[corev1.ResourceName]string{"cpu": "8"}, 0, -1), 10, 40, 0, 0, 0},
		{"none of it", gpuPod(map[corev1.ResourceName]string{"nvidia.com/gpu": "0"}, 0, -1), 10, 40, 0, 0, 0},
		{"slices", gpuPod(map[corev1.ResourceName]string{"nvidia.com/mig-1g.5gb": "3"}, 0, -1), 10, 40, 90, 3, 3},
		{"a share in bytes", gpuPod(map[corev1.ResourceName]string{"nvidia.com/gpumem": "8000"}, 0, -1), 10, 40, 30, 1, 1},
		{"a device and a share",
			gpuPod(map[corev1.ResourceName]string{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}, 0, -1), 10, 40, 30, 1, 1},
	} {
		if got := GPUSeconds(tt.pod, at(tt.since), at(tt.until)); got != tt.want {
			t.Errorf("%s: %v GPU seconds, want %v", tt.name, got, tt.want)
		}
		if got := GPUsHeld(tt.pod, at(tt.until)); got != gpu.Whole(tt.heldAtEnd) {
			t.Errorf("%s: holds %v in the end, want %d", tt.name, got, tt.heldAtEnd)
		}
		if got := podspec.GPUs(tt.pod); got != gpu.Whole(tt.count) {
			t.Errorf("%s: %v GPUs, want %d", tt.name, got, tt.count)
		}
	}
}
