package parker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gate"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gpumemory"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/notices"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

// kernel is an idle kernel with a GPU that another kernel wants, and a driver that does what it is asked for. It is its
// own seat and process.
type kernel struct {
	*Parker
	mu    sync.Mutex
	use   activity.Use
	cuda  gpu.CUDAState
	holds bool  // calls of CUDA wait
	taken bool  // another kernel has the GPU
	alone bool  // no other kernel wants the GPU
	waits int   // how often it has joined the line for its GPU
	bare  bool  // asked who has the GPU, it is not the kernel's
	fault error // of that question

	restore time.Duration  // what a restore takes
	failure *gpu.CUDAError // of each look
	breaks  bool           // each save fails
	quits   bool           // the other kernel waits no more when this one is about to be saved
	park    api.Park       // without Idle
	others  int64          // bytes of the machine's memory that other parked kernels take
	saved   int64          // bytes that it has noted
}

func (k *kernel) Return() error                                   { return nil }
func (k *kernel) Keep(time.Time) error                            { return nil }
func (k *kernel) Kept() (time.Time, error)                        { return time.Time{}, nil }
func (k *kernel) Exclusive(context.Context) (func(), error)       { return func() {}, nil }
func (k *kernel) Leave()                                          {}
func (k *kernel) PID() int                                        { return 1 }
func (k *kernel) PassGPUCalls()                                   {}
func (k *kernel) abort(*requests.Request, string, string, string) {}

func (k *kernel) HoldsGPUCalls() (holds bool, why string) {
	if !k.holds {
		why = "calls cannot be held"
	}
	return k.holds, why
}

func (k *kernel) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

func (k *kernel) Owns() (owns bool, err error) {
	k.set(func() { owns = !k.taken && !k.bare })
	return owns, k.fault
}

func (k *kernel) TakeFree() (taken bool, err error) {
	k.set(func() { taken = !k.taken })
	return taken, nil
}

func (k *kernel) Wanted() (wanted bool) {
	k.set(func() { wanted = !k.alone })
	return wanted
}

func (k *kernel) Wait(time.Time) (gpumemory.Turn, error) {
	k.set(func() { k.waits++ })
	return k, nil
}

func (k *kernel) Take() (taken bool, before int, err error) {
	taken, err = k.TakeFree()
	return taken, 0, err
}

func (k *kernel) Saved() (others int64, err error) {
	k.set(func() { others = k.others })
	return others, nil
}

func (k *kernel) NoteSaved(_ int, bytes int64) error {
	k.set(func() {
		k.saved = bytes
		k.alone = k.alone || k.quits
	})
	return nil
}

func (k *kernel) ForgetSaved() error { return k.NoteSaved(0, 0) }

func (k *kernel) AskGPU(c process.GPUCommand) {
	switch {
	case c.Do == gpu.Save && k.breaks:
	case c.Do == gpu.Save && k.cuda == gpu.CUDARunning:
		k.cuda = gpu.CUDASaved
	case c.Do == gpu.Restore && k.cuda == gpu.CUDASaved:
		k.cuda = gpu.CUDARunning
		time.Sleep(k.restore)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.Answered(gpu.Answer{ID: c.ID, State: k.cuda, Failure: k.failure})
}

// begin starts an idle kernel's life with a GPU, in a bubble of synctest.
func begin(t *testing.T, k *kernel) {
	t.Helper()
	log := messagelog.New(messagelog.Options{Stamp: func([]byte) messagelog.Stamp { return messagelog.Stamp{} }})
	table, sessions := requests.NewTable(), session.NewTable(func(*session.Session) {})
	k.use = activity.NewUse(time.Now, &api.Cull{})
	k.use.Ready()
	k.use.GPUs.Devices = []api.GPU{{UUID: "GPU-1", MemoryUsed: 1 << 30, Utilization: new(float64)}}
	k.Parker = New(Options{Mu: &k.mu, Use: &k.use, Shell: gate.New(), Log: log, Notices: notices.New(log, "own"),
		Requests: &table, Sessions: &sessions, Warm: func() bool { return false }, Abort: k.abort, Now: time.Now,
		Logger: slog.New(slog.DiscardHandler)})
	k.park.Idle = time.Minute
	k.SetSeat(k, k.park)
	ctx, cancel := context.WithCancel(t.Context())
	end := k.Begin(ctx, k, false, func(why string) { t.Error(why) })
	t.Cleanup(func() { cancel(); end() })
}

// is checks the state after a time.
func (k *kernel) is(t *testing.T, after time.Duration, state api.ParkState, reason string) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	if got := k.Shown(time.Time{}); got.State != state || got.Reason != reason {
		t.Errorf("after %s it is %+v, want %s %q", after, got, state, reason)
	}
}

// culls checks whether the kernel counts as parked for the time after which it is culled.
func (k *kernel) culls(t *testing.T, parked bool) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.use.Parking; p.Parked != parked || !parked && !p.Woken.Equal(time.Now()) {
		t.Errorf("parked is %+v", p)
	}
}

// cell sends a cell to the kernel's shell.
func (k *kernel) cell(t *testing.T) {
	t.Helper()
	m := jupyter.New(jupyter.Shell, "execute_request", "one", nil, struct{}{})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.Hold(&m, "execute_request")
	if err := k.Shell.Push(m, nil); err != nil {
		t.Error(err)
	}
}

// A kernel that cannot have its calls of CUDA held takes its GPU for each cell. Its model says why.
func TestParker_CallsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{cuda: gpu.CUDANone}
		begin(t, k)
		k.is(t, 30*time.Second, api.GPUHeld, "")
		k.is(t, time.Minute, api.GPUNone, "calls cannot be held")
		k.cell(t)
		k.is(t, 0, api.GPUHeld, "")
	})
}

// A kernel that starts without its GPU takes it at its first call of CUDA. If calls cannot be held, its first cell
// does.
func TestParker_StartsWithout(t *testing.T) {
	for name, fault := range map[string]error{"pinned": nil, "not known": errors.New("no lock")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &kernel{cuda: gpu.CUDANone, holds: true, bare: true, fault: fault}
				begin(t, k)
				k.is(t, time.Second, api.GPUNone, "")
				k.cell(t)
				k.is(t, time.Second, api.GPUNone, "")
				k.Called()
				k.is(t, time.Second, api.GPUHeld, "")
			})
			synctest.Test(t, func(t *testing.T) {
				k := &kernel{cuda: gpu.CUDANone, bare: true, fault: fault}
				begin(t, k)
				k.is(t, time.Second, api.GPUNone, "calls cannot be held")
				k.cell(t)
				k.is(t, time.Second, api.GPUHeld, "")
			})
		})
	}
}

// What operators see: why a kernel cannot be parked, how long it has waited for its GPU, and how long the restore took.
func TestParker_Measures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{cuda: gpu.CUDARunning, holds: true, restore: 2 * time.Second}
		k.failure = &gpu.CUDAError{Text: "2 processes", Processes: 2}
		begin(t, k)
		k.is(t, 2*time.Minute, api.GPUFailed, "2 processes")
		k.mu.Lock()
		if got := k.Shown(time.Time{}).Cause; got != api.CauseProcesses {
			t.Errorf("the cause is %q", got)
		}
		k.failure, k.taken = nil, true
		k.use.Used() // it is tried again
		k.mu.Unlock()
		k.Changed()
		k.is(t, 2*time.Minute, api.GPUParked, "")
		k.cell(t)
		k.is(t, 20*time.Second, api.GPUWaking, "another kernel has it")
		k.mu.Lock()
		if got := k.Shown(time.Time{}).Cause; got != "" || k.Wakes() != (api.Wakes{}) {
			t.Errorf("while it waits: the cause is %q, counted is %+v", got, k.Wakes())
		}
		k.taken = false
		k.mu.Unlock()
		k.is(t, 3*time.Second, api.GPUHeld, "")
		k.mu.Lock()
		defer k.mu.Unlock()
		got := k.Wakes()
		if sum := got.Waits.Sum.Truncate(time.Second); sum != 20*time.Second || got.Waits.Buckets[7] != 1 {
			t.Errorf("it has waited for 20 s, counted is %+v", got.Waits)
		}
		if got.Restores.Sum != 2*time.Second || got.Restores.Buckets[4] != 1 {
			t.Errorf("the restore took 2 s, counted is %+v", got.Restores)
		}
	})
}

// All parked kernels together take a bounded part of the machine's memory. A kernel that does not fit keeps its GPU,
// and is parked soon after there is room. It counts while its memory is there, and not after an attempt that failed.
func TestParker_Bound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 1<<30 + 582<<20
		k := &kernel{cuda: gpu.CUDARunning, holds: true, park: api.Park{Memory: 3 << 30}, saved: 1}
		k.others = 3<<30 - takes + 1
		noted := func(want int64) {
			t.Helper()
			k.set(func() {
				if k.saved != want {
					t.Errorf("it counts for %d bytes, want %d", k.saved, want)
				}
			})
		}
		begin(t, k)
		k.is(t, 2*time.Minute, api.GPUFailed, "it would take 1606 MiB of the machine's memory, and other parked kernels "+
			"take 1466 of the 3072 MiB that are allowed")
		k.set(func() {
			if got := k.Shown(time.Time{}).Cause; got != api.CauseBound {
				t.Errorf("the cause is %q", got)
			}
		})
		noted(0)
		k.set(func() { k.others--; k.quits = true })
		k.is(t, fullRetry, api.GPUFailed, k.reason) // as the kernel that waited has left
		noted(0)
		k.set(func() { k.alone, k.quits = false, false })
		k.is(t, fullRetry, api.GPUParked, "")
		noted(takes)
		k.cell(t)
		k.is(t, time.Second, api.GPUHeld, "")
		noted(0)
		k.set(func() { k.breaks = true })
		k.is(t, 2*time.Minute, api.GPUFailed, "the attempt to save its GPU memory has failed")
		noted(0)
	})
}

// A kernel without CUDA takes no memory of the machine, whatever others take.
func TestParker_BoundWithoutCUDA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{cuda: gpu.CUDANone, holds: true, park: api.Park{Memory: 1}, others: 1}
		begin(t, k)
		k.is(t, 2*time.Minute, api.GPUNone, "")
	})
}

// A kernel whose owner keeps its GPU is not parked before that time.
func TestParker_Keep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{cuda: gpu.CUDARunning, holds: true}
		begin(t, k)
		k.mu.Lock()
		k.use.KeepGPUUntil = time.Now().Add(time.Hour)
		k.mu.Unlock()
		k.is(t, 59*time.Minute, api.GPUHeld, "")
		k.is(t, 3*time.Minute, api.GPUParked, "")
		k.culls(t, true)
		k.cell(t)
		k.is(t, 0, api.GPUHeld, "")
		k.culls(t, false)
	})
}
