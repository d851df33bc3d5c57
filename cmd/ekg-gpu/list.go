//go:build linux && cgo

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// runList runs ekg-gpu list.
func runList(args []string, lib nvml.Interface, out io.Writer) int {
	if len(args) > 0 {
		fmt.Fprintln(os.Stderr, "ekg-gpu: list takes no arguments")
		return 2
	}
	l, err := meter{lib: lib}.list()
	if err == nil {
		err = json.NewEncoder(out).Encode(l)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ekg-gpu:", err)
		return 1
	}
	return 0
}

// list returns the GPUs of the machine with their instances. Without a driver it has a reason instead.
func (m meter) list() (l gpu.List, err error) {
	l.Devices = []gpu.Listed{}
	switch ret := m.lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		l.Reason = "NVIDIA's library libnvidia-ml.so.1 was not found"
		return l, nil
	case nvml.ERROR_DRIVER_NOT_LOADED:
		l.Reason = "NVIDIA's driver is not loaded"
		return l, nil
	default:
		return l, fmt.Errorf("NVML cannot be used: %w", ret)
	}
	defer func() {
		if ret := m.lib.Shutdown(); ret != nvml.SUCCESS && err == nil {
			err = fmt.Errorf("NVML cannot be shut down: %w", ret)
		}
	}()
	n, ret := m.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return l, fmt.Errorf("GPUs cannot be counted: %w", ret)
	}
	for i := range n {
		device, ret := m.lib.DeviceGetHandleByIndex(i)
		if ret == nvml.ERROR_NO_PERMISSION {
			continue // the count includes GPUs that belong to others
		}
		d := gpu.Listed{Index: i}
		err := asError(ret)
		if err == nil {
			err = m.describe(&d, device)
		}
		if d.Healthy = err == nil; err != nil {
			d.Error = err.Error()
		}
		l.Devices = append(l.Devices, d)
	}
	if len(l.Devices) == 0 {
		l.Reason = "NVIDIA's driver shows no GPU"
	}
	return l, nil
}

// describe fills in what the driver knows of a GPU. A GPU of which it cannot tell something is not healthy.
func (m meter) describe(d *gpu.Listed, device nvml.Device) error {
	uuid, ret := device.GetUUID()
	if ret != nvml.SUCCESS {
		return ret
	}
	d.UUID = uuid
	d.Model, _ = device.GetName() // a GPU without a name is shown without one
	memory, ret := m.memoryOf(device)
	d.MemoryTotal, d.Reserved = int64(memory.Total), int64(memory.Reserved)
	if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
		return ret
	}
	if !m.has("nvmlDeviceGetMigMode") {
		return nil
	}
	mode, _, ret := device.GetMigMode()
	if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED { // most GPUs do not support it
		return ret
	}
	if d.MIG = ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE; !d.MIG {
		return nil
	}
	most, ret := device.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return ret
	}
	for j := range most {
		instance, ret := device.GetMigDeviceHandleByIndex(j)
		if ret == nvml.ERROR_NOT_FOUND {
			continue // this number has no instance, or it belongs to others
		}
		if ret != nvml.SUCCESS {
			return fmt.Errorf("instance %d: %w", j, ret)
		}
		i, err := m.describeInstance(instance)
		if err != nil {
			return fmt.Errorf("instance %d: %w", j, err)
		}
		d.Instances = append(d.Instances, i)
	}
	return nil
}

func (m meter) describeInstance(device nvml.Device) (i gpu.Instance, err error) {
	uuid, ret := device.GetUUID()
	if ret != nvml.SUCCESS {
		return i, ret
	}
	i.UUID = uuid
	if strings.Contains(uuid, "/") {
		return i, errors.New("drivers before 470 give it a name that kernels cannot use")
	}
	// "NVIDIA A100-SXM4-80GB MIG 1g.10gb" (nvml.h, nvmlDeviceGetName, and nvidia-smi -L)
	name, _ := device.GetName() // an instance without a name is shown without a profile
	_, i.Profile, _ = strings.Cut(name, "MIG ")
	memory, ret := m.memoryOf(device)
	i.MemoryTotal, i.Reserved = int64(memory.Total), int64(memory.Reserved)
	if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
		return i, ret
	}
	return i, nil
}
