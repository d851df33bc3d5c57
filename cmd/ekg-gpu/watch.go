//go:build linux && cgo

package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// rested is how many intervals pass between two lines while no process has a GPU open. As many pass between two
// attempts to reach a driver that has failed.
const rested = 6

// lookShare bounds the time for looks at processes: a thousandth of a processor.
const lookShare = 1000

// watcher prints samples of GPUs, one line in each interval.
//
// Asking the driver keeps a GPU initialised that would else sleep. So the library is open only while a process has a
// GPU open: such a GPU is awake. The one exception is the first look, which finds out which GPUs there are.
type watcher struct {
	meter
	every  time.Duration
	only   []string    // UUIDs, their beginnings, or numbers, as in CUDA_VISIBLE_DEVICES; empty: all devices
	inUse  func() bool // whether a process may have a GPU open; it must not wake one
	now    func() time.Time
	out    io.Writer
	ticks  <-chan time.Time // nil: its own; tests send theirs
	parent <-chan struct{}  // closed when the reader is gone

	gauges  []*gauge     // while the library is open
	open    bool         // the library is open
	known   []gpu.Sample // the devices as they were seen last
	printed time.Time    // the line before
	rests   int          // intervals without a line
	failed  bool         // the last line has an error

	// The last look at the processes.
	wasUsed bool
	looked  time.Time
	cost    time.Duration
}

// gauge is one device while the library is open.
type gauge struct {
	*view
	model    string
	lastSeen uint64 // timestamps of the driver, in microseconds; of all samples of the device
	lastPIDs uint64 // as lastSeen, of its processes
}

// run prints lines until the reader is gone. The error is that of a write.
func (w *watcher) run() error {
	ticks := w.ticks
	if ticks == nil {
		t := time.NewTicker(w.every)
		defer t.Stop()
		ticks = t.C
	}
	w.printed = w.now()
	defer w.closeLibrary()
	s := w.start()
	for {
		if s != nil {
			if err := json.NewEncoder(w.out).Encode(s); err != nil {
				return err
			}
		}
		select {
		case <-ticks:
		case <-w.parent:
			return nil
		}
		s = w.tick()
	}
}

// start finds the devices.
func (w *watcher) start() *gpu.Samples {
	err := w.openLibrary()
	if err == nil {
		for _, g := range w.gauges {
			s := g.identity()
			s.Closed = s.Error == ""
			w.known = append(w.known, s)
		}
	}
	w.closeLibrary()
	if err == nil && !w.inUse() { // not used, which would put the next look off
		for i := range w.known { // a device that no process has open computes nothing
			if s := &w.known[i]; s.Closed {
				s.Utilization = new(float64)
			}
		}
	}
	return w.line(w.known, err)
}

// tick returns the next line, or nil if there is nothing new.
func (w *watcher) tick() *gpu.Samples {
	w.rests++
	if w.failed && w.rests < rested {
		return nil
	}
	if len(w.known) == 0 {
		if w.rests < rested {
			return nil
		}
		return w.start() // the driver may have come
	}
	if !w.used() {
		if !w.open && w.rests < rested {
			return nil
		}
		w.closeLibrary()
		return w.line(w.asleep(), nil)
	}
	if !w.open {
		if err := w.openLibrary(); err != nil || len(w.gauges) == 0 {
			return w.line(nil, err)
		}
		if w.rests < rested {
			return nil // the use is measured from now on
		}
	}
	samples := make([]gpu.Sample, 0, len(w.gauges))
	lost := false
	for _, g := range w.gauges {
		s := g.sample(w.now())
		lost = lost || s.Error != "" && g.err != nil && !errors.Is(g.err, nvml.ERROR_NOT_SUPPORTED)
		samples = append(samples, s)
	}
	w.known = samples
	s := w.line(samples, nil)
	if lost {
		w.closeLibrary() // a driver that was loaded again needs a library that is initialised again
		w.failed = true
	}
	return s
}

// used reports whether a process may have a GPU open. Where there are thousands of processes, it looks less often.
func (w *watcher) used() bool {
	if now := w.now(); now.Sub(w.looked) >= lookShare*w.cost {
		began := time.Now()
		w.wasUsed = w.inUse()
		w.looked, w.cost = now, time.Since(began)
	}
	return w.wasUsed
}

// line returns a line of samples.
func (w *watcher) line(devices []gpu.Sample, err error) *gpu.Samples {
	now := w.now()
	s := &gpu.Samples{Seconds: now.Sub(w.printed).Seconds(), Devices: devices}
	if s.Devices == nil {
		s.Devices = []gpu.Sample{}
	}
	if err != nil {
		s.Error = err.Error()
	}
	w.printed, w.rests, w.failed = now, 0, err != nil
	return s
}

// asleep returns the known devices as they are while no process has them open.
func (w *watcher) asleep() []gpu.Sample {
	all := slices.Clone(w.known)
	for i := range all {
		s := &all[i]
		if s.Closed = s.Error == ""; s.Closed {
			s.MemoryUsed, s.Utilization, s.Processes = 0, new(float64), nil
		}
	}
	return all
}

// openLibrary initialises the library and finds the devices. Without a driver there are none, and no error.
func (w *watcher) openLibrary() error {
	switch ret := w.lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED:
		return errors.New("there is no driver")
	default:
		return fmt.Errorf("NVML cannot be used: %w", ret)
	}
	w.open = true
	views, err := w.views()
	if err != nil {
		w.closeLibrary()
		return err
	}
	for i, v := range views {
		if !w.wants(i, v.uuid) {
			continue
		}
		g := &gauge{view: v}
		if v.device != nil {
			g.begin()
			g.model, _ = v.device.GetName() // a device without a name is shown without one
		}
		w.gauges = append(w.gauges, g)
	}
	return nil
}

// wants reports whether a device is among those to sample. number is its place in the driver's order.
func (w *watcher) wants(number int, uuid string) bool {
	return len(w.only) == 0 || slices.ContainsFunc(w.only, func(name string) bool {
		return name == fmt.Sprint(number) || len(name) > len("GPU-") && strings.HasPrefix(uuid, name)
	})
}

// closeLibrary lets the GPUs sleep.
func (w *watcher) closeLibrary() {
	if !w.open {
		return
	}
	for _, g := range w.gauges {
		if g.first != nil {
			_ = g.first.Free() // the library frees the rest
		}
	}
	w.gauges, w.open = nil, false
	_ = w.lib.Shutdown() // nothing can be done about it
}

// identity returns what does not change, and the memory.
func (g *gauge) identity() gpu.Sample {
	s := gpu.Sample{UUID: g.uuid, Model: g.model}
	if g.device == nil {
		s.Error = g.err.Error()
		return s
	}
	memory, ret := g.memoryOf(g.device)
	s.MemoryTotal, s.MemoryUsed = int64(memory.Total), int64(memory.Used)
	if ret != nvml.SUCCESS {
		s.MemoryTotal, s.MemoryUsed = 0, 0
		if ret != nvml.ERROR_NOT_SUPPORTED { // as on machines whose GPU shares the memory of the processors
			g.err = ret
			s.Error = ret.Error()
		}
	}
	return s
}

// sample returns the state of a device since the sample before.
func (g *gauge) sample(now time.Time) gpu.Sample {
	s := g.identity()
	if s.Error != "" {
		return s
	}
	use, err := g.use()
	if err != nil {
		g.err = err
		s.Error = err.Error()
	} else {
		s.Utilization = &use
	}
	if g.hostPIDs {
		s.Processes = g.users(now)
	}
	return s
}

// use returns the part of the time since the last call in which the device computed.
func (g *gauge) use() (float64, error) {
	if g.whole != nil {
		if g.err != nil {
			return 0, g.err
		}
		use, err := g.between()
		if g.first = nil; err == nil {
			g.first, err = g.view.sample()
		}
		return use, err
	}
	// The driver keeps samples of about 20 s. They cover also what happens between two lines.
	if g.has("nvmlDeviceGetSamples") {
		kind, samples, ret := g.device.GetSamples(nvml.GPU_UTILIZATION_SAMPLES, g.lastSeen)
		if sum, n := g.add(kind, samples); ret == nvml.SUCCESS && n > 0 {
			return sum / float64(n), nil
		}
	}
	rates, ret := g.device.GetUtilizationRates()
	return fraction(rates.Gpu), asError(ret)
}

// add returns the sum of the samples' values, and how many count. Timestamps of the first samples are only noted: they
// may be of the time in which the device woke up and scrubbed its memory.
func (g *gauge) add(kind nvml.ValueType, samples []nvml.Sample) (sum float64, n int) {
	since := g.lastSeen
	for _, s := range samples {
		var percent uint32
		switch kind {
		case nvml.VALUE_TYPE_UNSIGNED_INT:
			percent = binary.NativeEndian.Uint32(s.SampleValue[:])
		case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
			percent = uint32(min(binary.NativeEndian.Uint64(s.SampleValue[:]), 100))
		default:
			return 0, 0
		}
		if s.TimeStamp > since && since > 0 {
			sum, n = sum+fraction(percent), n+1
		}
		g.lastSeen = max(g.lastSeen, s.TimeStamp)
	}
	return sum, n
}

// users returns the processes that have the device open, or nil if the driver does not list them.
func (g *gauge) users(now time.Time) []gpu.Process {
	memory, ok := g.running()
	if !ok {
		return nil
	}
	var use map[int]float64
	if g.whole == nil && g.apart {
		since := g.lastPIDs
		g.lastPIDs = uint64(now.UnixMicro())
		used, ret := g.device.GetProcessUtilization(since)
		switch {
		case ret == nvml.SUCCESS, ret == nvml.ERROR_NOT_FOUND, ret == nvml.ERROR_INSUFFICIENT_SIZE && len(used) == 0:
			use = latest(used)
		default:
			g.apart = false
		}
	}
	for pid := range use {
		if _, found := memory[pid]; !found {
			memory[pid] = 0 // it was active, and has closed the device since
		}
	}
	processes := []gpu.Process{}
	for _, pid := range slices.Sorted(maps.Keys(memory)) {
		p := gpu.Process{PID: pid, Memory: memory[pid]}
		if use != nil {
			part := use[pid]
			p.Use = &part
		}
		processes = append(processes, p)
	}
	return processes
}
