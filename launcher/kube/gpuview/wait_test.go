package gpuview

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// TestWait_Enough: the kernels whose end would each be enough for a pod, with nodes that the gateway sees and with
// those that it does not.
func TestWait_Enough(t *testing.T) {
	t4 := map[string]string{"gpu": "t4"}
	holds := func(kernel string, amount float64) launcher.GPUHolder {
		return launcher.GPUHolder{Kernel: kernel, Amount: amount}
	}
	pool := func(total float64, holders ...launcher.GPUHolder) []launcher.GPUPool {
		return []launcher.GPUPool{{Resource: "nvidia.com/gpu", Total: total, Holders: holders}}
	}
	ending := holds("ending", 2)
	ending.Ending = true
	view := launcher.GPUs{Nodes: []launcher.GPUNode{
		{Name: "seen", Status: nodeReady, Labels: t4, Pools: pool(2, holds("a", 1), holds("b", 1))},
		{Name: "other", Status: nodeReady, Labels: map[string]string{"gpu": "a100"}, Pools: pool(1, holds("c", 1))},
		{Name: "down", Status: "NotReady", Labels: t4, Pools: pool(1, holds("d", 1))},
		{Name: "ends", Status: nodeReady, Labels: t4, Pools: pool(2, ending)},
		{Name: "unseen", Pools: pool(0, holds("e", 1), holds("f", 1), holds("", 1), holds("g", 2))},
		{Name: "memory", Status: nodeReady, Labels: t4, Pools: []launcher.GPUPool{
			{Resource: "aliyun.com/gpu-mem", Total: 32, Holders: []launcher.GPUHolder{holds("h", 32)}}}},
	}}
	selectors := map[string]map[string]string{"e": t4, "g": t4}
	for amount, want := range map[float64][]string{1: {"a", "b", "e", "g"}, 2: {"g"}} {
		w := Wait{Resource: "nvidia.com/gpu", Amount: amount, Selector: t4}
		if got := w.Enough(view, selectors); !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", amount, got, want)
		}
	}
	view.Nodes[0].Pools[0].Total = 3
	w := Wait{Resource: "nvidia.com/gpu", Amount: 1, Selector: t4}
	if got := w.Enough(view, nil); got != nil {
		t.Errorf("there is room, or it is not known which nodes the others have selected: %v", got)
	}
}

// TestWaitOf: a pod waits for GPUs if the scheduler says so of its only kind of them.
func TestWaitOf(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}}}}
	condition := func(reason, message string) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Reason: reason, Message: message}}
	}
	if _, waits := WaitOf(pod); waits {
		t.Error("the scheduler has not seen it")
	}
	condition(corev1.PodReasonUnschedulable,
		"0/3 nodes are available: 1 Insufficient memory, 2 Insufficient nvidia.com/gpu.")
	if w, waits := WaitOf(pod); !waits || w.Amount != 2 || w.Resource != "nvidia.com/gpu" {
		t.Errorf("%+v, %v", w, waits)
	}
	condition(corev1.PodReasonUnschedulable,
		"0/3 nodes are available: 3 Insufficient memory.")
	if _, waits := WaitOf(pod); waits {
		t.Error("it waits for memory")
	}
	condition(corev1.PodReasonSchedulingGated, "Scheduling is blocked, Insufficient nvidia.com/gpu")
	if _, waits := WaitOf(pod); waits {
		t.Error("it is gated")
	}
}
