package supervisor

import "time"

// sign is what one sort of use says of whether a kernel's processes compute.
type sign int

const (
	signNone    sign = iota // they do not, or nobody wants to know
	signUnknown             // it was not measured yet
	signWork                // they do
)

// measures reports whether it matters if a kernel's processes compute.
func (c *Cull) measures() bool { return c.IdleTimeout > 0 && (c.CPU > 0 || c.GPU > 0) }

// expected is a sign before anything was measured, where more than limit means that they compute; 0: nobody wants to know.
func (c *Cull) expected(limit float64) sign {
	if limit == 0 || !c.measures() {
		return signNone
	}
	return signUnknown
}

func judge(used, limit float64) sign {
	if used > limit {
		return signWork
	}
	return signNone
}

// measure has the use of processors and GPUs measured once in an interval, and notes whether the kernel's processes compute. Until
// it is known they count as if they did. It returns how long there is nothing to measure.
func (l *life) measure() time.Duration {
	cull := &l.s.cfg.Cull
	if !cull.measures() {
		return cull.interval()
	}
	now := time.Now()
	if now.Sub(l.asked) >= cull.interval() {
		l.asked, l.awaiting = now, cull.GPU > 0
		var look gpuLook
		if cull.GPU > 0 {
			look = gpuLook{Program: l.s.cfg.GPUProgram, For: min(cull.interval(), gpuLookTime)}
		}
		l.proc.measure(look)
	}
	computed := l.processor == signWork || l.gpu == signWork
	use := l.proc.used()
	if next, last := use.processor, l.used.processor; cull.CPU > 0 && !next.at.Equal(last.at) {
		if !last.at.IsZero() {
			l.processor = judge(float64(next.used-last.used), cull.CPU*float64(next.at.Sub(last.at)))
		}
		l.used.processor = next
	}
	if next, last := use.gpu, l.used.gpu; !next.at.Equal(last.at) {
		l.used.gpu = next
		if l.awaiting { // a child is believed no more often than it is asked
			l.awaiting = false
			if next.Failure != "" && next.Failure != last.Failure {
				l.s.logger.Warn("not all use of GPUs is known; what is not known does not keep the kernel", "err", next.Failure)
			}
			seen := judge(next.GPUs, cull.GPU)
			// One look of ten seconds that has seen nothing, or has failed, does not end a training of days; two do.
			if l.doubted = l.gpu == signWork && seen != signWork && !l.doubted; !l.doubted {
				l.gpu = seen
			}
		}
	}
	computes := l.processor != signNone || l.gpu != signNone
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if computed && !computes {
		l.s.clock.worked = l.s.clock.now()
	}
	l.s.computes = computes
	return l.asked.Add(cull.interval()).Sub(now)
}
