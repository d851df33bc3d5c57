package supervisor

import (
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gate"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/starter"
)

// kernel is the kernel's present life as others see it: its process, its connections, and why it is not up. Its methods
// keep together what belongs together. A kernel without a process has no connections, and its gates are shut. They open
// when the kernel has answered on its connections.
//
// Supervisor.mu guards kernel, and each method needs that lock.
type kernel struct {
	gates [jupyter.IOPub + 1]*gate.Gate // fixed; hold the clients' messages, by channel

	epoch        uint64 // number of the life
	reason       string // why it is not up or is dead; "": no reason
	killReason   string // why the supervisor has ended it by itself
	pulse        pulse
	process      starter.Process // nil: it has no process
	stopping     bool            // life.stopProcess ends the process
	bridge       *bridge         // nil: it is not connected
	info         []byte          // content of the last kernel_info_reply of any life
	interruption *interruption   // by a stop or restart that goes on; nil: nothing was interrupted

	adopted bool        // an earlier supervisor has run it
	waiting api.Waiting // what the cluster last reported about its container
	node    string      // why its node will go away soon; "": it stays
	death   death
}

func newKernel() kernel {
	var k kernel
	for _, c := range channels {
		k.gates[c] = gate.New(gate.NoProcess, gate.NotReady)
	}
	return k
}

// begin begins a new life in a new epoch. proc is nil if its process is not started yet.
func (k *kernel) begin(proc starter.Process) {
	k.epoch++
	k.stopping, k.reason, k.killReason = false, "", ""
	k.setProcess(proc)
}

// setProcess sets the process of the life that has begun, or nil.
func (k *kernel) setProcess(proc starter.Process) {
	k.process = proc
	if proc == nil {
		return
	}
	k.waiting.Text = "" // the container is there
	for _, c := range channels {
		k.gates[c].Release(gate.NoProcess)
	}
}

// setBridge makes b the present connections, or nil. It returns the previous ones, which the caller closes without the
// lock.
func (k *kernel) setBridge(b *bridge) (old *bridge) {
	old, k.bridge, k.pulse.missed = k.bridge, b, false
	if b == nil {
		for _, c := range channels {
			k.gates[c].Hold(gate.NotReady)
		}
	}
	return old
}

// answered notes that the kernel has answered on its connections. It gets the clients' messages from now on.
func (k *kernel) answered() {
	k.bridge.ready, k.reason = true, ""
	for _, c := range channels {
		k.gates[c].Release(gate.NotReady)
	}
}

// end ends the life. Messages that wait are discarded, and further messages of its connections are ignored. The caller
// closes the connections without the lock.
func (k *kernel) end() {
	k.process, k.interruption = nil, nil
	k.setBridge(nil)
	for _, c := range channels {
		k.gates[c].Hold(gate.NoProcess)
		k.gates[c].Discard()
	}
}

// connected reports whether the kernel has answered on its present connections.
func (k *kernel) connected() bool { return k.bridge != nil && k.bridge.ready }

// everUp reports whether the kernel was up in any life, also before this supervisor.
func (k *kernel) everUp() bool { return k.info != nil || k.adopted }

// mayBeDeaf reports whether the kernel may be alive and yet answer nothing, since it computes and may have one thread.
// Its sockets accept connections all the same.
func (k *kernel) mayBeDeaf(state api.State) bool {
	return k.bridge != nil && state == api.Busy && !k.pulse.inCells
}

// waitingText returns why the kernel's container is not there, or "".
func (k *kernel) waitingText(state api.State) string {
	if k.process != nil || state != api.Starting && state != api.Restarting {
		return ""
	}
	return k.waiting.Text
}

// shownReason returns the reason that users are shown: for a wait, a fault, a death until the next cell, or a node
// that will go away. "" means none of these.
func (k *kernel) shownReason(state api.State) string {
	if text := k.waitingText(state); text != "" {
		return text
	}
	switch {
	case k.reason != "":
		return k.reason
	case k.pulse.missed:
		return silentReason
	}
	if text := k.death.text(state); text != "" {
		return text
	}
	return k.node
}

// memory returns the memory of the kernel's processes as it was measured last.
func (k *kernel) memory() process.Memory {
	if k.process == nil {
		return process.Memory{}
	}
	return k.process.Used().Memory
}
