package kube

import (
	"maps"
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
		l.countGPUTimeLocked(k, now)
		if n := podstatus.GPUsHeld(k.pod, now); n > 0 && !k.removed {
			m.GPUs[k.gpuLabelsLocked()] += n.Float()
		}
	}
	m.GPUSeconds, m.GPUBusy = maps.Clone(l.gpuSeconds), maps.Clone(l.gpuBusy)
	l.warm.Measure(&m)
	m.Culls, m.Keys = l.endings.Culls(), countKeysLocked(l.keys, known)
	l.follower.MeasureLocked(&m)
	return m
}

// gpuLabelsLocked returns by what the kernel's GPUs are counted.
func (k *kernel) gpuLabelsLocked() launcher.GPULabels {
	return launcher.GPULabels{SpecName: k.rec.SpecName, Flavor: k.rec.Flavor}
}

// countGPUTimeLocked adds the time for which a kernel's pod has held GPUs, from the last call up to until.
func (l *Launcher) countGPUTimeLocked(k *kernel, until time.Time) {
	if k.removed {
		return // its time was added at its removal
	}
	if k.gpusCountedUntil.IsZero() {
		k.gpusCountedUntil = l.opts.Cluster.Time(l.opened)
		if taken := podspec.TakenAt(k.pod); taken.After(k.gpusCountedUntil) {
			k.gpusCountedUntil = taken // until then it was warm
		}
	}
	if held := podstatus.GPUSeconds(k.pod, k.gpusCountedUntil, until); held > 0 {
		l.gpuSeconds[k.gpuLabelsLocked()] += held
	}
	if until.After(k.gpusCountedUntil) { // a clock may go back: no time counts twice
		k.gpusCountedUntil = until
	}
	l.countGPUUseLocked(k)
}

// countGPUUseLocked adds the time in which a kernel's GPUs have computed since the last call. The time before this
// gateway began is not counted, as for the time for which they were held.
func (l *Launcher) countGPUUseLocked(k *kernel) {
	var busy time.Duration
	switch {
	case k.end != nil:
		busy = k.end.GPUUse.Busy
	case k.supervisor.HasStatus:
		busy = k.supervisor.Status.GPUUse.Busy
	default:
		return
	}
	if !k.gpuUseKnown && k.pod.CreationTimestamp.Time.Before(l.opts.Cluster.Time(l.opened).Truncate(time.Second)) {
		k.gpuBusyCounted = busy
	}
	if busy < k.gpuBusyCounted {
		k.gpuBusyCounted = 0 // it was started again
	}
	if grown := busy - k.gpuBusyCounted; grown > 0 {
		l.gpuBusy[k.gpuLabelsLocked()] += grown.Seconds() * podspec.GPUs(k.pod).Float()
	}
	k.gpuBusyCounted, k.gpuUseKnown = busy, true
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
		phases := podstatus.Phases(k.pod, l.eventsOfLocked(k.pod.UID), k.start.requested, k.start.podCreated, l.clusterNow())
		l.opts.Observer.KernelUp(k.rec.SpecName, phases)
		if podspec.GPUs(k.pod) > 0 {
			l.countGPUWaitLocked(k.rec.Flavor, phases)
		}
	case k.end != nil || k.supervisor.SaysLocked(api.Dead):
		l.opts.Observer.KernelFailed(k.rec.SpecName, podstatus.FailureOf(k.pod))
	default:
		return
	}
	k.start = nil
}

// countGPUWaitLocked reports how long a pod with GPUs has waited for a node.
func (l *Launcher) countGPUWaitLocked(flavor string, phases []launcher.Phase) {
	for _, p := range phases {
		if p.Name == launcher.PhaseScheduled {
			l.opts.Observer.GPUWaited(flavor, p.Took)
		}
	}
}
