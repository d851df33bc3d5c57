package kube

import (
	"context"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
)

// Usage returns what the kernels use that live, and what those have used whose endings are still kept. Each gateway
// reads the same pods and endings, so it is not a sum that could count a kernel twice.
func (l *Launcher) Usage(ctx context.Context) ([]launcher.KernelUsage, error) {
	if err := l.proveFresh(ctx); err != nil {
		return nil, err // a kernel, or its ending, may be unknown
	}
	now := l.clusterNow()
	oldest := now.Add(-keepEndings)
	all := []launcher.KernelUsage{}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, k := range l.kernels {
		if k.end != nil || k.pod == nil {
			continue
		}
		u := launcher.KernelUsage{ID: id, SpecName: k.rec.SpecName, Flavor: k.rec.Flavor, Owner: k.rec.Owner,
			Usage: podstatus.UsageOf(k.pod, now)}
		if k.supervisor.HasStatus {
			u.GPUUse = k.supervisor.Status.GPUUse
		}
		all = append(all, u)
	}
	for _, id := range l.endings.known.Keys() {
		end, ok := l.endings.known.Peek(id)
		if k := l.kernels[id]; !ok || end.At.Before(oldest) || k != nil && k.end == nil { // it was restarted
			continue
		}
		u := launcher.KernelUsage{ID: id, SpecName: end.Spec, Flavor: end.Flavor, Owner: end.Owner, End: end.At,
			GPUUse: end.GPUUse, Usage: end.Usage}
		all = append(all, u)
	}
	return all, nil
}
