package gpuview

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// TestWait_ChooseWarm: as few warm kernels as possible are ended for a pod, on one node that may take it.
func TestWait_ChooseWarm(t *testing.T) {
	const gpu = "nvidia.com/gpu"
	t4 := map[string]string{"gpu": "t4"}
	node := func(name string, total, held float64, labels map[string]string) launcher.GPUNode {
		n := launcher.GPUNode{Name: name, Status: nodeReady, Labels: labels,
			Pools: []launcher.GPUPool{{Resource: gpu, Total: total}}}
		if held > 0 {
			n.Pools[0].Holders = []launcher.GPUHolder{{Kernel: "other", Amount: held}}
		}
		return n
	}
	// The name of a warm pod is its node, its number of GPUs and a letter. With "-" it is being deleted.
	pods := func(names ...string) (all []*corev1.Pod) {
		for _, name := range names {
			at, rest, _ := strings.Cut(name, ":")
			pod := gpuTestPod(name, at, map[string]string{gpu: rest[:1]}, func(pod *corev1.Pod) {
				pod.UID, pod.Spec.NodeSelector = types.UID(name), t4
			})
			if strings.HasSuffix(name, "-") {
				pod.DeletionTimestamp = new(metav1.Now())
			}
			all = append(all, pod)
		}
		return all
	}
	for name, c := range map[string]struct {
		amounts  []float64 // of the pods that wait, the longest first
		longFor  bool      // they wait for longer than the scheduler needs, and no room was made for them lately
		selector map[string]string
		reserved float64 // on node n, for another pod
		nodes    []launcher.GPUNode
		warm     []*corev1.Pod // oldest first
		want     []string
	}{
		"the newest": {amounts: []float64{1}, nodes: []launcher.GPUNode{node("n", 2, 0, nil)}, warm: pods("n:1a", "n:1b"),
			want: []string{"n:1b"}},
		"fewest": {amounts: []float64{2}, nodes: []launcher.GPUNode{node("m", 2, 0, nil), node("n", 2, 0, nil)},
			warm: pods("n:2a", "m:1b", "m:1c"), want: []string{"n:2a"}},
		"a part is free": {amounts: []float64{2}, nodes: []launcher.GPUNode{node("n", 3, 1, nil)}, warm: pods("n:1a"),
			want: []string{"n:1a"}},
		"not enough": {amounts: []float64{2}, nodes: []launcher.GPUNode{node("n", 2, 1, nil)}, warm: pods("n:1a")},
		"one is being deleted": {amounts: []float64{1}, nodes: []launcher.GPUNode{node("n", 2, 0, nil)},
			warm: pods("n:1a", "n:1b-")},
		"one is being deleted, and it does not help": {amounts: []float64{1}, longFor: true,
			nodes: []launcher.GPUNode{node("m", 1, 0, nil), node("n", 1, 0, nil)}, warm: pods("m:1a", "n:1b-"),
			want: []string{"m:1a"}},
		"another node": {amounts: []float64{1}, selector: t4,
			nodes: []launcher.GPUNode{node("m", 1, 0, nil), node("n", 1, 0, t4)}, warm: pods("n:1a", "m:1b"),
			want: []string{"n:1a"}},
		"two that wait": {amounts: []float64{1, 1, 1}, nodes: []launcher.GPUNode{node("n", 2, 0, nil)},
			warm: pods("n:1a", "n:1b"), want: []string{"n:1b", "n:1a"}},
		"the room of the first is not that of the second": {amounts: []float64{1, 1},
			nodes: []launcher.GPUNode{node("n", 2, 0, nil)}, warm: pods("n:1a", "n:1b-"), want: []string{"n:1a"}},
		"room that was just made is another's": {amounts: []float64{1}, longFor: true, reserved: 1,
			nodes: []launcher.GPUNode{node("n", 2, 0, nil)}, warm: pods("n:1a"), want: []string{"n:1a"}},
		"it was made on a node that is not seen": {amounts: []float64{1}, reserved: 1, warm: pods("n:1a", "n:1b"),
			selector: t4, want: []string{"n:1b"}},
		"nodes are not seen":             {amounts: []float64{1}, selector: t4, warm: pods("n:1a"), want: []string{"n:1a"}},
		"nor is it known that they help": {amounts: []float64{1}, selector: map[string]string{"x": "y"}, warm: pods("n:1a")},
	} {
		t.Run(name, func(t *testing.T) {
			ended, reserved := map[types.UID]bool{}, map[string]float64{"n " + gpu: c.reserved}
			var got []string
			for _, amount := range c.amounts {
				w := Wait{Resource: gpu, Amount: amount, Selector: c.selector}
				if c.longFor {
					w.For = time.Minute
				}
				chosen, _ := w.ChooseWarm(launcher.GPUs{Nodes: c.nodes}, c.warm, ended, reserved)
				for _, pod := range chosen {
					ended[pod.UID] = true
					got = append(got, pod.Name)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}
