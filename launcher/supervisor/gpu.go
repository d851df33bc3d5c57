package supervisor

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

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
}
