package kube

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// gpuWait is a pod for which the scheduler finds too few GPUs of one resource.
type gpuWait struct {
	launcher.GPUWait
	uid      types.UID // of the pod
	resource string
	amount   float64
	selector map[string]string // of nodes

	nominated bool // the scheduler removes pods of lower priority for it
}

// GPUWaits implements launcher.GPUWaiter. It looks at labels of nodes, and ignores taints and affinities. If the
// gateway does not see nodes, a kernel can take the GPUs of another one whose pod selects the same nodes and has at
// least as many.
func (l *Launcher) GPUWaits(context.Context) ([]launcher.GPUWait, error) {
	all := l.gpuWaits()
	if len(all) == 0 {
		return nil, nil
	}
	selectors := map[string]map[string]string{}
	l.mu.Lock()
	for _, k := range l.kernels {
		if k.pod != nil {
			selectors[k.id] = k.pod.Spec.NodeSelector
		}
	}
	l.mu.Unlock()
	view := l.viewNodes()
	waits := make([]launcher.GPUWait, len(all))
	for i := range all {
		all[i].Holders = all[i].enough(view, selectors)
		waits[i] = all[i].GPUWait
	}
	return waits, nil
}

// waitOf reports whether the scheduler finds too few GPUs for a pod that asks for one kind of them.
func waitOf(pod *corev1.Pod) (w gpuWait, waits bool) {
	c, amounts := podScheduled(pod), podspec.GPUAmounts(pod)
	if pod.Spec.NodeName != "" || len(amounts) != 1 || c == nil || c.Status != corev1.ConditionFalse ||
		c.Reason != corev1.PodReasonUnschedulable {
		return w, false
	}
	for name, n := range amounts {
		w.resource, w.amount, w.selector = string(name), float64(n), pod.Spec.NodeSelector
	}
	w.nominated = pod.Status.NominatedNodeName != ""
	return w, w.amount > 0 && strings.Contains(c.Message, "Insufficient "+w.resource)
}

// podScheduled returns a pod's condition of that name, or nil.
func podScheduled(pod *corev1.Pod) *corev1.PodCondition {
	at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled
	})
	if at < 0 {
		return nil
	}
	return &pod.Status.Conditions[at]
}

// enough returns the kernels whose end would each leave enough GPUs on one node.
func (w *gpuWait) enough(view launcher.GPUs, selectors map[string]map[string]string) (kernels []string) {
	for i := range view.Nodes {
		n := &view.Nodes[i]
		if n.Name == "" || n.Status != "" && !w.mayUse(n) {
			continue
		}
		for j := range n.Pools {
			p := &n.Pools[j]
			if p.Resource != w.resource {
				continue
			}
			for _, h := range p.Holders {
				if h.Kernel == "" || h.Ending {
					continue
				}
				enough := h.Amount >= w.amount && maps.Equal(selectors[h.Kernel], w.selector)
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
func (w *gpuWait) mayUse(n *launcher.GPUNode) bool {
	fits := n.Status == nodeReady
	for name, value := range w.selector {
		fits = fits && n.Labels[name] == value
	}
	return fits
}

// fitsWithout reports whether the pool has room for the pod only when a kernel has ended.
func (w *gpuWait) fitsWithout(p *launcher.GPUPool, kernel string) bool {
	if free, _ := roomIn(p, w.amount); free > 0 {
		return false
	}
	without := *p
	without.Holders = slices.DeleteFunc(slices.Clone(p.Holders), func(h launcher.GPUHolder) bool {
		return h.Kernel == kernel
	})
	free, _ := roomIn(&without, w.amount)
	return free > 0
}
