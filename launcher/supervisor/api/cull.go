package api

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// Cull is the limits at which a supervisor ends its kernel by itself. The zero value has no limit.
//
// A kernel is idle while no request of any type is in progress on any channel or subshell. The idle clock starts when
// the kernel is up. It restarts at the end of each cell and of each answer to a prompt.
type Cull struct {
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"` // longest idle time; 0: no limit
	Busy        bool          `json:"busy,omitempty"`         // a busy kernel without output counts as idle
	Unattended  bool          `json:"unattended,omitempty"`   // a kernel with connected clients never counts as idle
	BusyLimit   time.Duration `json:"busy_limit,omitempty"`   // longest time of one request; 0: no limit
	MaxAge      time.Duration `json:"max_age,omitempty"`      // longest life, even if busy; 0: no limit
	KeepLimit   time.Duration `json:"keep_limit,omitempty"`   // how far ahead an owner may keep it; 0: not at all
	Warning     time.Duration `json:"warning,omitempty"`      // from warning to end; at most half of the limit
	Interval    time.Duration `json:"interval,omitempty"`     // between two checks; 0: DefaultCullInterval
	CPU         float64       `json:"cpu,omitempty"`          // more processors in use: busy; 0: not measured
	GPU         float64       `json:"gpu,omitempty"`          // more GPUs in use: busy; 0: not measured
	Activity    []string      `json:"activity,omitempty"`     // names of CullActivities, which also restart the idle clock

	IdleMax time.Duration `json:"-"` // longest IdleTimeout that a kernelspec may set; 0: any
}

// The names of Cull's limits, in Ending.CulledFor and in metrics.
const (
	LimitIdle = "idle" // IdleTimeout
	LimitBusy = "busy" // BusyLimit
	LimitAge  = "age"  // MaxAge
)

// DefaultCullInterval is the longest time between two checks of a kernel against its limits.
const DefaultCullInterval = time.Minute

// Names for Cull.Activity, for activity that sends the kernel no request.
const (
	ActivityConnections = "connections" // a websocket that is opened
	ActivityREST        = "rest"        // a REST request that names the kernel
)

// requestActivities maps names for Cull.Activity to the types of the requests that they stand for.
var requestActivities = map[string][]string{
	"comms":      {"comm_open", "comm_msg", "comm_close"},
	"completion": {"complete_request", "is_complete_request"},
	"debug":      {"debug_request"},
	"info":       {"kernel_info_request", "comm_info_request", "list_subshell_request"},
	"inspection": {"inspect_request", "history_request"},
}

// CullActivities returns all names that Cull.Activity accepts, in alphabetical order.
func CullActivities() []string {
	names := []string{ActivityConnections, ActivityREST}
	for name := range requestActivities {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// For returns the limits of a user's kernels: c with the operator's settings for that user. A kernelspec may then set
// an idle timeout as long as the user's.
func (c Cull) For(user kernelspecs.Cull) Cull {
	for to, from := range map[*time.Duration]*kernelspecs.Duration{&c.IdleTimeout: user.IdleTimeout,
		&c.BusyLimit: user.BusyLimit, &c.MaxAge: user.MaxAge, &c.Warning: user.Warning} {
		if from != nil {
			*to = time.Duration(*from)
		}
	}
	if user.IdleTimeout != nil && tighter(c.IdleTimeout, c.IdleMax) == c.IdleMax {
		c.IdleMax = c.IdleTimeout
	}
	return c
}

// With returns the limits of a kernelspec's kernels. The kernelspec's idle timeout is bounded by IdleMax. Its other
// limits are bounded by c's.
func (c Cull) With(spec kernelspecs.Cull) Cull {
	if spec.IdleTimeout != nil {
		c.IdleTimeout = tighter(time.Duration(*spec.IdleTimeout), c.IdleMax)
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
	return c
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
		"max_age":    c.MaxAge,
		"keep_limit": c.KeepLimit, "warning": c.Warning, "interval": c.Interval} {
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
	for _, name := range c.Activity {
		if known := CullActivities(); !slices.Contains(known, name) {
			return fmt.Errorf("cull.activity: %q is not one of %s", name, strings.Join(known, ", "))
		}
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

// Counts reports whether the end of a request of this type restarts the idle clock.
func (c *Cull) Counts(msgType string) bool {
	if msgType == "execute_request" || msgType == "input_reply" {
		return true
	}
	return slices.ContainsFunc(c.Activity, func(name string) bool {
		return slices.Contains(requestActivities[name], msgType)
	})
}
