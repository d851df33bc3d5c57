package kube

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/gpuview"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// ViewGPUs implements launcher.GPUViewer.
func (l *Launcher) ViewGPUs(context.Context) (launcher.GPUs, error) {
	view := warmKernels{l}.GPUs()
	view.Ahead = l.warm.Ahead()
	view.Sort()
	return view, nil
}

// GPUs returns the view without what is kept ready for each kernelspec.
func (w warmKernels) GPUs() launcher.GPUs {
	l := w.l
	var pods []gpuview.Pod
	known := map[types.UID]bool{}
	l.mu.Lock()
	for _, k := range l.kernels {
		if k.pod == nil || k.removed {
			continue
		}
		known[k.pod.UID] = true
		p := gpuview.Pod{Pod: k.pod, Holder: launcher.GPUHolder{Kernel: k.id, Owner: k.rec.Owner, SpecName: k.rec.SpecName,
			Flavor: k.rec.Flavor}}
		if k.supervisor.Streaming && k.end == nil {
			p.Samples = k.supervisor.Status.GPU
		}
		pods = append(pods, p)
	}
	l.mu.Unlock()
	for _, pod := range l.warm.Pods() {
		if rec, err := podspec.ReadRecord(pod); err == nil && !known[pod.UID] {
			pods = append(pods, gpuview.Pod{Pod: pod, Warm: true, Holder: launcher.GPUHolder{Kernel: rec.ID,
				SpecName: rec.SpecName, Flavor: rec.Flavor}})
		}
	}
	return l.machines.View(pods)
}

// FlavorRoom implements launcher.GPUViewer.
func (l *Launcher) FlavorRoom(_ context.Context, flavors []flavor.Flavor) (
	rooms map[string]launcher.GPURoom, view launcher.GPUs, err error,
) {
	if !l.machines.SeesNodes() {
		return nil, view, nil
	}
	view = warmKernels{l}.GPUs()
	return gpuview.Rooms(view, flavors), view, nil
}

// GPUWaits implements launcher.GPUViewer. It looks at labels of nodes, and ignores taints and affinities. If the
// gateway does not see nodes, a kernel can take the GPUs of another one whose pod selects the same nodes and has at
// least as many.
func (l *Launcher) GPUWaits(context.Context) ([]launcher.GPUWait, error) {
	all := warmKernels{l}.GPUWaits()
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
	view := warmKernels{l}.GPUs()
	waits := make([]launcher.GPUWait, len(all))
	for i := range all {
		all[i].Holders = all[i].Enough(view, selectors)
		waits[i] = all[i].GPUWait
	}
	return waits, nil
}

// GPUWaits returns the pods for which the scheduler finds too few GPUs, the longest first.
func (w warmKernels) GPUWaits() []gpuview.Wait {
	l := w.l
	now := l.clusterNow()
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []gpuview.Wait
	for _, k := range l.kernels {
		if k.pod == nil || k.removed || k.end != nil || k.pod.DeletionTimestamp != nil {
			continue
		}
		if w, waits := gpuview.WaitOf(k.pod); waits {
			w.Kernel, w.UID, w.For = k.id, k.pod.UID, now.Sub(gpuview.PodScheduled(k.pod).LastTransitionTime.Time)
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b gpuview.Wait) int { return launcher.LongestFirst(a.GPUWait, b.GPUWait) })
	return all
}
