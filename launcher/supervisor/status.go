package supervisor

import (
	"encoding/json"
	"net/http"
	"time"
)

// Status is one line of a supervisor's status stream, GET /api/kernels/{id}/status: JSON lines, the first at once, then
// one whenever something has changed and at least every StatusInterval. A reader that falls behind gets the newest
// line, not every one.
type Status struct {
	Protocol     int       `json:"protocol"`            // ProtocolVersion of the supervisor
	Build        string    `json:"build"`               // version of the program
	KernelID     string    `json:"kernel_id"`           //
	PID          int       `json:"pid"`                 // of the supervisor
	KernelPID    int       `json:"kernel_pid"`          // of the kernel; also its process group and session; 0 if there is none
	Epoch        uint64    `json:"epoch"`               // counts the kernel's starts, from 1
	State        string    `json:"state"`               // execution state of the REST model
	Reason       string    `json:"reason"`              // why it is dead, or what it waits for
	LastActivity time.Time `json:"last_activity"`       // UTC
	CullAt       time.Time `json:"cull_at,omitzero"`    // UTC; when it will be culled if nothing happens; zero: not
	KeepUntil    time.Time `json:"keep_until,omitzero"` // UTC; zero: nobody has said so
	Connections  int       `json:"connections"`         // websockets that have sent a message
	LogBytes     int64     `json:"log_bytes"`           // held by the log
	LogLimit     int64     `json:"log_limit"`           // its bound
	Counts       Counts    `json:"counts"`              // at this moment; that they change is no reason for a line
}

// StatusInterval is the longest silence of a status stream: a reader that hears nothing for three of them may take the
// supervisor for hung.
const StatusInterval = 20 * time.Second

// statusPause is the least time between two lines of a status stream.
const statusPause = 20 * time.Millisecond

// StreamStatus answers with a status stream, until over is closed or its reader goes. Current returns the status and a channel
// that is closed at its next change.
func StreamStatus(w http.ResponseWriter, r *http.Request, current func() (Status, <-chan struct{}), over <-chan struct{}) error {
	w.Header().Set("Content-Type", "application/x-ndjson")
	flush := http.NewResponseController(w)
	enc := json.NewEncoder(w)
	tick := time.NewTicker(StatusInterval)
	defer tick.Stop()
	for {
		st, change := current()
		// A gateway that has vanished without a word takes nothing any more.
		if err := flush.SetWriteDeadline(time.Now().Add(3 * StatusInterval)); err != nil {
			return err
		}
		if err := enc.Encode(st); err != nil {
			return nil // the gateway has gone; it will be back
		}
		if err := flush.Flush(); err != nil {
			return nil
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-over:
			return nil
		case <-time.After(statusPause):
		}
		select {
		case <-change:
		case <-tick.C:
		case <-r.Context().Done():
			return nil
		case <-over:
		}
	}
}
