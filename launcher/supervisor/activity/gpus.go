package activity

import (
	"encoding/json"
	"math"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	// gpuBusy is the use of a device from which it counts as busy. Less is noise of the counters.
	gpuBusy = 0.01
	// gpuPause is the least time between two lines of status streams for samples alone.
	gpuPause = 10 * time.Second

	// A change of less than these is not shown at once.
	gpuUseStep    = 0.05
	gpuMemoryStep = 64 // of a device's memory

	// maxGPUText bounds the JSON of the devices, in bytes. A kernel's container may invent them. With longer ones,
	// gateways could not read the status.
	maxGPUText = 32 << 10
)

// GPUs is what samples have shown of the kernel's GPUs. The zero value is ready.
type GPUs struct {
	Devices []api.GPU  // that the kernel holds; nil: none, or unknown
	Sum     api.GPUUse // since the kernel was started
	Wakes   uint64     // counts the changes that are worth a line of the status stream

	since   map[string]gpuSince // by UUID
	tally   gpu.Tally           // of the present process, as far as Sum has it
	shown   []api.GPU           // at the last of Wakes
	wokenAt time.Time
	parked  time.Time // until when Sum.Parked is counted; zero: the kernel has its GPU
}

// gpuSince is since when a device is busy, or idle.
type gpuSince struct {
	busy bool
	at   time.Time
}

// Begin begins the samples of another process.
func (g *GPUs) Begin() { g.tally = gpu.Tally{} }

// Park counts the time for which the kernel has no GPU. It is called at each change of that, and before Sum is read.
func (g *GPUs) Park(away bool, at time.Time) {
	if !g.parked.IsZero() {
		g.Sum.Parked += max(0, at.Sub(g.parked))
	}
	if g.parked = at; !away {
		g.parked = time.Time{}
	}
}

// Take takes over what the samples of the present process show at a time.
func (g *GPUs) Take(now gpu.Tally, at time.Time) {
	if now.At.Equal(g.tally.At) {
		return
	}
	g.Sum.Measured += max(0, now.Measured-g.tally.Measured)
	g.Sum.Busy += max(0, now.Busy-g.tally.Busy)
	g.tally = now
	g.Devices = g.Devices[:0:0] // a status may still hold the old ones
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
		g.Devices = append(g.Devices, shown)
	}
	if len(now.Devices) == 0 && now.Error != "" {
		for _, d := range g.shown { // they are still held
			d.Utilization, d.MemoryUsed, d.BusySince, d.IdleSince, d.Error = nil, 0, "", "", now.Error
			g.Devices = append(g.Devices, d)
		}
	}
	if b, err := json.Marshal(g.Devices); err != nil || len(b) > maxGPUText {
		g.Devices = nil
	}
	g.since = since
	if notable(g.shown, g.Devices) && at.Sub(g.wokenAt) >= gpuPause {
		g.shown, g.wokenAt = g.Devices, at
		g.Wakes++
	}
}

// IdleSince returns since when no device computes, or last if that is later. It is zero if one computes, or may.
func (g *GPUs) IdleSince(last time.Time) time.Time {
	for _, d := range g.Devices {
		if d.BusySince != "" || d.Utilization == nil || d.Error != "" {
			return time.Time{}
		}
		if t, err := time.Parse(time.RFC3339Nano, d.IdleSince); err == nil {
			last = latest(last, t)
		}
	}
	return last
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
