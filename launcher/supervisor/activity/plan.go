package activity

import (
	"fmt"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Usage has the values that decide when a kernel is culled.
type Usage struct {
	Up         bool      // it runs and has answered
	Idle       Idle      // the idle clock
	LastOutput time.Time // when iopub last had a message
	Busy       bool      // a request is in progress, or its processes compute
	BusySince  time.Time // when the oldest request began that the kernel works on; zero: it works on none
	Started    time.Time // its first start
	Connected  bool
	Left       time.Time // when the last connection ended; zero: none has ended
	KeepUntil  time.Time // zero: its owner does not keep it
	Parking    Parking
}

// Plan says when and why a kernel will be culled if nothing happens to it until then. The zero value means never.
type Plan struct {
	At    time.Time
	Warn  time.Time // users are warned from then on; if it is not before At, they are not warned
	Limit string    // the limit: api.LimitIdle, api.LimitBusy or api.LimitAge

	how   string    // the rest of a sentence that begins with "it was"; %s is how long
	since time.Time // what %s counts from
}

// Reason returns, as one sentence, the reason of an end at the given time.
func (p *Plan) Reason(at time.Time) string { return "it was " + p.State(at) }

// State returns what the kernel will have been by a time. It is the rest of a sentence that begins with "it was".
func (p *Plan) State(at time.Time) string {
	return fmt.Sprintf(p.how, at.Sub(p.since).Round(time.Second))
}

// Ends reports whether the settings have any limit.
func Ends(c *api.Cull) bool {
	return c.IdleTimeout > 0 || c.ParkedTimeout > 0 || c.BusyLimit > 0 || c.MaxAge > 0
}

// warning returns the time between the warning of users and an end by the limit.
func warning(c *api.Cull, limit time.Duration) time.Duration { return min(c.Warning, limit/2) }

// Next returns the earliest end that the settings want.
func Next(c *api.Cull, u Usage) Plan {
	var first Plan
	for _, p := range [...]Plan{idlePlan(c, u), busyPlan(c, u), agePlan(c, u)} {
		if !p.At.IsZero() && (first.At.IsZero() || p.At.Before(first.At)) {
			first = p
		}
	}
	return first
}

func idlePlan(c *api.Cull, u Usage) Plan {
	timeout, since := c.IdleTimeout, u.Idle.Since
	if c.ParkedTimeout > 0 {
		since = latest(since, u.Parking.Woken)
		if u.Parking.Parked {
			timeout = c.ParkedTimeout
		}
	}
	if timeout == 0 || !u.Up || u.Busy && !c.Busy || u.Connected && c.Unattended {
		return Plan{}
	}
	warn := warning(c, timeout)
	if c.Unattended {
		since = latest(since, u.Left)
	}
	if u.Busy {
		since = latest(since, u.LastOutput)
	}
	p := Plan{Limit: api.LimitIdle, how: "idle for %s", since: since}
	p.At = latest(since.Add(timeout), u.KeepUntil)
	if !u.Idle.LongWork.IsZero() {
		p.At = latest(p.At, u.Idle.LongWork.Add(warn))
	}
	p.Warn = p.At.Add(-warn)
	return p
}

func busyPlan(c *api.Cull, u Usage) Plan {
	if c.BusyLimit == 0 || !u.Up || u.BusySince.IsZero() {
		return Plan{}
	}
	p := Plan{Limit: api.LimitBusy, how: "busy with one request for %s", since: u.BusySince}
	p.At = latest(u.BusySince.Add(c.BusyLimit), u.KeepUntil)
	p.Warn = p.At.Add(-warning(c, c.BusyLimit))
	return p
}

func agePlan(c *api.Cull, u Usage) Plan {
	if c.MaxAge == 0 {
		return Plan{}
	}
	p := Plan{Limit: api.LimitAge, how: "running for %s, as long as kernels may here", since: u.Started}
	p.At = u.Started.Add(c.MaxAge)
	p.Warn = p.At.Add(-warning(c, c.MaxAge))
	return p
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
