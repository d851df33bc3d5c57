package activity

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// verdict says whether a kernel's processes compute, according to one kind of use.
type verdict int

const (
	computesNot verdict = iota // they do not, or the settings do not ask
	unknown                    // it was not measured yet
	computes                   // they do
)

// Load follows what a kernel's processes use and decides whether they compute. They count as computing until that is
// known. Make one with NewLoad for each life of the kernel's process.
type Load struct {
	cull      *api.Cull
	processor verdict
	gpu       verdict
	doubted   bool // the last look at GPUs did not confirm gpu

	lastTime    time.Duration // processor time at lastMeasure
	lastMeasure time.Time     // zero: not measured yet
}

// Measures reports whether the end of a kernel depends on what its processes use.
func Measures(c *api.Cull) bool { return c.IdleTimeout > 0 && (c.CPU > 0 || c.GPU > 0) }

// NewLoad returns the Load of a process that was not measured yet.
func NewLoad(c *api.Cull) Load {
	expected := func(limit float64) verdict {
		if limit == 0 || !Measures(c) {
			return computesNot
		}
		return unknown
	}
	return Load{cull: c, processor: expected(c.CPU), gpu: expected(c.GPU)}
}

func judge(used, limit float64) verdict {
	if used > limit {
		return computes
	}
	return computesNot
}

// Processors notes the processor time that was used up to a moment. The same moment again is ignored.
func (l *Load) Processors(used time.Duration, at time.Time) {
	if l.cull.CPU == 0 || at.Equal(l.lastMeasure) {
		return
	}
	if !l.lastMeasure.IsZero() {
		l.processor = judge(float64(used-l.lastTime), l.cull.CPU*float64(at.Sub(l.lastMeasure)))
	}
	l.lastTime, l.lastMeasure = used, at
}

// GPUs notes how many GPUs a look has seen in use. One look without use, or a failed one, is ignored, so that it does
// not end a training of days. A second one in a row counts.
func (l *Load) GPUs(used float64) {
	seen := judge(used, l.cull.GPU)
	if l.doubted = l.gpu == computes && seen != computes && !l.doubted; !l.doubted {
		l.gpu = seen
	}
}

// Computes reports whether the processes compute, or may.
func (l *Load) Computes() bool { return l.processor != computesNot || l.gpu != computesNot }

// Computed reports whether the processes were measured and do compute.
func (l *Load) Computed() bool { return l.processor == computes || l.gpu == computes }
