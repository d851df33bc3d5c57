package supervisor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// Cull says when a supervisor ends its kernel by itself. The zero value: never.
//
// A kernel is idle while no request to it is in progress, of whatever type and on whatever channel or subshell. Its clock starts
// when it is up, and again at the end of each request of a user: of a cell, and of an answer to a prompt.
type Cull struct {
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"` // of idleness; 0: it may be idle for ever
	Busy        bool          `json:"busy,omitempty"`         // a kernel is idle also while it is busy and says nothing
	Unattended  bool          `json:"unattended,omitempty"`   // no kernel is idle to which clients are connected
	BusyLimit   time.Duration `json:"busy_limit,omitempty"`   // of one request; 0: none
	MaxAge      time.Duration `json:"max_age,omitempty"`      // from the kernel's start, whatever it does; 0: none
	KeepLimit   time.Duration `json:"keep_limit,omitempty"`   // how far ahead of now an owner may have it kept; 0: not at all
	Warning     time.Duration `json:"warning,omitempty"`      // between a line in open notebooks and the end; at most half of the limit
	Interval    time.Duration `json:"interval,omitempty"`     // the longest time between two looks; 0: DefaultCullInterval
	CPU         float64       `json:"cpu,omitempty"`          // processors in use above which a kernel is busy; 0: that does not matter
	GPU         float64       `json:"gpu,omitempty"`          // likewise, GPUs in use
	Activity    []string      `json:"activity,omitempty"`     // of CullActivities: what else restarts the clock

	IdleMax time.Duration `json:"-"` // the longest IdleTimeout of a kernelspec; 0: any
}

// The limits of Cull as Ending.CulledFor names them.
const (
	LimitIdle = "idle" // IdleTimeout
	LimitBusy = "busy" // BusyLimit
	LimitAge  = "age"  // MaxAge
)

// DefaultCullInterval is how often a supervisor looks whether its kernel is to be ended, besides when that is due.
const DefaultCullInterval = time.Minute

// The names that Cull.Activity takes for what is done without a request to the kernel.
const (
	activityConnections = "connections" // a websocket that is opened
	activityREST        = "rest"        // a REST request that names the kernel
)

// requestActivities are the names that Cull.Activity takes for requests to the kernel.
var requestActivities = map[string][]string{
	"comms":      {"comm_open", "comm_msg", "comm_close"},
	"completion": {"complete_request", "is_complete_request"},
	"debug":      {"debug_request"},
	"info":       {"kernel_info_request", "comm_info_request", "list_subshell_request"},
	"inspection": {"inspect_request", "history_request"},
}

// CullActivities are all names that Cull.Activity takes, in order.
func CullActivities() []string {
	names := []string{activityConnections, activityREST}
	for name := range requestActivities {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// For is what holds for the kernels of a user for whom the operator wants something else. A kernelspec's idle timeout may be as long as
// the user's.
func (c Cull) For(user kernelspecs.Cull) Cull {
	for to, from := range map[*time.Duration]*kernelspecs.Duration{&c.IdleTimeout: user.IdleTimeout, &c.BusyLimit: user.BusyLimit,
		&c.MaxAge: user.MaxAge, &c.Warning: user.Warning} {
		if from != nil {
			*to = time.Duration(*from)
		}
	}
	if user.IdleTimeout != nil && tighter(c.IdleTimeout, c.IdleMax) == c.IdleMax {
		c.IdleMax = c.IdleTimeout
	}
	return c
}

// With is what holds for the kernels of a kernelspec, within the operator's bounds: an idle timeout up to IdleMax, and other
// limits that are not longer than those for all kernels.
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

// tighter returns the shorter of two limits, where 0 is none.
func tighter(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func (c *Cull) validate() error {
	for name, d := range map[string]time.Duration{"idle_timeout": c.IdleTimeout, "busy_limit": c.BusyLimit, "max_age": c.MaxAge,
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
			return fmt.Errorf("cull.activity: %q is none of %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// interval is the longest time between two looks.
func (c *Cull) interval() time.Duration {
	if c.Interval == 0 {
		return DefaultCullInterval
	}
	return c.Interval
}

// ends reports whether there is anything for which a kernel would be ended.
func (c *Cull) ends() bool { return c.IdleTimeout > 0 || c.BusyLimit > 0 || c.MaxAge > 0 }

// counts reports whether a request of the type restarts the clock when it has ended.
func (c *Cull) counts(msgType string) bool {
	if msgType == "execute_request" || msgType == "input_reply" {
		return true
	}
	return slices.ContainsFunc(c.Activity, func(name string) bool { return slices.Contains(requestActivities[name], msgType) })
}

// warning is how long before the end that a limit brings its users are told.
func (c *Cull) warning(limit time.Duration) time.Duration { return min(c.Warning, limit/2) }

// usage is what there is to be known of a kernel to tell when it is to be ended.
type usage struct {
	up        bool      // it runs and has answered
	started   time.Time // first of all
	idleSince time.Time // the clock's start
	spoke     time.Time // when it last said something
	busy      bool      // there is a request in progress, or its processes compute
	busySince time.Time // begin of the oldest request that it works on; zero if there is none
	worked    time.Time // end of the last work that does not count but has taken long; zero if there was none
	connected bool
	left      time.Time // when the last connection ended; zero if there was none
	keepUntil time.Time // zero if nobody has said so
}

// plan is when and why a kernel will be ended if nothing happens to it until then. The zero value: it will not.
type plan struct {
	at    time.Time
	warn  time.Time // from then on its users are told; not before at if they are not
	limit string    // which of the limits it is: LimitIdle, LimitBusy or LimitAge
	how   string    // of a sentence that begins with "it was", the rest; %s is how long
	since time.Time // what %s counts from
}

// why is the reason at the time of the end: one sentence.
func (p *plan) why(now time.Time) string { return "it was " + p.state(now) }

// state is what the kernel will have been by a time.
func (p *plan) state(at time.Time) string {
	return fmt.Sprintf(p.how, at.Sub(p.since).Round(time.Second))
}

// plan finds the earliest end.
func (c *Cull) plan(u usage) plan {
	var first plan
	take := func(p plan) {
		if first.at.IsZero() || p.at.Before(first.at) {
			first = p
		}
	}
	if c.IdleTimeout > 0 && u.up && (!u.busy || c.Busy) && (!u.connected || !c.Unattended) {
		since, warning := u.idleSince, c.warning(c.IdleTimeout)
		if c.Unattended {
			since = latest(since, u.left)
		}
		if u.busy {
			since = latest(since, u.spoke)
		}
		p := plan{limit: LimitIdle, how: "idle for %s", since: since}
		p.at = latest(since.Add(c.IdleTimeout), u.keepUntil)
		if !u.worked.IsZero() {
			p.at = latest(p.at, u.worked.Add(warning))
		}
		p.warn = p.at.Add(-warning)
		take(p)
	}
	if c.BusyLimit > 0 && u.up && !u.busySince.IsZero() {
		p := plan{limit: LimitBusy, how: "busy with one request for %s", since: u.busySince}
		p.at = latest(u.busySince.Add(c.BusyLimit), u.keepUntil)
		p.warn = p.at.Add(-c.warning(c.BusyLimit))
		take(p)
	}
	if c.MaxAge > 0 {
		p := plan{limit: LimitAge, how: "running for %s, as long as kernels may here", since: u.started}
		p.at = u.started.Add(c.MaxAge)
		p.warn = p.at.Add(-c.warning(c.MaxAge))
		take(p)
	}
	return first
}

// latest returns the latest of some times.
func latest(a time.Time, more ...time.Time) time.Time {
	for _, b := range more {
		if b.After(a) {
			a = b
		}
	}
	return a
}
