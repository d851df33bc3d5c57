package api

// State is a kernel's execution state in Jupyter's REST model.
type State string

// The execution states. Starting ends with the kernel's first answer, Dead with the kernel's removal.
const (
	Starting   State = "starting"
	Idle       State = "idle"
	Busy       State = "busy"
	Restarting State = "restarting"
	Dead       State = "dead"

	// Unknown is the state of a kernel that lives, and whose state this gateway cannot read. JupyterLab has a state of
	// this name. No limit takes such a kernel for idle.
	Unknown State = "unknown"
)

// StateOf returns a state that a supervisor has reported. A state that this version does not have comes from a newer
// supervisor. It is Unknown.
func StateOf(s State) State {
	switch s {
	case Starting, Idle, Busy, Restarting, Dead:
		return s
	}
	return Unknown
}

// Model is a kernel in Jupyter's REST API. Times have TimeFormat.
type Model struct {
	ID             string `json:"id"`
	Name           string `json:"name"` // of its kernelspec
	LastActivity   string `json:"last_activity"`
	ExecutionState State  `json:"execution_state"`
	Connections    int    `json:"connections"`
	Reason         string `json:"reason,omitempty"`     // why it is dead, or what it waits for
	CullAt         string `json:"cull_at,omitempty"`    // when it will be culled if it stays unused
	KeepUntil      string `json:"keep_until,omitempty"` // until when its owner keeps it
	Memory         int64  `json:"memory,omitempty"`     // bytes, resident, of its processes; 0: not measured yet
	GPU            []GPU  `json:"gpu,omitempty"`        // the devices that it holds, if they are sampled
	LastDeath      Death  `json:"last_death,omitzero"`  // zero: it has not died
	Parked         Parked `json:"parked,omitzero"`      // zero: it keeps its GPU, or has none
}
