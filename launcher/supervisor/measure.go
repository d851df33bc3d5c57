package supervisor

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

// gpuLookTime is the longest time of each interval of Cull in which GPUs are measured.
const gpuLookTime = 10 * time.Second

// meter measures what a kernel's processes use, for one life of the kernel.
type meter struct {
	load     activity.Load
	measured time.Time      // when a measurement was last requested
	gpu      process.GPUUse // the last result that load has got
	awaiting bool           // the last look at GPUs has no result yet
}

// measure requests a measurement of processors and GPUs once in an interval, and notes whether the kernel's processes
// compute. It returns the time until the next measurement.
func (l *life) measure() time.Duration {
	cull, m := &l.s.cfg.Cull, &l.meter
	if !activity.Measures(cull) {
		return cull.LookInterval()
	}
	now := time.Now()
	if now.Sub(m.measured) >= cull.LookInterval() {
		m.measured, m.awaiting = now, cull.GPU > 0
		var look process.GPULook
		if cull.GPU > 0 {
			look = process.GPULook{Program: l.s.cfg.GPUProgram, For: min(cull.LookInterval(), gpuLookTime)}
		}
		l.proc.Measure(cull.CPU > 0, look)
	}
	computed := m.load.Computed()
	use := l.proc.Used()
	m.load.Processors(use.Processor.Used, use.Processor.At)
	if next, last := use.GPU, m.gpu; !next.At.Equal(last.At) {
		m.gpu = next
		if m.awaiting { // results that a child sends without a request are ignored
			m.awaiting = false
			if next.Failure != "" && next.Failure != last.Failure {
				l.s.logger.Warn("not all use of GPUs is known; unknown use does not keep the kernel", logkey.Err, next.Failure)
			}
			m.load.GPUs(next.GPUs)
		}
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.use.Computes = m.load.Computes()
	if computed && !l.s.use.Computes {
		l.s.use.Worked()
	}
	return m.measured.Add(cull.LookInterval()).Sub(now)
}

// gpuSave bounds what is not saved of the GPUs' use if the supervisor is killed.
const gpuSave = time.Minute

// watchGPUs starts to sample the GPUs of the process, if the kernel has any.
func (l *life) watchGPUs() {
	s := l.s
	if w := s.cfg.GPUSamples; w.Every > 0 && s.cfg.GPUProgram != "" {
		s.mu.Lock()
		s.use.GPUs.Begin()
		s.mu.Unlock()
		l.proc.WatchGPUs(process.GPUWatch{Program: s.cfg.GPUProgram, Every: w.Every, Devices: w.Devices,
			Session: s.container == nil || s.cfg.SameMachine})
	}
}

// takeSamples takes over what the samples of the process show.
func (l *life) takeSamples() {
	now := l.proc.Used().Samples
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.use.GPUs.Take(now, l.s.now())
	l.s.parker.Changed()
}
