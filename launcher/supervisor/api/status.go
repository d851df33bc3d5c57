package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// Status is one line of a supervisor's status stream, GET /api/kernels/{id}/status. The stream is JSON lines: the first
// at once, then one after each change, and at least one in each StatusInterval. A slow reader skips lines and gets the
// newest.
type Status struct {
	Protocol     int       `json:"protocol"` // ProtocolVersion of the supervisor
	Build        string    `json:"build"`    // version of the program
	KernelID     string    `json:"kernel_id"`
	PID          int       `json:"pid"`                  // of the supervisor
	ParentPID    int       `json:"parent_pid,omitempty"` // of the supervisor's parent; 0: it has none, or is in a pod
	KernelPID    int       `json:"kernel_pid"`           // also its process group and session; 0: it is not running
	Epoch        uint64    `json:"epoch"`                // counts the kernel's starts, from 1
	State        State     `json:"state"`                // execution state of the REST model
	Reason       string    `json:"reason"`               // why it is dead, or what it waits for
	LastActivity time.Time `json:"last_activity"`        // UTC
	CullAt       time.Time `json:"cull_at,omitzero"`     // UTC; when it will be culled if it stays unused; zero: never
	KeepUntil    time.Time `json:"keep_until,omitzero"`  // UTC; until when its owner keeps it; zero: not kept
	Computes     bool      `json:"computes,omitempty"`   // processors or GPUs are in use, as far as measured
	NodeNotice   string    `json:"leaving,omitempty"`    // why the kernel's node will go away soon; "": it stays
	Connections  int       `json:"connections"`          // websockets; see session.Table.Counted
	LogBytes     int64     `json:"log_bytes"`            // bytes in the log
	LogLimit     int64     `json:"log_limit"`            // its bound
	GPU          []GPU     `json:"gpu,omitempty"`        // the devices that the kernel holds, if they are sampled
	GPUUse       GPUUse    `json:"gpu_use,omitzero"`     // a change of it alone sends no line
	Started      time.Time `json:"started,omitzero"`     // UTC; the first start, or the last one after an end
	GPUs         int       `json:"gpus,omitempty"`       // as in Ending
	Warm         bool      `json:"warm,omitempty"`       // it has no owner yet
	Memory       int64     `json:"memory,omitempty"`     // as in Model; a change of it alone sends no line
	LastDeath    Death     `json:"last_death,omitzero"`  // as in Model
	Parked       Parked    `json:"parked,omitzero"`      // as in Model
	Seat         *Seat     `json:"seat,omitempty"`       // its turn at a GPU that pods share; nil: it takes none
	Counts       Counts    `json:"counts"`               // now; a change of counts alone sends no line
}

// LogNearlyFull reports whether a log of size bytes may soon need a limit above the one that it has. A full log stays
// somewhat below its limit, so that appends have room while it evicts.
func LogNearlyFull(size, limit int64) bool { return size >= limit/4*3 }

// StatusInterval is the longest silence of a status stream. After three of them a reader may treat the supervisor as
// hung.
const StatusInterval = 20 * time.Second

// A status stream has at most one line each statusPause on average. After a rest up to statusBurst lines follow each
// other at once: a start has three, and a gateway that waits for it answers with the last.
const (
	statusPause = 20 * time.Millisecond
	statusBurst = 4
)

// pacer says when the next line of a status stream may follow. Its zero value is a stream that has rested.
type pacer struct{ full time.Time } // until then, lines that are due fill the average

// wrote notes a line that was written at now, and returns how long the next line has to wait.
func (p *pacer) wrote(now time.Time) time.Duration {
	if p.full.Before(now) {
		p.full = now
	}
	p.full = p.full.Add(statusPause)
	return p.full.Sub(now) - (statusBurst-1)*statusPause
}

// StreamStatus answers a request with a status stream. It returns when over is closed or the reader goes away. Current
// returns the status and a channel that is closed at the next change.
func StreamStatus(w http.ResponseWriter, r *http.Request, current func() (Status, <-chan struct{}),
	over <-chan struct{}) error {
	w.Header().Set("Content-Type", "application/x-ndjson")
	flush := http.NewResponseController(w)
	enc := json.NewEncoder(w)
	tick := time.NewTicker(StatusInterval)
	defer tick.Stop()
	var pace pacer
	for {
		st, change := current()
		// A gateway that vanished without closing its connection must not hold the handler.
		if err := flush.SetWriteDeadline(time.Now().Add(3 * StatusInterval)); err != nil {
			return err
		}
		if err := enc.Encode(st); err != nil {
			return nil // the gateway went away; it will come back
		}
		if err := flush.Flush(); err != nil {
			return nil
		}
		if !rest(r.Context(), over, pace.wrote(time.Now())) {
			return nil
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

// rest waits between two lines. It returns false if over is closed, so that the last line has the last status, or if
// the reader goes away.
func rest(ctx context.Context, over <-chan struct{}, pause time.Duration) bool {
	select {
	case <-over:
		return false
	default:
	}
	if pause <= 0 {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-over:
		return false
	case <-time.After(pause):
		return true
	}
}
