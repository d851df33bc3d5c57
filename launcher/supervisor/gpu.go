package supervisor

import (
	"encoding/json"
	"math"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

const (
	// gpuBusy is the use of a device from which it counts as busy. Less is noise of the counters.
	gpuBusy = 0.01
	// gpuPause is the least time between two lines of status streams for samples alone.
	gpuPause = 10 * time.Second
	// gpuSave bounds what is not saved of the GPUs' use if the supervisor is killed.
	gpuSave = time.Minute

	// A change of less than these is not shown at once.
	gpuUseStep    = 0.05
	gpuMemoryStep = 64 // of a device's memory

	// maxGPUText bounds the JSON of the devices, in bytes. A kernel's container may invent them. With longer ones,
	// gateways could not read the status.
	maxGPUText = 32 << 10
)

// gpuState is what samples have shown of the kernel's GPUs. Supervisor.mu guards it.
type gpuState struct {
	devices []api.GPU
	since   map[string]gpuSince // by UUID
	use     api.GPUUse
	tally   gpu.Tally // of the present process, as far as use has it
	shown   []api.GPU // what woke the status streams last
	wakes   uint64    // counts it
	wokenAt time.Time
}

// gpuSince is since when a device is busy, or idle.
type gpuSince struct {
	busy bool
	at   time.Time
}

// watchGPUs starts to sample the GPUs of a process, if the kernel has any.
func (s *Supervisor) watchGPUs(p kernelProcess) {
	if w := s.cfg.GPUSamples; w.Every > 0 && s.cfg.GPUProgram != "" {
		s.mu.Lock()
		s.gpus.tally = gpu.Tally{}
		s.mu.Unlock()
		p.WatchGPUs(process.GPUWatch{Program: s.cfg.GPUProgram, Every: w.Every, Devices: w.Devices,
			Session: s.container == nil || s.cfg.SameMachine})
	}
}

// takeSamples takes over what the samples of a process show.
func (s *Supervisor) takeSamples(p kernelProcess) {
	now := p.Used().Samples
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &s.gpus
	if now.At.Equal(g.tally.At) {
		return
	}
	g.use.Measured += max(0, now.Measured-g.tally.Measured)
	g.use.Busy += max(0, now.Busy-g.tally.Busy)
	g.tally = now
	g.devices = g.devices[:0:0] // a status may still hold the old ones
	at := s.now()
	since := map[string]gpuSince{}
	for _, d := range now.Devices {
		shown := api.GPU{UUID: d.UUID, Model: d.Model, MemoryTotal: d.MemoryTotal, MemoryUsed: d.MemoryUsed,
			Utilization: d.Utilization, Error: d.Error}
		if d.Utilization != nil {
			one, ok := g.since[d.UUID]
			if busy := *d.Utilization >= gpuBusy; !ok || one.busy != busy {
				one = gpuSince{busy: busy, at: at}
			}
			since[d.UUID] = one
			if one.busy {
				shown.BusySince = api.Timestamp(one.at)
			} else {
				shown.IdleSince = api.Timestamp(one.at)
			}
		}
		g.devices = append(g.devices, shown)
	}
	if len(now.Devices) == 0 && now.Error != "" {
		for _, d := range g.shown { // they are still held
			d.Utilization, d.MemoryUsed, d.BusySince, d.IdleSince, d.Error = nil, 0, "", "", now.Error
			g.devices = append(g.devices, d)
		}
	}
	if b, err := json.Marshal(g.devices); err != nil || len(b) > maxGPUText {
		g.devices = nil
	}
	g.since = since
	if notable(g.shown, g.devices) && at.Sub(g.wokenAt) >= gpuPause {
		g.shown, g.wokenAt = g.devices, at
		g.wakes++
	}
}

// notable reports whether a change of devices is worth a line of the status stream.
func notable(before, now []api.GPU) bool {
	if len(before) != len(now) {
		return true
	}
	for i, b := range before {
		n := now[i]
		if b.UUID != n.UUID || b.BusySince != n.BusySince || b.IdleSince != n.IdleSince || b.Error != n.Error ||
			(b.Utilization == nil) != (n.Utilization == nil) {
			return true
		}
		if b.Utilization != nil && math.Abs(*b.Utilization-*n.Utilization) >= gpuUseStep {
			return true
		}
		if d := b.MemoryUsed - n.MemoryUsed; max(d, -d) > max(1<<20, n.MemoryTotal/gpuMemoryStep) {
			return true
		}
	}
	return false
}

// gpusLocked returns the devices that the kernel holds; nil: none, or unknown.
func (s *Supervisor) gpusLocked() []api.GPU {
	if s.clock.State() == api.Dead {
		return nil
	}
	return s.gpus.devices
}
