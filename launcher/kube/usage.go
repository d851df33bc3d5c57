package kube

import (
	"context"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
)

// Usage returns what the kernels use that live, and what those have used whose endings are still kept. Each gateway
// reads the same pods and endings, so it is not a sum that could count a kernel twice.
func (l *Launcher) Usage(ctx context.Context, owner string) ([]launcher.KernelUsage, error) {
	if err := l.proveFresh(ctx); err != nil {
		return nil, err // a kernel, or its ending, may be unknown
	}
	now := l.clusterNow()
	all := []launcher.KernelUsage{}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, k := range l.kernels {
		if k.end != nil || k.pod == nil || owner != "" && k.rec.Owner != owner {
			continue
		}
		u := launcher.KernelUsage{ID: id, SpecName: k.rec.SpecName, Flavor: k.rec.Flavor, Owner: k.rec.Owner,
			Usage: podstatus.UsageOf(k.pod, now)}
		if k.supervisor.HasStatus {
			u.GPUUse = k.supervisor.Status.GPUUse
		}
		all = append(all, u)
	}
	l.endings.Each(func(id string, end *endings.Ending) {
		if k := l.kernels[id]; k != nil && k.end == nil || owner != "" && end.Owner != owner { // it was restarted
			return
		}
		all = append(all, launcher.KernelUsage{ID: id, SpecName: end.Spec, Flavor: end.Flavor, Owner: end.Owner, End: end.At,
			GPUUse: end.GPUUse, Usage: end.Usage})
	})
	return all, nil
}

// Ended returns the kernels that were culled or died and whose endings are still kept.
func (l *Launcher) Ended(ctx context.Context, owner string) ([]launcher.EndedKernel, error) {
	if err := l.proveFresh(ctx); err != nil {
		return nil, err // the last ending may be unknown
	}
	all := []launcher.EndedKernel{}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endings.Each(func(id string, end *endings.Ending) {
		if end.Refused || owner != "" && end.Owner != owner || !end.Cause().Unrequested() {
			return
		}
		if k := l.kernels[id]; k != nil && k.end == nil { // it was started again
			return
		}
		all = append(all, launcher.EndedKernel{
			ID:       id,
			SpecName: end.Spec,
			Owner:    end.Owner,
			Reason:   end.Reason,
			Culled:   end.Culled,
			At:       end.At,
			Usage:    end.Usage,
		})
	})
	slices.SortFunc(all, launcher.NewestFirst)
	return all, nil
}
