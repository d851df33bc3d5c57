package api

import (
	"fmt"
	"time"
)

// Park says when a supervisor parks its kernel: it saves what the kernel has in its GPU's memory, and gives the GPU
// back. The zero value parks no kernel. Package parking has the rules.
type Park struct {
	Never      bool          `json:"never,omitempty"`       // whatever the rest says
	Shared     bool          `json:"shared,omitempty"`      // in a pod: gateways lend the GPU, see Seat; also with Never
	Last       bool          `json:"last,omitempty"`        // with Shared: it waits behind all others, as a job
	Idle       time.Duration `json:"idle,omitempty"`        // idle time after which another kernel gets the GPU; 0: never
	After      time.Duration `json:"after,omitempty"`       // idle time after which it is given back in any case; 0: never
	IdleMemory int64         `json:"idle_memory,omitempty"` // bytes; with more, After does not count; 0: 8 GiB
	Memory     int64         `json:"memory,omitempty"`      // bytes of host memory of all parked kernels; 0: no bound
}

// Validate says what is wrong with the settings, with the JSON key in front.
func (p *Park) Validate() error {
	switch {
	case p.Idle < 0:
		return fmt.Errorf("gpu_samples.park.idle is %d", p.Idle)
	case p.After < 0:
		return fmt.Errorf("gpu_samples.park.after is %d", p.After)
	case p.IdleMemory < 0:
		return fmt.Errorf("gpu_samples.park.idle_memory is %d", p.IdleMemory)
	case p.Memory < 0:
		return fmt.Errorf("gpu_samples.park.memory is %d", p.Memory)
	}
	return nil
}

// Parked is what has become of the GPU of a kernel that may be parked. Its times have TimeFormat.
type Parked struct {
	State  ParkState `json:"state,omitempty"`
	Since  string    `json:"since,omitempty"`
	Reason string    `json:"reason,omitempty"` // why it keeps its GPU, or what it waits for
	Cause  ParkCause `json:"cause,omitempty"`  // the class of the reason if the state is GPUFailed

	KeepGPUUntil string `json:"keep_gpu_until,omitempty"` // it is not parked before; its owner wants that
}

// ParkState is the state of a kernel's GPU.
type ParkState string

// GaveBack reports whether the kernel has given its GPU back. One that is GPUWaking may have got it again.
func (p ParkState) GaveBack() bool { return p == GPUNone || p == GPUParked || p == GPUWaking }

// The states of a kernel's GPU. The kernel has a GPU while it is GPUHeld or GPUParking.
const (
	GPUNone    ParkState = "none"    // it has nothing on the GPU, and has given it back or not taken it yet
	GPUHeld    ParkState = "held"    // the GPU is its own
	GPUParking ParkState = "parking" // its GPU memory is being saved
	GPUParked  ParkState = "parked"  // its GPU memory is saved, and the GPU was given back
	GPUWaking  ParkState = "waking"  // it waits for its GPU, or its GPU memory is being restored
	GPUFailed  ParkState = "failed"  // it cannot be parked
)

// ParkStates are all states.
var ParkStates = []ParkState{GPUNone, GPUHeld, GPUParking, GPUParked, GPUWaking, GPUFailed}

// ParkCause is why a kernel cannot be parked, in a word. It labels metrics, so there are only a few.
type ParkCause string

// The classes of reasons.
const (
	CauseMemory    ParkCause = "memory"    // the machine's memory has no room
	CauseBound     ParkCause = "bound"     // other parked kernels take too much of Park.Memory
	CauseProcesses ParkCause = "processes" // several processes use the GPU, or one that cannot be saved
	CauseComputes  ParkCause = "computes"  // its GPU computes, whatever is measured
	CauseDriver    ParkCause = "driver"    // NVIDIA's driver does not do it
	CauseProgram   ParkCause = "program"   // ekg-gpu does not run or has ended, or finds no library of NVIDIA
)

// ParkCauses are all classes.
var ParkCauses = []ParkCause{CauseMemory, CauseBound, CauseProcesses, CauseComputes, CauseDriver, CauseProgram}

// Wakes are what a supervisor has counted of the kernel's returns to its GPU.
type Wakes struct {
	Waits    Durations `json:"waits"`    // for the GPU, one for each return that was not ahead of a cell
	Restores Durations `json:"restores"` // of the GPU memory, if some was saved
}

// DurationBounds are the upper bounds of all buckets of Durations but the last, in seconds.
var DurationBounds = [...]float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}

// Durations count durations by their length.
type Durations struct {
	Buckets [len(DurationBounds) + 1]int64 `json:"buckets"` // each without those of the others
	Sum     time.Duration                  `json:"sum"`     // nanoseconds
}

// Add counts a duration.
func (d *Durations) Add(took time.Duration) {
	i := 0
	for i < len(DurationBounds) && took.Seconds() > DurationBounds[i] {
		i++
	}
	d.Buckets[i]++
	d.Sum += took
}

// grow adds the growth from before to now.
func (d *Durations) grow(before, now *Durations) {
	for i := range d.Buckets {
		d.Buckets[i] += growth(before.Buckets[i], now.Buckets[i])
	}
	d.Sum += time.Duration(growth(int64(before.Sum), int64(now.Sum)))
}
