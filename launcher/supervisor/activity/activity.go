// Package activity decides when a kernel is culled. A Use has all that decides it: a Clock follows what the kernel
// does, and GPUs what samples of its devices show. A Load follows what its processes use. Next finds the earliest end
// that the settings ask for, as a Plan. Package supervisor calls it. The package knows neither sessions nor notebooks.
// It takes no locks and starts no goroutine: its callers guard its values. Only a Traffic, which counts messages, may
// be used concurrently.
package activity

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// longWork is the bound of a poll's duration. A request that does not restart the idle clock and ends sooner does not
// delay the kernel's end. After a longer one, users get the time of their warning again.
const longWork = time.Minute

// maxRequests bounds the requests that a Clock follows.
const maxRequests = 4096

// untracked are the message types that do not show that someone uses the kernel, as in jupyter_server since 2.15
// (ServerKernelManager.untracked_message_types): looking at a kernel does not keep it busy or alive.
var untracked = map[string]bool{
	"comm_info_request": true, "comm_info_reply": true,
	"kernel_info_request": true, "kernel_info_reply": true,
	"shutdown_request": true, "shutdown_reply": true,
	"interrupt_request": true, "interrupt_reply": true,
	"debug_request": true, "debug_reply": true, "debug_event": true,
	"create_subshell_request": true, "create_subshell_reply": true,
	"delete_subshell_request": true, "delete_subshell_reply": true,
	"list_subshell_request": true, "list_subshell_reply": true,
	"stream": true, "display_data": true, "update_display_data": true,
	"execute_input": true, "execute_result": true, "error": true,
	"status": true, "clear_output": true, "iopub_welcome": true,
	"input_request": true, "input_reply": true,
}

// Clock follows what a kernel does. It has two notions of busy. For front ends a kernel is busy while any tracked
// request is between its busy and its idle; with subshells there can be several. For the idle clock, any request in
// progress counts, and so does a waiting cell.
type Clock struct {
	// Fixed.
	now      func() time.Time
	longWork time.Duration // the constant, or less where limits are short

	version      uint64 // counts changes that may change the plan, except for output
	state        api.State
	lastActivity time.Time
	lastOutput   time.Time         // when iopub last had a message
	busy         map[key]time.Time // tracked requests → since when
	inProgress   map[key]*request  // of all types
	idle         Idle
}

// key names a request. Another request may have the same msg_id.
type key struct{ id, msgType string }

// Idle is the part of a Clock that outlives its supervisor.
type Idle struct {
	Starting bool      // the idle clock starts when the kernel is up
	Since    time.Time // the idle clock's start
	LongWork time.Time // end of the last long work that does not restart the idle clock; zero: none yet
}

// request is a request that has not ended.
type request struct {
	since time.Time // of its busy; zero: it waits
}

// NewClock returns the Clock of a kernel that is starting.
func NewClock(now func() time.Time, cull *api.Cull) Clock {
	c := Clock{
		now:        now,
		longWork:   longWork,
		busy:       map[key]time.Time{},
		inProgress: map[key]*request{},
	}
	if w := warning(cull, cull.IdleTimeout); w > 0 {
		c.longWork = min(c.longWork, w)
	}
	c.Reset(api.Starting)
	return c
}

// Reset begins a new life of the kernel's process in the given state.
func (c *Clock) Reset(state api.State) {
	c.version++
	clear(c.busy)
	clear(c.inProgress)
	c.state = state
	c.lastActivity = c.now()
	c.lastOutput = c.lastActivity
	c.idle = Idle{Starting: true, Since: c.lastActivity}
}

// Ready ends starting and restarting: the kernel has answered.
func (c *Clock) Ready() {
	c.version++
	if c.state == api.Starting || c.state == api.Restarting {
		c.state = api.Idle
		if len(c.busy) > 0 { // with a request of an earlier supervisor
			c.state = api.Busy
		}
	}
	if c.idle.Starting {
		c.idle.Starting, c.idle.Since = false, c.now()
	}
}

// Observe notes an iopub message: its type, its parent, and the execution state if it is a status.
func (c *Clock) Observe(msgType string, parent jupyter.Header, executionState api.State) {
	tracked := parent.MsgType != "" && !untracked[parent.MsgType]
	before := c.state
	c.lastOutput = c.now()
	if msgType == "status" {
		switch executionState {
		case api.Busy:
			k := key{parent.MsgID, parent.MsgType}
			c.begin(k)
			if _, known := c.busy[k]; tracked && !known && len(c.busy) < maxRequests {
				c.busy[k] = c.now()
			}
		case api.Idle:
			k := key{parent.MsgID, parent.MsgType}
			delete(c.busy, k)
			c.end(k)
		}
	}
	if c.state == api.Idle || c.state == api.Busy {
		c.state = api.Idle
		if len(c.busy) > 0 {
			c.state = api.Busy
		}
	}
	if tracked || !untracked[msgType] || before == api.Busy {
		c.lastActivity = c.now()
	}
}

// Await notes that the kernel owes an answer to a cell, which counts even while it waits.
func (c *Clock) Await(msgID, msgType string) {
	k := key{msgID, msgType}
	if msgType == "execute_request" && c.inProgress[k] == nil && len(c.inProgress) < maxRequests {
		c.version++
		c.inProgress[k] = &request{}
	}
}

// Forget takes Await back, unless the kernel works on the request.
func (c *Clock) Forget(msgID, msgType string) {
	k := key{msgID, msgType}
	if r := c.inProgress[k]; r != nil && r.since.IsZero() {
		c.version++
		delete(c.inProgress, k)
	}
}

// Done ends a request that gets no idle from the kernel.
func (c *Clock) Done(msgID, msgType string) {
	c.version++
	k := key{msgID, msgType}
	delete(c.busy, k)
	if c.state == api.Busy && len(c.busy) == 0 {
		c.state = api.Idle
	}
	if c.inProgress[k] != nil {
		c.end(k)
	}
}

// Adopt notes that a kernel runs a request of an earlier supervisor. A zero since stands for now.
func (c *Clock) Adopt(msgID, msgType string, since time.Time) {
	k := key{msgID, msgType}
	c.busy[k] = c.now()
	c.begin(k)
	if r := c.inProgress[k]; r != nil && !since.IsZero() {
		r.since = since
	}
}

func (c *Clock) begin(k key) {
	c.version++
	r := c.inProgress[k]
	if r == nil && len(c.inProgress) < maxRequests && k.id != "" {
		r = &request{}
		c.inProgress[k] = r
	}
	if r != nil && r.since.IsZero() {
		r.since = c.now()
	}
}

func (c *Clock) end(k key) {
	c.version++
	r := c.inProgress[k]
	delete(c.inProgress, k)
	switch now := c.now(); {
	case restartsIdle(k.msgType):
		c.Used()
	case r != nil && !r.since.IsZero() && now.Sub(r.since) >= c.longWork:
		c.idle.LongWork = now
	}
}

// restartsIdle reports whether the end of a request of this type restarts the idle clock.
func restartsIdle(msgType string) bool {
	return msgType == "execute_request" || msgType == "input_reply"
}

// Used restarts the idle clock.
func (c *Clock) Used() {
	c.version++
	c.idle.Since = c.now()
}

// Worked notes the end of long work that does not restart the idle clock.
func (c *Clock) Worked() {
	c.version++
	c.idle.LongWork = c.now()
}

// Resume continues the idle clock of an earlier supervisor. lastActivity is what that supervisor reported; zero: it is
// unknown, and stays the time of the adoption. So does LastOutput, since the kernel may have printed while no
// supervisor was there.
func (c *Clock) Resume(i Idle, lastActivity time.Time) {
	c.version++
	c.idle = i
	if !lastActivity.IsZero() {
		c.lastActivity = lastActivity
	}
}

// State returns the execution state for front ends.
func (c *Clock) State() api.State { return c.state }

// LastActivity returns when the kernel was last active, as Jupyter's models report it.
func (c *Clock) LastActivity() time.Time { return c.lastActivity }

// LastOutput returns when iopub last had a message.
func (c *Clock) LastOutput() time.Time { return c.lastOutput }

// Idle returns the part of the clock that is saved.
func (c *Clock) Idle() Idle { return c.idle }

// Version changes whenever the plan may change for a reason other than output.
func (c *Clock) Version() uint64 { return c.version }

// IsBusy reports whether front ends see the kernel as busy with the request.
func (c *Clock) IsBusy(msgID, msgType string) bool {
	_, busy := c.busy[key{msgID, msgType}]
	return busy
}

// BusySince returns when the kernel began to work on a request; zero if it does not.
func (c *Clock) BusySince(msgID, msgType string) time.Time {
	if r := c.inProgress[key{msgID, msgType}]; r != nil {
		return r.since
	}
	return time.Time{}
}

// Works reports whether the kernel works on a request of any type. A request that waits does not count.
func (c *Clock) Works() bool { return c.WorksOn(func(string) bool { return true }) }

// WorksOn reports whether the kernel works on a request of a type that matches.
func (c *Clock) WorksOn(match func(msgType string) bool) bool {
	for k, r := range c.inProgress {
		if !r.since.IsZero() && match(k.msgType) {
			return true
		}
	}
	return false
}

// Usage returns the kernel's use as the clock knows it. It reports polling if all requests in progress may be polls:
// none of them restarts the idle clock, and none has taken long.
func (c *Clock) Usage() (u Usage, polling bool) {
	u = Usage{Up: c.state == api.Idle || c.state == api.Busy, Idle: c.idle, LastOutput: c.lastOutput}
	polling = len(c.inProgress) > 0
	for k, r := range c.inProgress {
		u.Busy = true
		if !r.since.IsZero() && (u.BusySince.IsZero() || r.since.Before(u.BusySince)) {
			u.BusySince = r.since
		}
		polling = polling && !restartsIdle(k.msgType) && c.now().Sub(r.since) < c.longWork
	}
	return u, polling
}
