package local

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// gpuCounts are what metrics count of GPUs. Like the cluster's, they begin when the launcher is opened. Launcher.mu
// guards them.
type gpuCounts struct {
	seconds, busy map[launcher.GPULabels]float64
}

// gpuCounted is how far the use of one kernel's GPUs is counted.
type gpuCounted struct {
	until time.Time     // zero: nothing is counted yet
	busy  time.Duration // of api.GPUUse
	known bool          // busy is set
}

// gpusHeldLocked returns the GPUs that a kernel holds now, with shares by their size.
func (k *kernel) gpusHeldLocked() gpu.Amount {
	st := &k.supervisor.Status
	switch {
	case !k.livesLocked(), k.place.Waits(), !k.supervisor.HasStatus, st.Started.IsZero(),
		k.supervisor.SaysLocked(api.Dead):
		return 0
	case k.rec.GPUs > 0:
		return k.rec.GPUs
	}
	return gpu.Whole(int64(max(0, st.GPUs)))
}

// countGPUsLocked counts what a kernel has held, and how busy that was, since the last call. It is called at each
// scrape and at a kernel's end.
func (l *Launcher) countGPUsLocked(k *kernel) {
	held, now := k.gpusHeldLocked(), l.timing.now()
	if held == 0 {
		k.gpus.until = time.Time{}
		return
	}
	c, st := &k.gpus, &k.supervisor.Status
	if c.until.IsZero() {
		if c.until = st.Started; c.until.Before(l.opened) {
			c.until = l.opened
			c.busy, c.known = st.GPUUse.Busy, true // this gateway did not see it
		}
	}
	labels := launcher.GPULabels{SpecName: k.rec.SpecName, Flavor: k.rec.Flavor}
	l.gpusCounted.seconds[labels] += max(0, now.Sub(c.until).Seconds()) * held.Float()
	if st.GPUUse.Busy < c.busy || !c.known {
		c.busy = 0 // it was started again
	}
	l.gpusCounted.busy[labels] += (st.GPUUse.Busy - c.busy).Seconds() * held.Float()
	c.until, c.busy, c.known = now, st.GPUUse.Busy, true
}
