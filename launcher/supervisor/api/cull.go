package api

import (
	"fmt"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// Cull is the limits at which a supervisor ends its kernel by itself. The zero value has no limit.
//
// A kernel is idle while no request of any type is in progress on any channel or subshell. The idle clock starts when
// the kernel is up. It restarts at the end of each cell and of each answer to a prompt.
type Cull struct {
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"` // longest idle time; 0: no limit
	// ParkedTimeout is the longest idle time of a parked kernel; 0: IdleTimeout. If it is set, the idle time of
	// one that was woken ahead of a cell begins then.
	ParkedTimeout time.Duration `json:"parked_timeout,omitempty"`

	Busy       bool          `json:"busy,omitempty"`       // a busy kernel without output counts as idle
	Unattended bool          `json:"unattended,omitempty"` // a kernel with connected clients never counts as idle
	BusyLimit  time.Duration `json:"busy_limit,omitempty"` // longest time of one request; 0: no limit
	MaxAge     time.Duration `json:"max_age,omitempty"`    // longest life, even if busy; 0: no limit
	KeepLimit  time.Duration `json:"keep_limit,omitempty"` // how far ahead an owner may keep it; 0: not at all
	Warning    time.Duration `json:"warning,omitempty"`    // from warning to end; at most half of the limit
	Interval   time.Duration `json:"interval,omitempty"`   // between two checks; 0: DefaultCullInterval
	CPU        float64       `json:"cpu,omitempty"`        // more processors in use: busy; 0: not measured
	GPU        float64       `json:"gpu,omitempty"`        // more GPUs in use: busy; 0: not measured
}

// The names of Cull's limits, in Ending.CulledFor and in metrics.
const (
	LimitIdle = "idle" // IdleTimeout
	LimitBusy = "busy" // BusyLimit
	LimitAge  = "age"  // MaxAge
)

// DefaultCullInterval is the longest time between two checks of a kernel against its limits.
const DefaultCullInterval = time.Minute

// For returns the limits of a user's kernels: c with the operator's settings for that user.
func (c Cull) For(user kernelspecs.CullTimes) Cull {
	for to, from := range map[*time.Duration]*kernelspecs.Duration{&c.IdleTimeout: user.IdleTimeout,
		&c.BusyLimit: user.BusyLimit, &c.MaxAge: user.MaxAge, &c.Warning: user.Warning} {
		if from != nil {
			*to = time.Duration(*from)
		}
	}
	return c.parkedFor(user.IdleTimeout)
}

// parkedFor drops ParkedTimeout if an idle time was set for a user or a kernelspec that is not shorter.
func (c Cull) parkedFor(idle *kernelspecs.Duration) Cull {
	if idle != nil && (*idle == 0 || time.Duration(*idle) >= c.ParkedTimeout) {
		c.ParkedTimeout = 0
	}
	return c
}

// With returns the limits of a kernelspec's kernels. Its limits but that of the idle time are bounded by c's.
func (c Cull) With(spec kernelspecs.CullTimes) Cull {
	if spec.IdleTimeout != nil {
		c.IdleTimeout = time.Duration(*spec.IdleTimeout)
	}
	if spec.BusyLimit != nil {
		c.BusyLimit = tighter(time.Duration(*spec.BusyLimit), c.BusyLimit)
	}
	if spec.MaxAge != nil {
		c.MaxAge = tighter(time.Duration(*spec.MaxAge), c.MaxAge)
	}
	if spec.Warning != nil {
		c.Warning = time.Duration(*spec.Warning)
	}
	c.CPU = spec.CPU
	return c.parkedFor(spec.IdleTimeout)
}

// tighter returns the shorter of two limits; 0 is no limit.
func tighter(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Validate says what is wrong with the settings, with the JSON key in front.
func (c *Cull) Validate() error {
	for name, d := range map[string]time.Duration{"idle_timeout": c.IdleTimeout, "busy_limit": c.BusyLimit,
		"parked_timeout": c.ParkedTimeout, "max_age": c.MaxAge, "keep_limit": c.KeepLimit,
		"warning": c.Warning, "interval": c.Interval} {
		if d < 0 {
			return fmt.Errorf("cull.%s is %d", name, d)
		}
	}
	if c.CPU < 0 {
		return fmt.Errorf("cull.cpu is %g", c.CPU)
	}
	if c.GPU < 0 {
		return fmt.Errorf("cull.gpu is %g", c.GPU)
	}
	return nil
}

// LookInterval returns Interval or its default.
func (c *Cull) LookInterval() time.Duration {
	if c.Interval == 0 {
		return DefaultCullInterval
	}
	return c.Interval
}
