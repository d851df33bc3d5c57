//go:build linux && cgo

package main

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// polls is how often a look asks the library, whose own numbers cover the last second or less.
const polls = 10

// meter measures all GPUs that the library shows.
type meter struct {
	lib      nvml.Interface
	hostPIDs bool // the driver's process ids mean something here
	pause    func(time.Duration)
}

// look measures for a time and returns the result.
func (m meter) look(d time.Duration) (report gpu.Report, err error) {
	report.Devices = []gpu.Device{}
	switch ret := m.lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED:
		return report, nil
	default:
		return report, fmt.Errorf("NVML cannot be used: %w", ret)
	}
	defer func() {
		if ret := m.lib.Shutdown(); ret != nvml.SUCCESS && err == nil {
			err = fmt.Errorf("NVML cannot be shut down: %w", ret)
		}
	}()
	views, err := m.views()
	if err != nil || len(views) == 0 {
		return report, err
	}
	began := time.Now()
	for _, v := range views {
		v.begin()
	}
	// The first numbers are discarded: a driver that was asleep scrubs memory, which looks like work (nvml.h,
	// nvmlDeviceGetUtilizationRates).
	step := d / (polls + 1)
	m.pause(step)
	for range polls {
		since := time.Now()
		m.pause(step)
		for _, v := range views {
			v.poll(since)
		}
	}
	report.Seconds = time.Since(began).Seconds()
	for _, v := range views {
		report.Devices = append(report.Devices, v.end())
	}
	return report, nil
}

// views finds the devices, and the instances of partitioned devices instead of those.
func (m meter) views() ([]*view, error) {
	n, ret := m.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("GPUs cannot be counted: %w", ret)
	}
	var all []*view
	for i := range n {
		device, ret := m.lib.DeviceGetHandleByIndex(i)
		if ret == nvml.ERROR_NO_PERMISSION {
			continue // the count includes GPUs that belong to others
		}
		if ret != nvml.SUCCESS {
			all = append(all, &view{uuid: fmt.Sprintf("GPU number %d", i), err: ret})
			continue
		}
		mode, ret := 0, nvml.ERROR_NOT_SUPPORTED
		if m.has("nvmlDeviceGetMigMode") {
			mode, _, ret = device.GetMigMode()
		}
		if ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE { // most devices do not support it
			all = append(all, m.view(device))
			continue
		}
		most, ret := device.GetMaxMigDeviceCount()
		if ret != nvml.SUCCESS {
			all = append(all, &view{uuid: uuidOf(device), err: ret})
		}
		for j := range most {
			instance, ret := device.GetMigDeviceHandleByIndex(j)
			if ret == nvml.ERROR_NOT_FOUND {
				continue // this number has no instance, or it belongs to others
			}
			if ret != nvml.SUCCESS {
				all = append(all, &view{uuid: fmt.Sprintf("instance %d of %s", j, uuidOf(device)), err: ret})
				continue
			}
			v := m.view(instance)
			v.whole = device
			v.instance, ret = instance.GetGpuInstanceId()
			v.err = asError(ret)
			all = append(all, v)
		}
	}
	return all, nil
}

func (m meter) view(device nvml.Device) *view {
	return &view{meter: m, device: device, uuid: uuidOf(device), apart: true, processes: map[int]float64{}}
}

// has reports whether the driver's library has one of the functions. The linker ends a program that calls a missing
// function.
func (m meter) has(functions ...string) bool {
	return slices.ContainsFunc(functions, func(name string) bool { return m.lib.Extensions().LookupSymbol(name) == nil })
}

// memoryOf returns the memory of a device in bytes. Drivers before 510 count what they reserve for themselves as Used,
// and Reserved is 0.
func (m meter) memoryOf(device nvml.Device) (nvml.Memory_v2, nvml.Return) {
	if m.has("nvmlDeviceGetMemoryInfo_v2") {
		return device.GetMemoryInfo_v2()
	}
	memory, ret := device.GetMemoryInfo()
	return nvml.Memory_v2{Total: memory.Total, Free: memory.Free, Used: memory.Used}, ret
}

func uuidOf(device nvml.Device) string {
	uuid, ret := device.GetUUID()
	if ret != nvml.SUCCESS {
		return "a GPU without a UUID"
	}
	return uuid
}

// asError returns nil for success.
func asError(ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return ret
}

// view is the measurement of one device, or of an instance of one.
type view struct {
	meter
	device   nvml.Device
	uuid     string
	whole    nvml.Device // the device that this is an instance of; nil: this is a device
	instance int         // of whole
	first    nvml.GpmSample

	err       error           // why its use is unknown; nil: it is known
	sum       float64         // of the use in each poll
	apart     bool            // the driver reports the use of each process
	processes map[int]float64 // by process id, the sum of the use in each poll
}

// begin takes the first sample of an instance. NVML measures instances only between two samples (GPM, which Hopper's
// and later GPUs have).
func (v *view) begin() {
	if v.whole == nil || v.err != nil {
		return
	}
	ret := nvml.ERROR_NOT_SUPPORTED
	if v.has("nvmlGpmMigSampleGet") {
		var support nvml.GpmSupport
		if support, ret = v.whole.GpmQueryDeviceSupport(); ret == nvml.SUCCESS && support.IsSupportedDevice == 0 {
			ret = nvml.ERROR_NOT_SUPPORTED
		}
	}
	if v.err = asError(ret); v.err == nil {
		v.first, v.err = v.sample()
	}
	if v.err != nil {
		v.err = fmt.Errorf("the use of an instance cannot be measured: %w", v.err)
	}
}

func (v *view) sample() (nvml.GpmSample, error) {
	s, ret := v.lib.GpmSampleAlloc()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	if ret := v.whole.GpmMigSampleGet(v.instance, s); ret != nvml.SUCCESS {
		return nil, errors.Join(ret, asError(s.Free()))
	}
	return s, nil
}

// poll adds what the device did last. since is the time of the poll before.
func (v *view) poll(since time.Time) {
	if v.whole != nil || v.err != nil {
		return
	}
	rates, ret := v.device.GetUtilizationRates()
	if ret != nvml.SUCCESS {
		v.err = ret
		return
	}
	v.sum += fraction(rates.Gpu)
	if !v.hostPIDs || !v.apart {
		return
	}
	used, ret := v.device.GetProcessUtilization(uint64(since.UnixMicro()))
	switch {
	case ret == nvml.SUCCESS:
	case ret == nvml.ERROR_NOT_FOUND, ret == nvml.ERROR_INSUFFICIENT_SIZE && len(used) == 0: // no process was active
	default:
		v.apart = false
		return
	}
	for pid, use := range latest(used) {
		v.processes[pid] += use
	}
}

// latest returns the newest use of each process.
func latest(samples []nvml.ProcessUtilizationSample) map[int]float64 {
	at, use := map[int]uint64{}, map[int]float64{}
	for _, u := range samples {
		if pid := int(u.Pid); u.TimeStamp >= at[pid] {
			at[pid], use[pid] = u.TimeStamp, fraction(u.SmUtil)
		}
	}
	return use
}

// fraction converts a percentage of the library, which may be a little over 100.
func fraction(percent uint32) float64 { return min(float64(percent)/100, 1) }

// end returns the result.
func (v *view) end() gpu.Device {
	d := gpu.Device{UUID: v.uuid, Use: v.sum / polls}
	if v.first != nil {
		d.Use, v.err = v.between()
	}
	if v.err != nil {
		return gpu.Device{UUID: v.uuid, Error: v.err.Error()}
	}
	if v.hostPIDs {
		d.Processes = v.openBy()
	}
	return d
}

// between returns the use of an instance since begin.
func (v *view) between() (use float64, err error) {
	defer func() { err = errors.Join(err, asError(v.first.Free())) }()
	last, err := v.sample()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, asError(last.Free())) }()
	get := nvml.GpmMetricsGetType{NumMetrics: 1, Sample1: v.first, Sample2: last}
	get.Metrics[0].MetricId = uint32(nvml.GPM_METRIC_GRAPHICS_UTIL)
	ret := v.lib.GpmMetricsGet(&get)
	if ret == nvml.SUCCESS {
		ret = nvml.Return(get.Metrics[0].NvmlReturn)
	}
	return min(max(get.Metrics[0].Value/100, 0), 1), asError(ret)
}

// openBy returns the processes that have the device open, or nil if the driver does not list them. It includes
// processes that were active in a poll and have closed the device since.
func (v *view) openBy() []gpu.Process {
	running, ok := v.running()
	if !ok {
		return nil
	}
	for pid := range v.processes {
		running[pid] = 0
	}
	processes := []gpu.Process{}
	for _, pid := range slices.Sorted(maps.Keys(running)) {
		p := gpu.Process{PID: pid}
		if v.apart && v.whole == nil {
			use := v.processes[pid] / polls
			p.Use = &use
		}
		processes = append(processes, p)
	}
	return processes
}

// running returns the processes that have the device open, with the memory that they use, in bytes. The memory is 0 if
// it is unknown. It returns false if the driver does not list them.
func (v *view) running() (map[int]int64, bool) {
	memory := map[int]int64{}
	lists := []func() ([]nvml.ProcessInfo, nvml.Return){
		v.device.GetComputeRunningProcesses, v.device.GetGraphicsRunningProcesses}
	if mps := "nvmlDeviceGetMPSComputeRunningProcesses"; v.has(mps, mps+"_v2", mps+"_v3") {
		lists = append(lists, v.device.GetMPSComputeRunningProcesses)
	}
	for _, list := range lists {
		infos, ret := list()
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, false
		}
		for _, info := range infos {
			if info.UsedGpuMemory > math.MaxInt64 { // NVML_VALUE_NOT_AVAILABLE
				info.UsedGpuMemory = 0
			}
			// A process with graphics and compute contexts is in both lists, with its whole memory.
			memory[int(info.Pid)] = max(memory[int(info.Pid)], int64(info.UsedGpuMemory))
		}
	}
	return memory, true
}
