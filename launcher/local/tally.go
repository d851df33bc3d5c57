package local

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// tally is what metrics count. It begins when the launcher is opened, like that of the cluster. Launcher.mu guards it.
type tally struct {
	// Fixed.
	since    time.Time
	now      func() time.Time
	observer launcher.Observer

	culls      map[launcher.CullLabels]int64
	gpuSeconds map[launcher.GPULabels]float64
	gpuBusy    map[launcher.GPULabels]float64
}

func newTally(now func() time.Time, o launcher.Observer) *tally {
	return &tally{since: now(), now: now, observer: o, culls: map[launcher.CullLabels]int64{},
		gpuSeconds: map[launcher.GPULabels]float64{}, gpuBusy: map[launcher.GPULabels]float64{}}
}

// gpuCounted is how far the use of one kernel's GPUs is counted.
type gpuCounted struct {
	until  time.Time     // zero: nothing is counted yet
	busy   time.Duration // of api.GPUUse
	parked time.Duration // of api.GPUUse
	known  bool          // busy and parked are set
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

// gpusLocked counts what a kernel has held, and how busy that was, since the last call. It is called at each
// scrape and at a kernel's end.
func (t *tally) gpusLocked(k *kernel) {
	held, now := k.gpusHeldLocked(), t.now()
	if held == 0 {
		k.gpus.until = time.Time{}
		return
	}
	c, st := &k.gpus, &k.supervisor.Status
	if c.until.IsZero() {
		if c.until = st.Started; c.until.Before(t.since) {
			c.until = t.since
			c.busy, c.parked, c.known = st.GPUUse.Busy, st.GPUUse.Parked, true // this gateway did not see it
		}
	}
	labels := launcher.GPULabels{SpecName: k.rec.SpecName, Flavor: k.rec.Flavor}
	if st.GPUUse.Busy < c.busy || st.GPUUse.Parked < c.parked || !c.known {
		c.busy, c.parked = 0, 0 // it was started again
	}
	took := max(0, now.Sub(c.until))
	parked := min(took, st.GPUUse.Parked-c.parked) // the next call subtracts the rest
	c.parked += parked
	t.gpuSeconds[labels] += (took - parked).Seconds() * held.Float()
	t.gpuBusy[labels] += (st.GPUUse.Busy - c.busy).Seconds() * held.Float()
	c.until, c.busy, c.known = now, st.GPUUse.Busy, true
}
