package gpuview

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Wait is a pod for which the scheduler finds too few GPUs of one resource.
type Wait struct {
	launcher.GPUWait
	UID      types.UID // of the pod
	Resource string
	Amount   float64
	Selector map[string]string // of nodes

	Nominated bool // the scheduler removes pods of lower priority for it
}

// WaitOf reports whether the scheduler finds too few GPUs for a pod that asks for one kind of them.
func WaitOf(pod *corev1.Pod) (w Wait, waits bool) {
	c, amounts := PodScheduled(pod), podspec.GPUAmounts(pod)
	if pod.Spec.NodeName != "" || len(amounts) != 1 || c == nil || c.Status != corev1.ConditionFalse ||
		c.Reason != corev1.PodReasonUnschedulable {
		return w, false
	}
	for name, n := range amounts {
		w.Resource, w.Amount, w.Selector = string(name), float64(n), pod.Spec.NodeSelector
	}
	w.Nominated = pod.Status.NominatedNodeName != ""
	return w, w.Amount > 0 && strings.Contains(c.Message, "Insufficient "+w.Resource)
}

// PodScheduled returns a pod's condition of that name, or nil.
func PodScheduled(pod *corev1.Pod) *corev1.PodCondition {
	at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled
	})
	if at < 0 {
		return nil
	}
	return &pod.Status.Conditions[at]
}

// Enough returns the kernels whose end would each leave enough GPUs on one node.
func (w *Wait) Enough(view launcher.GPUs, selectors map[string]map[string]string) (kernels []string) {
	for i := range view.Nodes {
		n := &view.Nodes[i]
		if n.Name == "" || n.Status != "" && !w.mayUse(n) {
			continue
		}
		for j := range n.Pools {
			p := &n.Pools[j]
			if p.Resource != w.Resource {
				continue
			}
			for _, h := range p.Holders {
				if h.Kernel == "" || h.Ending {
					continue
				}
				enough := h.Amount >= w.Amount && maps.Equal(selectors[h.Kernel], w.Selector)
				if n.Status != "" {
					enough = w.fitsWithout(p, h.Kernel)
				}
				if enough {
					kernels = append(kernels, h.Kernel)
				}
			}
		}
	}
	return kernels
}

// mayUse reports whether a node takes the pod.
func (w *Wait) mayUse(n *launcher.GPUNode) bool {
	fits := n.Status == nodeReady
	for name, value := range w.Selector {
		fits = fits && n.Labels[name] == value
	}
	return fits
}

// fitsWithout reports whether the pool has room for the pod only when a kernel has ended.
func (w *Wait) fitsWithout(p *launcher.GPUPool, kernel string) bool {
	if free, _ := roomIn(p, w.Amount); free > 0 {
		return false
	}
	without := *p
	without.Holders = slices.DeleteFunc(slices.Clone(p.Holders), func(h launcher.GPUHolder) bool {
		return h.Kernel == kernel
	})
	free, _ := roomIn(&without, w.Amount)
	return free > 0
}
