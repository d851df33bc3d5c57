//go:build linux && cgo

package main

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// driver returns NVML with these devices.
func driver(devices ...nvml.Device) *mock.Interface {
	return &mock.Interface{
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return nil }}
		},
		InitFunc:           func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:       func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(devices), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if devices[i] == nil {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return devices[i], nvml.SUCCESS
		},
	}
}

// device returns a GPU. polls has its use in each poll in percent, byProcess that of each process id. The newest sample
// of a process counts. The processes in idle have the GPU open.
func device(uuid string, polls []uint32, byProcess map[uint32][]uint32, idle ...uint32) *mock.Device {
	now, nowMine := -1, -1
	d := &mock.Device{
		GetUUIDFunc:    func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
		GetMigModeFunc: func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
		GetUtilizationRatesFunc: func() (nvml.Utilization, nvml.Return) {
			now++
			return nvml.Utilization{Gpu: polls[now%len(polls)]}, nvml.SUCCESS
		},
		GetProcessUtilizationFunc: func(since uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			nowMine++
			var all []nvml.ProcessUtilizationSample
			for pid, polls := range byProcess {
				if percent := polls[nowMine%len(polls)]; percent > 0 {
					all = append(all, nvml.ProcessUtilizationSample{Pid: pid, TimeStamp: since + 2, SmUtil: percent},
						nvml.ProcessUtilizationSample{Pid: pid, TimeStamp: since + 1, SmUtil: 99})
				}
			}
			if len(all) == 0 {
				return nil, nvml.ERROR_NOT_FOUND
			}
			return all, nvml.SUCCESS
		},
		GetMPSComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED },
		GetGraphicsRunningProcessesFunc:   func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS },
		GetComputeRunningProcessesFunc: func() (all []nvml.ProcessInfo, _ nvml.Return) {
			for _, pid := range idle {
				all = append(all, nvml.ProcessInfo{Pid: pid})
			}
			return all, nvml.SUCCESS
		},
	}
	return d
}

// partitioned returns a GPU with two instances. The first belongs to others.
func partitioned(supported uint32) *mock.Device {
	instance := device("MIG-1", nil, nil, 7)
	instance.GetGpuInstanceIdFunc = func() (int, nvml.Return) { return 3, nvml.SUCCESS }
	instance.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	d := device("GPU-whole", nil, nil)
	d.GetMigModeFunc = func() (int, int, nvml.Return) {
		return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS
	}
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 2, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 0 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return instance, nvml.SUCCESS
	}
	d.GpmQueryDeviceSupportFunc = func() (nvml.GpmSupport, nvml.Return) {
		return nvml.GpmSupport{IsSupportedDevice: supported}, nvml.SUCCESS
	}
	d.GpmMigSampleGetFunc = func(id int, _ nvml.GpmSample) nvml.Return {
		if id != 3 {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		return nvml.SUCCESS
	}
	return d
}

// measuring gives a driver samples of instances. Between two samples the instances are busy for percent of the time.
// held counts the samples that are not freed.
func measuring(lib *mock.Interface, percent float64, held *int) *mock.Interface {
	lib.GpmSampleAllocFunc = func() (nvml.GpmSample, nvml.Return) {
		*held++
		return &mock.GpmSample{FreeFunc: func() nvml.Return { *held--; return nvml.SUCCESS }}, nvml.SUCCESS
	}
	lib.GpmMetricsGetFunc = func(get *nvml.GpmMetricsGetType) nvml.Return {
		if get.NumMetrics != 1 || get.Metrics[0].MetricId != uint32(nvml.GPM_METRIC_GRAPHICS_UTIL) ||
			get.Sample1 == get.Sample2 {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		get.Metrics[0].Value = percent
		return nvml.SUCCESS
	}
	return lib
}

// without removes the functions whose names begin with missing from a driver's library.
func without(lib *mock.Interface, missing ...string) *mock.Interface {
	lib.ExtensionsFunc = func() nvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
			if slices.ContainsFunc(missing, func(m string) bool { return strings.HasPrefix(name, m) }) {
				return errors.New("undefined symbol: " + name)
			}
			return nil
		}}
	}
	return lib
}

func failing(lib *mock.Interface, ret nvml.Return) *mock.Interface {
	lib.InitFunc = func() nvml.Return { return ret }
	return lib
}

func TestMeter(t *testing.T) {
	var held int
	half := []uint32{0, 100}
	unsupported := device("GPU-old", half, nil, 7)
	unsupported.GetProcessUtilizationFunc = func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	blind := device("GPU-blind", half, nil)
	blind.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
		return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED
	}
	ancient := device("GPU-1", half, nil, 7)
	ancient.GetMPSComputeRunningProcessesFunc, ancient.GetMigModeFunc = nil, nil
	withoutGPM := partitioned(1)
	withoutGPM.GpmQueryDeviceSupportFunc = nil
	strange := device("GPU-1", half, nil, 7)
	strange.GetProcessUtilizationFunc = func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		return nil, nvml.ERROR_INSUFFICIENT_SIZE
	}
	others := driver(device("GPU-1", half, nil), device("GPU-2", half, nil))
	others.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 1 {
			return nil, nvml.ERROR_NO_PERMISSION
		}
		return device("GPU-1", half, nil), nvml.SUCCESS
	}
	secretive := device("GPU-secretive", half, nil)
	secretive.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return nil, nvml.ERROR_NO_PERMISSION
	}
	for _, tt := range []struct {
		name     string
		lib      *mock.Interface
		hostPIDs bool
		want     string // devices
		err      string
	}{
		{"no driver", failing(driver(), nvml.ERROR_DRIVER_NOT_LOADED), true, `[]`, ""},
		{"no library", failing(driver(), nvml.ERROR_LIBRARY_NOT_FOUND), true, `[]`, ""},
		{"another library than the driver's", failing(driver(), nvml.ERROR_LIB_RM_VERSION_MISMATCH), true, `[]`,
			"NVML cannot be used: ERROR_LIB_RM_VERSION_MISMATCH"},
		{"no GPU", driver(), true, `[]`, ""},
		{"idle", driver(device("GPU-1", []uint32{0}, nil)), true, `[{"uuid":"GPU-1","use":0,"processes":[]}]`, ""},
		{"busy, and more than busy", driver(device("GPU-1", half, map[uint32][]uint32{7: {0, 60}, 8: {101}}, 7, 9)), true,
			`[{"uuid":"GPU-1","use":0.5,"processes":[{"pid":7,"use":0.3},{"pid":8,"use":1},{"pid":9,"use":0}]}]`, ""},
		{"in a container", driver(device("GPU-1", half, map[uint32][]uint32{7: {100}}, 7)), false,
			`[{"uuid":"GPU-1","use":0.5,"processes":null}]`, ""},
		{"use of processes unknown", driver(unsupported), true, `[{"uuid":"GPU-old","use":0.5,"processes":[{"pid":7}]}]`, ""},
		{"processes unknown", driver(secretive), true, `[{"uuid":"GPU-secretive","use":0.5,"processes":null}]`, ""},
		{"use unknown", driver(blind), true,
			`[{"uuid":"GPU-blind","use":0,"processes":null,"error":"ERROR_NOT_SUPPORTED"}]`, ""},
		{"one of two is lost", driver(nil, device("GPU-2", half, nil)), false,
			`[{"uuid":"GPU number 0","use":0,"processes":null,"error":"ERROR_GPU_IS_LOST"},` +
				`{"uuid":"GPU-2","use":0.5,"processes":null}]`, ""},
		{"one of two is not ours", others, false, `[{"uuid":"GPU-1","use":0.5,"processes":null}]`, ""},
		{"no active process, reported as ERROR_INSUFFICIENT_SIZE", driver(strange), true,
			`[{"uuid":"GPU-1","use":0.5,"processes":[{"pid":7,"use":0}]}]`, ""},
		{"an old driver", without(driver(ancient), "nvmlDeviceGetM"), true,
			`[{"uuid":"GPU-1","use":0.5,"processes":[{"pid":7,"use":0}]}]`, ""},
		{"an old driver of an instance", without(driver(withoutGPM), "nvmlGpm"), true,
			`[{"uuid":"MIG-1","use":0,"processes":null,` +
				`"error":"the use of an instance cannot be measured: ERROR_NOT_SUPPORTED"}]`, ""},
		{"an instance", measuring(driver(partitioned(1)), 25, &held), true,
			`[{"uuid":"MIG-1","use":0.25,"processes":[{"pid":7}]}]`, ""},
		{"an instance in a container", measuring(driver(partitioned(1)), 101, &held), false,
			`[{"uuid":"MIG-1","use":1,"processes":null}]`, ""},
		{"an instance before Hopper", measuring(driver(partitioned(0)), 25, &held), true,
			`[{"uuid":"MIG-1","use":0,"processes":null,` +
				`"error":"the use of an instance cannot be measured: ERROR_NOT_SUPPORTED"}]`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var paused time.Duration
			var pauses int
			r, err := meter{tt.lib, tt.hostPIDs, func(d time.Duration) { paused += d; pauses++ }}.look(10 * time.Second)
			got, jerr := json.Marshal(r.Devices)
			if jerr != nil || string(got) != tt.want || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
				t.Errorf("got %s, %v, %v", got, err, jerr)
			}
			if want := time.Duration(min(1, len(r.Devices))) * 10 * time.Second; paused < want-time.Microsecond ||
				paused > want {
				t.Errorf("it measured for %s", paused)
			}
			if pauses != 0 && pauses != polls+1 {
				t.Errorf("it polled %d times", pauses)
			}
			if init, left := len(tt.lib.InitCalls()), len(tt.lib.ShutdownCalls()); init != 1 || left != 1 && len(r.Devices) > 0 {
				t.Errorf("the library was initialised %d times and shut down %d times", init, left)
			}
		})
	}
	if held != 0 {
		t.Errorf("%d samples were not freed", held)
	}
}
