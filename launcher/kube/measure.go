package kube

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Measure returns the data for metrics.
func (l *Launcher) Measure() launcher.Measures {
	m := launcher.Measures{GPUs: map[launcher.GPULabels]float64{}}
	known := l.snapshot()
	for _, k := range known {
		if d, err := l.describe(k); err == nil { // else it is gone
			m.Kernels = append(m.Kernels, d)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clusterNow()
	for _, k := range known {
		l.countGPUsLocked(k)
		if n := podstatus.GPUsHeld(k.pod, now); n > 0 && !k.removed {
			m.GPUs[k.gpuLabelsLocked()] += n.Float()
		}
	}
	l.gpuTime.Measure(&m)
	l.warm.Measure(&m)
	m.Culls, m.Keys = l.endings.Culls(), countKeysLocked(l.keys, known)
	l.follower.MeasureLocked(&m)
	return m
}

// gpuLabelsLocked returns by what the kernel's GPUs are counted.
func (k *kernel) gpuLabelsLocked() launcher.GPULabels {
	return launcher.GPULabels{SpecName: k.rec.SpecName, Flavor: k.rec.Flavor}
}

// countGPUsLocked adds the time since the last call for which a kernel has held GPUs, and that for which these have
// computed.
func (l *Launcher) countGPUsLocked(k *kernel) {
	if k.removed {
		return // its time was added at its removal
	}
	opened, of := l.opts.Cluster.Time(l.opened), k.gpuLabelsLocked()
	l.gpuTime.Hold(&k.gpuTime, of, k.pod, opened, l.clusterNow())
	switch {
	case k.end != nil:
		l.gpuTime.Use(&k.gpuTime, of, k.pod, opened, k.end.GPUUse.Busy)
	case k.supervisor.HasStatus:
		l.gpuTime.Use(&k.gpuTime, of, k.pod, opened, k.supervisor.Status.GPUUse.Busy)
	}
}

// start is a start that this launcher has begun. It is kept until the kernel has answered or has failed.
type start struct {
	requested  time.Time // when Start was called
	podCreated time.Time // when the pod had been created
}

// trackStart reports the outcome of a start to the observer, now or later.
func (l *Launcher) trackStart(id string, s start) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[id]
	if k == nil || k.rec.Generation != 1 {
		return // it was stopped at once
	}
	k.start = &s
	l.reportStartLocked(k)
}

// reportStartLocked reports the outcome of a start to the observer once it is known. A kernel that was stopped has
// neither started nor failed.
func (l *Launcher) reportStartLocked(k *kernel) {
	if k.start == nil {
		return
	}
	switch {
	case k.stop != nil || k.end != nil && k.end.Stopped:
	case k.supervisor.SaysLocked(api.Idle, api.Busy):
		phases := podstatus.Phases(k.pod, l.events.Of(k.pod.UID), k.start.requested, k.start.podCreated, l.clusterNow())
		l.opts.Observer.KernelUp(k.rec.SpecName, phases)
		for _, p := range phases { // for how long a pod with GPUs has waited for a node
			if p.Name == launcher.PhaseScheduled && podspec.GPUs(k.pod) > 0 {
				l.opts.Observer.GPUWaited(k.rec.Flavor, p.Took)
			}
		}
	case k.end != nil || k.supervisor.SaysLocked(api.Dead):
		l.opts.Observer.KernelFailed(k.rec.SpecName, podstatus.FailureOf(k.pod))
	default:
		return
	}
	k.start = nil
}
