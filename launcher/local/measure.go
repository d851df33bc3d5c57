package local

import (
	"maps"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Measure returns the data for metrics.
func (l *Launcher) Measure() launcher.Measures {
	var m launcher.Measures
	for _, k := range l.snapshot() {
		if d, err := l.describe(k); err == nil { // else it is gone
			m.Kernels = append(m.Kernels, d)
		}
	}
	l.mu.Lock()
	l.follower.MeasureLocked(&m)
	m.Culls, m.GPUs = maps.Clone(l.tally.culls), map[launcher.GPULabels]float64{}
	for _, k := range l.kernels.byID {
		l.tally.gpusLocked(k)
		if held := k.gpusHeldLocked(); held > 0 && !k.supervisor.Status.Parked.State.GaveBack() {
			m.GPUs[launcher.GPULabels{SpecName: k.rec.SpecName, Flavor: k.rec.Flavor}] += held.Float()
		}
	}
	l.warm.Measure(&m)
	m.GPUSeconds, m.GPUBusy = maps.Clone(l.tally.gpuSeconds), maps.Clone(l.tally.gpuBusy)
	l.mu.Unlock()
	return m
}

// cullLocked counts a culled kernel, once for each time it was culled.
func (t *tally) cullLocked(k *kernel, end *api.Ending) {
	if end == nil || !end.Culled || end.At.Equal(k.culled) || end.At.Before(t.since) {
		return
	}
	k.culled = end.At
	t.culls[launcher.CullLabels{SpecName: k.rec.SpecName, Limit: end.CulledFor}]++
}

// start is a start that this launcher has begun, from the program's start until its first answer or its failure.
type start struct {
	phases []launcher.Phase // phases that are over
	since  time.Time        // when the last of these ended
}

// trackStart reports the outcome of a start to the observer, now or later.
func (l *Launcher) trackStart(k *kernel, s *start) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.start = s
	l.tally.startLocked(k)
}

// startLocked reports the outcome of a start to the observer once it is known. A kernel that was stopped has
// neither started nor failed.
func (t *tally) startLocked(k *kernel) {
	s := k.start
	if s == nil {
		return
	}
	switch {
	case k.stop != nil || k.end != nil && k.end.Stopped:
	case k.supervisor.SaysLocked(api.Idle, api.Busy):
		t.observer.KernelUp(k.rec.SpecName,
			append(s.phases, launcher.Phase{Name: launcher.PhaseReady, Took: t.now().Sub(s.since)}))
	case !k.livesLocked() || k.supervisor.SaysLocked(api.Dead):
		t.observer.KernelFailed(k.rec.SpecName, launcher.FailedExited)
	default:
		return
	}
	k.start = nil
}
