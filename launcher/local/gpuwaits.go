package local

import (
	"context"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/lend"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// GPUWaits implements launcher.GPUViewer. It leaves out the kernels of jobs.
func (l *Launcher) GPUWaits(ctx context.Context) ([]launcher.GPUWait, error) {
	starts := l.lender.People()
	l.mu.Lock()
	runs := l.kernels.waking(l.timing.now())
	l.mu.Unlock()
	if len(starts)+len(runs) == 0 {
		return nil, nil
	}
	held, _, err := l.lender.Held(ctx)
	if err != nil {
		return nil, err
	}
	warm, err := l.warm.holders()
	if err != nil {
		return nil, err
	}
	held = withoutWarm(held, warm)
	var waits []launcher.GPUWait
	for _, w := range starts {
		waits = append(waits, launcher.GPUWait{Kernel: w.Kernel, For: w.For, Holders: w.Want.Enough(held)})
	}
	for _, w := range runs { // only its own GPU is enough
		own := slices.DeleteFunc(slices.Clone(held), func(h gpu.Held) bool { return !slices.Contains(h.Pinned, w.Kernel) })
		waits = append(waits, launcher.GPUWait{Kernel: w.Kernel, For: w.For, Holders: w.Want.Enough(own)})
	}
	slices.SortFunc(waits, launcher.LongestFirst)
	return waits, nil
}

// waking returns the kernels that run and wait for their GPU, without those of jobs.
func (r *registry) waking(now time.Time) (all []lend.Wait) {
	for _, k := range r.ordered {
		parked := &k.supervisor.Status.Parked
		since, err := time.Parse(api.TimeFormat, parked.Since)
		if err == nil && parked.State == api.GPUWaking && k.livesLocked() && k.rec.Want != nil && !k.rec.Job {
			all = append(all, lend.Wait{Kernel: k.id, Want: *k.rec.Want, For: now.Sub(since)})
		}
	}
	return all
}
