package supervisor

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// Execution states of the REST model.
const (
	stateStarting   = "starting"
	stateIdle       = "idle"
	stateBusy       = "busy"
	stateRestarting = "restarting"
	stateDead       = "dead"
)

// longWork is how long a request that does not restart the idle clock may take and still leave no trace in it: polls do not
// take so long, and after what does nobody is taken by surprise.
const longWork = time.Minute

// untracked are the message types that say nothing of whether somebody uses the kernel, as jupyter_server has it since
// 2.15 (ServerKernelManager.untracked_message_types): looking at a kernel does not keep it busy or alive.
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

// clock keeps what a kernel does and has done. It has two notions of busy. For front ends a kernel is busy while any
// tracked request is between its busy and its idle; because of subshells there can be several. For the question whether
// somebody needs it any request counts, and a cell that waits too. Guarded by Supervisor.mu.
type clock struct {
	now          func() time.Time
	counts       func(msgType string) bool // whether the end of such a request restarts the idle clock
	long         time.Duration             // longWork, or less where limits are short
	state        string
	lastActivity time.Time
	spoke        time.Time               // when iopub last said something
	busy         map[string]time.Time    // tracked parents' msg_id → since when
	inProgress   map[string]*progression // by msg_id, of all types
	fresh        bool                    // the idle clock starts when the kernel is up
	idleSince    time.Time               // the idle clock's start
	worked       time.Time               // when work ended that does not count and has taken long; zero: there was none
}

// progression is a request that is not done.
type progression struct {
	msgType string
	since   time.Time // of its busy; zero: it waits
}

func newClock(now func() time.Time, cull *Cull) clock {
	c := clock{now: now, counts: cull.counts, long: longWork, state: stateStarting, busy: map[string]time.Time{},
		inProgress: map[string]*progression{}}
	if w := cull.warning(cull.IdleTimeout); w > 0 {
		c.long = min(c.long, w)
	}
	c.reset(stateStarting)
	return c
}

// reset begins a new life of the kernel's process in the given state.
func (c *clock) reset(state string) {
	clear(c.busy)
	clear(c.inProgress)
	c.state = state
	c.lastActivity = c.now()
	c.idleSince, c.spoke, c.worked, c.fresh = c.lastActivity, c.lastActivity, time.Time{}, true
}

// ready ends starting and restarting: the kernel has answered.
func (c *clock) ready() {
	if c.state == stateStarting || c.state == stateRestarting {
		c.state = stateIdle
		if len(c.busy) > 0 { // with what an earlier supervisor has sent it
			c.state = stateBusy
		}
	}
	if c.fresh {
		c.fresh, c.idleSince = false, c.now()
	}
}

// observe takes note of an iopub message: its type, what it is about, and the execution state if it is a status. It
// reports whether the state changed.
func (c *clock) observe(msgType string, parent wire.Header, executionState string) (changed bool) {
	tracked := parent.MsgType != "" && !untracked[parent.MsgType]
	before := c.state
	c.spoke = c.now()
	if msgType == "status" {
		switch executionState {
		case stateBusy:
			c.begun(parent)
			if _, known := c.busy[parent.MsgID]; tracked && !known && len(c.busy) < maxOutstanding {
				c.busy[parent.MsgID] = c.now()
			}
		case stateIdle:
			delete(c.busy, parent.MsgID)
			c.ended(parent.MsgID, parent.MsgType)
		}
	}
	if c.state == stateIdle || c.state == stateBusy {
		c.state = stateIdle
		if len(c.busy) > 0 {
			c.state = stateBusy
		}
	}
	if tracked || !untracked[msgType] || before == stateBusy {
		c.lastActivity = c.now()
	}
	return before != c.state
}

func (c *clock) isBusy(msgID string) bool {
	_, busy := c.busy[msgID]
	return busy
}

// done ends a request that will get no idle of the kernel's own.
func (c *clock) done(msgID string) {
	delete(c.busy, msgID)
	if c.state == stateBusy && len(c.busy) == 0 {
		c.state = stateIdle
	}
	if p := c.inProgress[msgID]; p != nil {
		c.ended(msgID, p.msgType)
	}
}

// awaited notes that the kernel owes an answer to a cell, whether or not it has got it.
func (c *clock) awaited(msgID, msgType string) {
	if msgType == "execute_request" && c.inProgress[msgID] == nil && len(c.inProgress) < maxOutstanding {
		c.inProgress[msgID] = &progression{msgType: msgType}
	}
}

// forgotten takes awaited back, unless the kernel works on it.
func (c *clock) forgotten(msgID string) {
	if p := c.inProgress[msgID]; p != nil && p.since.IsZero() {
		delete(c.inProgress, msgID)
	}
}

// begun notes that the kernel works on a request.
func (c *clock) begun(parent wire.Header) {
	p := c.inProgress[parent.MsgID]
	if p == nil && len(c.inProgress) < maxOutstanding && parent.MsgID != "" {
		p = &progression{msgType: parent.MsgType}
		c.inProgress[parent.MsgID] = p
	}
	if p != nil && p.since.IsZero() {
		p.since = c.now()
	}
}

// ended notes that a request is done.
func (c *clock) ended(msgID, msgType string) {
	p := c.inProgress[msgID]
	delete(c.inProgress, msgID)
	switch now := c.now(); {
	case c.counts(msgType):
		c.used()
	case p != nil && !p.since.IsZero() && now.Sub(p.since) >= c.long:
		c.worked = now
	}
}

// used restarts the idle clock.
func (c *clock) used() { c.idleSince = c.now() }

// busySince is when the oldest request began that the kernel works on; zero if there is none.
func (c *clock) busySince() (oldest time.Time) {
	for _, p := range c.inProgress {
		if !p.since.IsZero() && (oldest.IsZero() || p.since.Before(oldest)) {
			oldest = p.since
		}
	}
	return oldest
}
