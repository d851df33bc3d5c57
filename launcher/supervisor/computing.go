package supervisor

import "time"

// sign is what one sort of use says of whether a kernel's processes compute.
type sign int

const (
	signNone    sign = iota // they do not, or nobody wants to know
	signUnknown             // it was not measured yet
	signWork                // they do
)

// expected is a sign before anything was measured, where more than limit means that they compute; 0: nobody wants to know.
func expected(limit float64) sign {
	if limit == 0 {
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

// measure has the use of processors and GPUs measured at most once in an interval, and notes whether the kernel's processes
// compute. Until it is known they count as if they did.
func (l *life) measure() {
	cull := &l.s.cfg.Cull
	if cull.CPU == 0 && cull.GPU == 0 {
		return
	}
	if now := time.Now(); now.Sub(l.asked) >= cull.interval() {
		l.asked = now
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
		if next.Failure != "" && next.Failure != last.Failure {
			l.s.logger.Warn("the use of GPUs is not known, and does not keep the kernel", "err", next.Failure)
		}
		l.gpu, l.used.gpu = judge(next.GPUs, cull.GPU), next
	}
	computes := l.processor != signNone || l.gpu != signNone
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if computed && !computes {
		l.s.clock.worked = l.s.clock.now()
	}
	l.s.computes = computes
}
