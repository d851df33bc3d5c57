//go:build linux && cgo

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// listed adds to a device what only list asks for. The driver reserves a 64th of the memory for itself.
func listed(d *mock.Device, name string, memory uint64) *mock.Device {
	d.GetNameFunc = func() (string, nvml.Return) { return name, nvml.SUCCESS }
	d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{Total: memory, Reserved: memory / 64}, nvml.SUCCESS
	}
	return d
}

func TestList(t *testing.T) {
	lost := listed(device("GPU-9", nil, nil), "T4", 0)
	lost.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, nvml.ERROR_GPU_IS_LOST }
	shared := listed(device("GPU-8", nil, nil), "GB10", 0) // its memory is that of the processors
	shared.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{}, nvml.ERROR_NOT_SUPPORTED
	}
	split := listed(partitioned(1), "A100", 8192)
	instance, _ := split.GetMigDeviceHandleByIndex(1)
	listed(instance.(*mock.Device), "NVIDIA A100 MIG 1g.10gb", 1024)
	broken := driver()
	broken.InitFunc = func() nvml.Return { return nvml.ERROR_UNKNOWN }
	absent := func(ret nvml.Return) *mock.Interface {
		lib := driver()
		lib.InitFunc = func() nvml.Return { return ret }
		return lib
	}
	for _, tt := range []struct {
		name string
		lib  nvml.Interface
		want string
		code int
	}{
		{"a GPU", driver(listed(device("GPU-1", nil, nil), "T4", 4096)),
			`{"devices":[{"uuid":"GPU-1","index":0,"model":"T4","memory_total":4096,"memory_reserved":64,"healthy":true}]}`, 0},
		{"a partitioned GPU", driver(split), `{"devices":[{"uuid":"GPU-whole","index":0,"model":"A100","memory_total":8192,` +
			`"memory_reserved":128,"mig_mode":true,"mig":[{"uuid":"MIG-1","profile":"1g.10gb","memory_total":1024,` +
			`"memory_reserved":16}],"healthy":true}]}`, 0},
		{"no memory of its own", driver(shared),
			`{"devices":[{"uuid":"GPU-8","index":0,"model":"GB10","healthy":true}]}`, 0},
		{"lost GPUs", driver(nil, lost), `{"devices":[{"uuid":"","index":0,"healthy":false,"error":"ERROR_GPU_IS_LOST"},` +
			`{"uuid":"GPU-9","index":1,"model":"T4","healthy":false,"error":"ERROR_GPU_IS_LOST"}]}`, 0},
		{"no GPU", driver(), `{"devices":[],"reason":"NVIDIA's driver shows no GPU"}`, 0},
		{"no library", absent(nvml.ERROR_LIBRARY_NOT_FOUND),
			`{"devices":[],"reason":"NVIDIA's library libnvidia-ml.so.1 was not found"}`, 0},
		{"no driver", absent(nvml.ERROR_DRIVER_NOT_LOADED),
			`{"devices":[],"reason":"NVIDIA's driver is not loaded"}`, 0},
		{"a driver that fails", broken, "", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			if code := runList(nil, tt.lib, &out); code != tt.code || strings.TrimSpace(out.String()) != tt.want {
				t.Errorf("exit code %d with\n%s\nnot %d with\n%s", code, out.String(), tt.code, tt.want)
			}
			if tt.code != 0 {
				return
			}
			if _, err := gpu.ParseList(out.Bytes()); err != nil {
				t.Error(err)
			}
		})
	}
	if code := runList([]string{"all"}, driver(), new(bytes.Buffer)); code != 2 {
		t.Errorf("an argument: exit code %d", code)
	}
}

// TestList_Machine lists the eight GPUs of go-nvml's machine.
func TestList_Machine(t *testing.T) {
	machine := dgxa100.New()
	machine.ExtensionsFunc = driver().ExtensionsFunc
	for _, d := range machine.Devices {
		a100 := d.(*dgxa100.Device)
		listed(&a100.Device, "Mock NVIDIA A100-SXM4-40GB", 40<<30)
	}
	var out bytes.Buffer
	if code := runList(nil, machine, &out); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	l, err := gpu.ParseList(out.Bytes())
	if err != nil || len(l.Devices) != 8 || l.Devices[7].Index != 7 || !l.Devices[7].Healthy ||
		l.Devices[7].MemoryTotal != 40<<30 || !strings.HasPrefix(l.Devices[7].UUID, "GPU-") {
		t.Errorf("got %+v, %v", l, err)
	}
}
