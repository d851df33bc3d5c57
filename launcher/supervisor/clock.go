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

// clock keeps a kernel's execution state and the time of its last activity. Because of subshells several requests can
// be busy at once: the kernel is busy while any tracked request is between its busy and its idle. Guarded by
// Supervisor.mu.
type clock struct {
	now          func() time.Time
	state        string
	lastActivity time.Time
	busy         map[string]time.Time // tracked parents' msg_id → since when
}

func newClock(now func() time.Time) clock {
	return clock{now: now, state: stateStarting, lastActivity: now(), busy: map[string]time.Time{}}
}

// reset begins a new life of the kernel's process in the given state.
func (c *clock) reset(state string) {
	clear(c.busy)
	c.state = state
	c.lastActivity = c.now()
}

// ready ends starting and restarting: the kernel has answered.
func (c *clock) ready() {
	if c.state == stateStarting || c.state == stateRestarting {
		c.state = stateIdle
		if len(c.busy) > 0 { // with what an earlier supervisor has sent it
			c.state = stateBusy
		}
	}
}

// observe takes note of an iopub message: its type, what it is about, and the execution state if it is a status. It
// reports whether the state changed.
func (c *clock) observe(msgType string, parent wire.Header, executionState string) (changed bool) {
	tracked := parent.MsgType != "" && !untracked[parent.MsgType]
	before := c.state
	if msgType == "status" && tracked {
		switch executionState {
		case stateBusy:
			if _, known := c.busy[parent.MsgID]; !known && len(c.busy) < maxOutstanding {
				c.busy[parent.MsgID] = c.now()
			}
		case stateIdle:
			delete(c.busy, parent.MsgID)
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
}
