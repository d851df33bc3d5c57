//go:build linux && cgo

package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// sampled adds to a device what only samples ask for: 4 KiB of memory, of which each process uses 1 KiB, and the use in
// each look in percent. A look has two samples of the driver.
func sampled(d *mock.Device, use ...uint32) *mock.Device {
	look, at := -1, uint64(1000)
	d.GetNameFunc = func() (string, nvml.Return) { return "T4", nvml.SUCCESS }
	d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{Total: 4096, Used: 2048, Reserved: 512}, nvml.SUCCESS
	}
	list := d.GetComputeRunningProcessesFunc
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		all, ret := list()
		for i := range all {
			all[i].UsedGpuMemory = 1024
		}
		return all, ret
	}
	d.GetSamplesFunc = func(kind nvml.SamplingType, since uint64) (nvml.ValueType, []nvml.Sample, nvml.Return) {
		if kind != nvml.GPU_UTILIZATION_SAMPLES {
			return 0, nil, nvml.ERROR_INVALID_ARGUMENT
		}
		look++
		all := make([]nvml.Sample, 3)
		all[0] = nvml.Sample{TimeStamp: at} // this one is known
		for i := range all[1:] {
			at++
			all[i+1].TimeStamp = at
			binary.NativeEndian.PutUint32(all[i+1].SampleValue[:], use[look%len(use)])
		}
		return nvml.VALUE_TYPE_UNSIGNED_INT, all, nvml.SUCCESS
	}
	return d
}

// watching is a watcher whose time passes only with next. Its interval is 10 s.
type watching struct {
	*watcher
	t    *testing.T
	used bool // a process has a GPU open
	at   time.Time
}

func newWatching(t *testing.T, lib nvml.Interface, hostPIDs bool, only ...string) *watching {
	w := &watching{t: t, used: true, at: time.Unix(1000, 0)}
	w.watcher = &watcher{meter: meter{lib: lib, hostPIDs: hostPIDs}, every: 10 * time.Second, only: only,
		inUse: func() bool { return w.used }, now: func() time.Time { return w.at }}
	w.printed = w.at
	return w
}

// next lets n intervals pass and returns the last line, or "" if the last interval has none.
func (w *watching) next(n int) (line string) {
	w.t.Helper()
	for range n {
		w.at = w.at.Add(w.every)
		line = ""
		if s := w.tick(); s != nil {
			b, err := json.Marshal(s)
			if err != nil {
				w.t.Fatal(err)
			}
			line = string(b)
		}
	}
	return line
}

// begin returns the first line.
func (w *watching) begin() string {
	b, err := json.Marshal(w.start())
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

func (w *watching) want(what, got, want string) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%s: got\n%s\nnot\n%s", what, got, want)
	}
}

// TestWatch_Sleep checks that the driver is asked only while a process has a GPU open, except for the first look.
func TestWatch_Sleep(t *testing.T) {
	lib := driver(sampled(device("GPU-1", []uint32{50}, nil), 0, 60))
	w := newWatching(t, lib, false)
	w.used = false
	const asleep = `"devices":[{"uuid":"GPU-1","model":"T4","memory_total":4096,"memory_used":0,"utilization":0,` +
		`"processes":null,"closed":true}]}`
	w.want("first look", w.begin(), `{"seconds":0,"devices":[{"uuid":"GPU-1","model":"T4","memory_total":4096,`+
		`"memory_used":2048,"utilization":0,"processes":null,"closed":true}]}`)
	calls := func() int { return len(lib.InitCalls()) }
	if calls() != 1 || len(lib.ShutdownCalls()) != 1 {
		t.Fatalf("initialised %d times, shut down %d times", calls(), len(lib.ShutdownCalls()))
	}
	w.want("nothing new", w.next(rested-1), "")
	w.want("after a minute", w.next(1), `{"seconds":60,`+asleep)
	if calls() != 1 {
		t.Error("the driver was asked while no process has the GPU open")
	}
	w.used = true
	w.want("opened", w.next(1), "")
	const awake = `,"devices":[{"uuid":"GPU-1","model":"T4","memory_total":4096,"memory_used":2048,` +
		`"utilization":%s,"processes":null}]}`
	w.want("first use", w.next(1), `{"seconds":20`+fmt.Sprintf(awake, "0.5"))
	w.want("second use", w.next(1), `{"seconds":10`+fmt.Sprintf(awake, "0.6"))
	w.used = false
	w.want("closed", w.next(1), `{"seconds":10,`+asleep)
	if calls() != 2 || len(lib.ShutdownCalls()) != 2 {
		t.Errorf("initialised %d times, shut down %d times", calls(), len(lib.ShutdownCalls()))
	}
}

func TestWatch_Samples(t *testing.T) {
	var held int
	two := func() *mock.Interface {
		return driver(device("GPU-2", []uint32{50}, nil), sampled(device("GPU-1", []uint32{50}, nil), 80))
	}
	counterless := sampled(device("GPU-1", []uint32{50}, nil), 0)
	counterless.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
		return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED
	}
	counterless.GetSamplesFunc = func(nvml.SamplingType, uint64) (nvml.ValueType, []nvml.Sample, nvml.Return) {
		return 0, nil, nvml.ERROR_NOT_SUPPORTED
	}
	shared := sampled(device("GPU-1", []uint32{50}, nil), 10)
	shared.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{}, nvml.ERROR_NOT_SUPPORTED
	}
	ancient := sampled(device("GPU-1", []uint32{70}, nil), 10)
	ancient.GetSamplesFunc, ancient.GetMemoryInfo_v2Func = nil, nil
	ancient.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) {
		return nvml.Memory{Total: 4096, Used: 2560}, nvml.SUCCESS
	}
	mig := func(supported uint32) nvml.Device {
		d := partitioned(supported)
		one, _ := d.GetMigDeviceHandleByIndex(1)
		sampled(one.(*mock.Device), 0)
		return d
	}
	const gpu1 = `"uuid":"GPU-1","model":"T4","memory_total":4096,"memory_used":2048,`
	for _, tt := range []struct {
		name     string
		lib      *mock.Interface
		hostPIDs bool
		only     []string
		want     string // devices
	}{
		{"processes", driver(sampled(device("GPU-1", []uint32{50}, map[uint32][]uint32{7: {60}, 8: {101}}, 7, 9), 80)),
			true, nil,
			`{` + gpu1 + `"utilization":0.8,"processes":[{"pid":7,"use":0.6,"memory":1024},{"pid":8,"use":1},` +
				`{"pid":9,"use":0,"memory":1024}]}`},
		{"in a container", driver(sampled(device("GPU-1", []uint32{50}, nil, 7), 80)), false, nil,
			`{` + gpu1 + `"utilization":0.8,"processes":null}`},
		{"one of two", two(), false, []string{"GPU-1"}, `{` + gpu1 + `"utilization":0.8,"processes":null}`},
		{"one of two by number", two(), false,
			[]string{"1"}, `{` + gpu1 + `"utilization":0.8,"processes":null}`},
		{"no counters", driver(counterless), false, nil,
			`{` + gpu1 + `"utilization":null,"processes":null,"error":"ERROR_NOT_SUPPORTED"}`},
		{"no memory of its own", driver(shared), false, nil,
			`{"uuid":"GPU-1","model":"T4","memory_used":0,"utilization":0.1,"processes":null}`},
		{"an old driver", without(driver(ancient), "nvmlDeviceGetSamples", "nvmlDeviceGetMemoryInfo_v2"), false, nil,
			`{"uuid":"GPU-1","model":"T4","memory_total":4096,"memory_used":2560,"utilization":0.7,"processes":null}`},
		{"an instance", measuring(driver(mig(1)), 25, &held), true, nil,
			`{"uuid":"MIG-1","model":"T4","memory_total":4096,"memory_used":2048,"utilization":0.25,` +
				`"processes":[{"pid":7,"memory":1024}]}`},
		{"an instance before Hopper", measuring(driver(mig(0)), 25, &held), false, nil,
			`{"uuid":"MIG-1","model":"T4","memory_total":4096,"memory_used":2048,"utilization":null,"processes":null,` +
				`"error":"the use of an instance cannot be measured: ERROR_NOT_SUPPORTED"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWatching(t, tt.lib, tt.hostPIDs, tt.only...)
			w.begin()
			w.next(2) // the first samples of the driver are only noted
			w.want("sample", w.next(1), `{"seconds":10,"devices":[`+tt.want+`]}`)
			w.closeLibrary()
			if held != 0 {
				t.Errorf("%d samples were not freed", held)
			}
		})
	}
}

// TestWatch_Faults checks that a failed driver is asked again, but seldom, and that a device that works is shown
// beside one that is lost.
func TestWatch_Faults(t *testing.T) {
	t.Run("no driver at first", func(t *testing.T) {
		lib := failing(driver(sampled(device("GPU-1", []uint32{50}, nil), 10)), nvml.ERROR_DRIVER_NOT_LOADED)
		w := newWatching(t, lib, false)
		w.want("no driver", w.begin(), `{"seconds":0,"devices":[],"error":"there is no driver"}`)
		w.want("it rests", w.next(rested-1), "")
		if n := len(lib.InitCalls()); n != 1 {
			t.Errorf("a driver that is missing was asked %d times", n)
		}
		lib.InitFunc = func() nvml.Return { return nvml.SUCCESS }
		w.want("it came", w.next(1), `{"seconds":60,"devices":[{"uuid":"GPU-1","model":"T4","memory_total":4096,`+
			`"memory_used":2048,"utilization":null,"processes":null,"closed":true}]}`)
	})
	t.Run("the GPU is lost and comes back", func(t *testing.T) {
		d := sampled(device("GPU-1", []uint32{50}, nil), 10)
		works, lost := d.GetMemoryInfo_v2Func, false
		d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
			if lost {
				return nvml.Memory_v2{}, nvml.ERROR_GPU_IS_LOST
			}
			return works()
		}
		other := sampled(device("GPU-2", []uint32{50}, nil), 20)
		lib := driver(d, other)
		w := newWatching(t, lib, false)
		w.begin()
		w.next(2)
		lost = true
		const second = `{"uuid":"GPU-2","model":"T4","memory_total":4096,"memory_used":2048,"utilization":0.2,"processes":null}`
		w.want("lost", w.next(1), `{"seconds":10,"devices":[{"uuid":"GPU-1","model":"T4","memory_used":0,`+
			`"utilization":null,"processes":null,"error":"ERROR_GPU_IS_LOST"},`+second+`]}`)
		if n := len(lib.ShutdownCalls()); n != 2 {
			t.Errorf("the library was shut down %d times", n)
		}
		w.want("it rests", w.next(rested-1), "")
		lost = false
		w.next(1)
		w.want("back", w.next(1), `{"seconds":10,"devices":[{"uuid":"GPU-1","model":"T4","memory_total":4096,`+
			`"memory_used":2048,"utilization":0.1,"processes":null},`+second+`]}`)
	})
	t.Run("the driver goes away", func(t *testing.T) {
		lib := driver(sampled(device("GPU-1", []uint32{50}, nil), 10))
		w := newWatching(t, lib, false)
		w.begin()
		w.used = false
		w.next(1)
		w.used = true
		lib.InitFunc = func() nvml.Return { return nvml.ERROR_LIB_RM_VERSION_MISMATCH }
		w.want("another driver", w.next(1),
			`{"seconds":20,"devices":[],"error":"NVML cannot be used: ERROR_LIB_RM_VERSION_MISMATCH"}`)
		w.want("it rests", w.next(rested-1), "")
	})
}

// TestWatch_Run checks that the program ends with its reader, and leaves the library closed.
func TestWatch_Run(t *testing.T) {
	lib := driver(sampled(device("GPU-1", []uint32{50}, nil), 10))
	parent, ticks, done := make(chan struct{}), make(chan time.Time), make(chan error, 1)
	r, out := io.Pipe()
	w := &watcher{meter: meter{lib: lib}, inUse: func() bool { return true }, now: time.Now, out: out, ticks: ticks,
		parent: parent}
	go func() { done <- w.run() }()
	lines := json.NewDecoder(r)
	for i := range 2 {
		var s map[string]any
		if err := lines.Decode(&s); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			ticks <- time.Time{}
			ticks <- time.Time{}
		}
	}
	close(parent)
	if err := <-done; err != nil || len(lib.InitCalls()) != len(lib.ShutdownCalls()) {
		t.Errorf("%v; initialised %d times, shut down %d times", err, len(lib.InitCalls()), len(lib.ShutdownCalls()))
	}
}

// TestReaderGone checks that the program ends without its reader, even if the driver does not return.
func TestReaderGone(t *testing.T) {
	in, reader := io.Pipe()
	code := make(chan int, 1)
	gone := (&commands{out: io.Discard}).follow(in, time.Millisecond, func(c int) { code <- c })
	select {
	case <-gone:
		t.Fatal("the reader is gone before it ends")
	default:
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	<-gone
	if c := <-code; c != 1 {
		t.Errorf("exit code %d", c)
	}
}

// TestGPUFiles checks how processes that have a GPU open are found.
func TestGPUFiles(t *testing.T) {
	for _, tt := range []struct {
		name   string
		opens  string // the target of a descriptor of a process
		states []string
		want   bool
	}{
		{"no GPU is open", "/dev/null", nil, false},
		{"a GPU is open", "/dev/nvidia0", nil, true},
		{"a GPU of WSL is open", "/dev/dxg", []string{"active"}, true},
		{"all GPUs are suspended", "/dev/nvidia0", []string{"suspended", "suspended"}, false},
		{"one GPU is not suspended", "/dev/nvidia0", []string{"suspended", "active"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			fd := filepath.Join(dir, "proc", strconv.Itoa(os.Getppid()), "fd")
			if err := os.MkdirAll(fd, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(tt.opens, filepath.Join(fd, "3")); err != nil {
				t.Fatal(err)
			}
			for i, state := range tt.states {
				power := filepath.Join(dir, "sys", fmt.Sprintf("0000:0%d:00.0", i), "power")
				if err := os.MkdirAll(power, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(power, "runtime_status"), []byte(state+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			g := gpuFiles{proc: filepath.Join(dir, "proc"), devices: filepath.Join(dir, "sys")}
			if got := g.inUse(); got != tt.want {
				t.Errorf("in use: %v", got)
			}
			g.session = os.Getpid() + 1<<22 // no process has this number
			if g.inUse() {
				t.Error("a process of another session counts")
			}
		})
	}
}

// BenchmarkGPUFiles measures the look at this machine's processes.
func BenchmarkGPUFiles(b *testing.B) {
	g := gpuFiles{proc: "/proc", devices: "/sys/bus/pci/drivers/nvidia"}
	for b.Loop() {
		g.inUse()
	}
}
