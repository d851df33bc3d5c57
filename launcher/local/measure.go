package local

import (
	"maps"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// Measure returns what metrics are made of.
func (l *Launcher) Measure() launcher.Measures {
	var m launcher.Measures
	for _, k := range l.known() {
		if d, err := l.describe(k); err == nil { // else it went just now
			m.Kernels = append(m.Kernels, d)
		}
	}
	l.mu.Lock()
	total := l.tally.Total()
	m.Culls = maps.Clone(l.culls)
	l.mu.Unlock()
	m.Traffic = traffic(total)
	m.LogEvicted, m.LogLost = total.LogEvicted, total.LogLost
	return m
}

// countCull counts a kernel that was culled, each time once. Launcher.mu is held.
func (l *Launcher) countCull(k *kernel, end *supervisor.Ending) {
	if end == nil || !end.Culled || end.At.Equal(k.culled) || end.At.Before(l.opened) {
		return
	}
	k.culled = end.At
	l.culls[launcher.Cull{SpecName: k.rec.SpecName, Limit: end.CulledFor}]++
}

func traffic(c supervisor.Counts) (all []launcher.Traffic) {
	for i, channel := range supervisor.CountedChannels {
		all = append(all, launcher.Traffic{Channel: channel, ToKernel: true, Messages: c.ToKernel[i][0], Bytes: c.ToKernel[i][1]},
			launcher.Traffic{Channel: channel, Messages: c.FromKernel[i][0], Bytes: c.FromKernel[i][1]})
	}
	return all
}

// start is the start of a kernel that this launcher has begun and whose program runs, until it has answered or will not.
type start struct {
	phases []launcher.Phase // those that are over
	since  time.Time        // when they were
}

// follow tells the observer how a start ends whose program runs.
func (l *Launcher) follow(k *kernel, s *start) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.start = s
	l.observe(k)
}

// observe tells how a start has ended, once it has. A kernel that somebody stops has neither started nor failed. Launcher.mu is held.
func (l *Launcher) observe(k *kernel) {
	s := k.start
	if s == nil {
		return
	}
	dead := !k.lives() || k.heard && k.status.State == string(launcher.Dead)
	switch {
	case k.stop != nil || k.end != nil && k.end.Stopped:
	case k.heard && (k.status.State == string(launcher.Idle) || k.status.State == string(launcher.Busy)):
		l.opts.Observer.KernelUp(k.rec.SpecName, append(s.phases, launcher.Phase{Name: launcher.PhaseReady, Took: l.timing.now().Sub(s.since)}))
	case dead:
		l.opts.Observer.KernelFailed(k.rec.SpecName, launcher.FailedExited)
	default:
		return
	}
	k.start = nil
}
