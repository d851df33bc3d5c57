package local

import (
	"context"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Usage returns what the kernels use that live, and what those have used whose endings are still kept.
func (l *Launcher) Usage(ctx context.Context, owner string) ([]launcher.KernelUsage, error) {
	known, err := l.withEndings(ctx, owner)
	if err != nil {
		return nil, err
	}
	all := []launcher.KernelUsage{}
	for _, k := range known {
		u := launcher.KernelUsage{ID: k.id, SpecName: k.specName, Owner: k.owner, Flavor: k.flavor}
		if k.end != nil {
			addEnding(&u, *k.end)
		} else {
			l.addStatus(&u, k.kernel)
		}
		if k.gpus > 0 && !u.Started.IsZero() {
			u.GPUs = k.gpus // shares by their size
		}
		all = append(all, u)
	}
	return all, nil
}

// addEnding adds what a kernel had used at its end. A dead kernel may be removed later than it ended.
func addEnding(u *launcher.KernelUsage, end api.Ending) {
	u.End, u.GPUUse, u.Usage = end.At, end.GPUUse, usageOf(end)
	u.GPUs = gpu.Whole(int64(max(0, end.GPUs)))
	if !end.Started.IsZero() {
		u.End = end.Started.Add(time.Duration(end.Seconds) * time.Second)
	}
}

// addStatus adds what a kernel has used according to its supervisor.
func (l *Launcher) addStatus(u *launcher.KernelUsage, k *kernel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !k.supervisor.HasStatus {
		return
	}
	st := &k.supervisor.Status
	u.GPUUse, u.Started, u.GPUs = st.GPUUse, st.Started, gpu.Whole(int64(max(0, st.GPUs)))
	if !st.Started.IsZero() {
		u.Seconds = int64(max(0, l.timing.now().Sub(st.Started)) / time.Second)
	}
}
