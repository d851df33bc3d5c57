package api

import (
	"fmt"
	"time"
)

// Park says when a supervisor parks its kernel: it saves what the kernel has in its GPU's memory, and gives the GPU
// back. The zero value parks no kernel. Package parking has the rules.
type Park struct {
	Never      bool          `json:"never,omitempty"`       // whatever the rest says
	Idle       time.Duration `json:"idle,omitempty"`        // idle time after which another kernel gets the GPU; 0: never
	After      time.Duration `json:"after,omitempty"`       // idle time after which it is given back in any case; 0: never
	IdleMemory int64         `json:"idle_memory,omitempty"` // bytes; with more, After does not count; 0: 8 GiB
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
	}
	return nil
}

// Parked is what has become of the GPU of a kernel that may be parked. Its times have TimeFormat.
type Parked struct {
	State  ParkState `json:"state,omitempty"`
	Since  string    `json:"since,omitempty"`
	Reason string    `json:"reason,omitempty"` // why it keeps its GPU, or what it waits for

	KeepGPUUntil string `json:"keep_gpu_until,omitempty"` // it is not parked before; its owner wants that
}

// ParkState is the state of a kernel's GPU.
type ParkState string

// GaveBack reports whether the kernel has given its GPU back. One that is GPUWaking may have got it again.
func (p ParkState) GaveBack() bool { return p == GPUNone || p == GPUParked || p == GPUWaking }

// The states of a kernel's GPU. The kernel has a GPU while it is GPUHeld or GPUParking.
const (
	GPUNone    ParkState = "none"    // it has given the GPU back, and has nothing there
	GPUHeld    ParkState = "held"    // the GPU is its own
	GPUParking ParkState = "parking" // its GPU memory is being saved
	GPUParked  ParkState = "parked"  // its GPU memory is saved, and the GPU was given back
	GPUWaking  ParkState = "waking"  // it waits for its GPU, or its GPU memory is being restored
	GPUFailed  ParkState = "failed"  // it cannot be parked
)
