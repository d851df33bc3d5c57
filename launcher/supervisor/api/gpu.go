package api

import "time"

// GPU is a device that a kernel holds, as its model and its status show it. Times have TimeFormat.
type GPU struct {
	UUID        string   `json:"uuid"`
	Model       string   `json:"model,omitempty"`
	Flavor      string   `json:"flavor,omitempty"` // the kernel's; only gateways know it
	MemoryTotal int64    `json:"memory_total,omitempty"`
	MemoryUsed  int64    `json:"memory_used"`          // bytes, by the kernel; of a shared device in a pod by all
	Utilization *float64 `json:"utilization"`          // 0 to 1; null: unknown
	BusySince   string   `json:"busy_since,omitempty"` // it computes; neither this nor IdleSince: unknown
	IdleSince   string   `json:"idle_since,omitempty"` // it does not compute
	Error       string   `json:"error,omitempty"`      // why something is unknown
}

// GPUUse is how long a kernel's GPUs were busy, all devices together counting as one, since the kernel was started.
type GPUUse struct {
	Measured time.Duration `json:"measured,omitempty"` // nanoseconds for which it is known
	Busy     time.Duration `json:"busy,omitempty"`     // nanoseconds
	Parked   time.Duration `json:"parked,omitempty"`   // nanoseconds for which the kernel had given its GPU back
}

// GPUSampleInterval is the time between two samples of a kernel's GPUs.
const GPUSampleInterval = 10 * time.Second

// GPUSamples says which GPUs a supervisor samples. The zero value samples none. It needs Config.GPUProgram.
type GPUSamples struct {
	Every   time.Duration `json:"every,omitempty"`   // nanoseconds
	Devices []string      `json:"devices,omitempty"` // as in CUDA_VISIBLE_DEVICES; empty: all that are seen
	Park    Park          `json:"park,omitzero"`     // when the kernel gives its GPU back
}
