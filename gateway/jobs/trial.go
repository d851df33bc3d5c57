package jobs

import (
	"errors"
	"fmt"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

const (
	maxPanics = 2
	maxShared = 2 // gateways that a job may have ended among others; then it is tried alone
	maxSilent = 3 // gateways that a job may end alone
	// trialTime is how long a gateway works on a job until its end is not the job's doing.
	trialTime = time.Minute
)

// Reasons for the end of a job that ends what works on it.
const (
	reasonPanics = "the gateway has failed at it twice, by an error of its own; see its log"
	reasonSilent = "three gateways have ended within a minute after they had gone on with it; see their logs"
)

// trial counts what a job may have done to its holders.
type trial struct {
	Panics int `json:"panics,omitempty"` // of its goroutine, in all gateways

	// Silent is how many gateways in a row have gone on with the run, and have not shown since that they outlive it. Each
	// but the present holder has ended without a word: within trialTime, and before a cursor was saved.
	Silent int `json:"silent,omitempty"`
}

// tryAgain notes that a gateway takes the job. A job that has ended maxSilent gateways alone fails.
func (e *entry) tryAgain(gateway string) {
	switch {
	case e.State != Running || e.Outcome != nil || e.Holder == "" || e.Holder == gateway:
		e.Silent = 0 // the run did not go on, or the last holder has given it back
	case e.Silent >= maxShared+maxSilent:
		e.Silent, e.Outcome = 0, &outcome{State: Failed, Reason: reasonSilent}
	default:
		e.Silent++
	}
}

// trialAfter returns how long a gateway must have lived before it goes on with the job, and then only while it tries no
// other suspect. It is 0 for a job that is no suspect. A job that has done nothing is not blamed for another one that
// ends its gateways. Gateways that end for another cause do not live for long enough: each end makes it four times as
// long.
func (e *entry) trialAfter() time.Duration {
	alone := e.Silent - maxShared
	if e.State != Running || e.Outcome != nil || alone < 0 || alone >= maxSilent || e.due() != nil {
		return 0 // also a job whose end is due: what it has printed is not read again
	}
	return trialTime << (2 * alone)
}

// due returns why a run is to end; nil if it is not.
func (e *entry) due() error {
	switch {
	case e.State != Running:
		return nil
	case e.Stopping:
		return errStopped
	case e.GiveWay != "":
		return errGaveWay
	case e.Timeout > 0 && time.Since(e.Started) >= time.Duration(e.Timeout)*time.Second:
		return errTimeout
	}
	return nil
}

// cut ends a run for a reason of due.
func (h *hold) cut(e *entry, why error) error {
	switch {
	case errors.Is(why, errTimeout):
		return h.outcome(Failed, fmt.Sprintf("it ran longer than its timeout of %d s", e.Timeout), false)
	case errors.Is(why, errGaveWay):
		return h.outcome(Failed, reasonGaveWay, true)
	}
	return h.outcome(Stopped, reasonStopped, false)
}

// cutUnread is cut for a run whose messages are not read: those of a suspect do not end one more gateway. A kernel that
// its author keeps is interrupted first.
func (h *hold) cutUnread(e *entry, why error) error {
	if e.Then == ThenKeep {
		if err := h.m.kernels.Interrupt(h.ctx, e.Author, e.Kernel); err != nil {
			h.log.Warn("the cell of a job may still run", logkey.Kernel, e.Kernel, logkey.Err, err)
		}
	}
	return h.cut(e, why)
}

// tries reports whether this gateway holds a suspect that it has not outlived yet.
func (m *Manager) tries() bool {
	for _, h := range m.holding() {
		if h.suspect.Load() {
			return true
		}
	}
	return false
}

// outlivedLocked notes that this gateway has outlived the job for long enough.
func (h *hold) outlivedLocked() {
	if h.s.Silent == 0 || time.Since(h.taken) < trialTime {
		return
	}
	next := h.s
	next.Silent = 0
	if err := h.m.store.write(h.ctx, &next); err != nil {
		h.log.Debug("a job is still suspected to end its gateways", logkey.Err, err) // the next look tries it again
		return
	}
	h.s = next
	h.noteLocked()
}

// panicked notes that the job's goroutine has panicked. At the last time it ends the job.
func (h *hold) panicked() {
	n := h.entry().Panics + 1
	err := h.must("note a panic", func(e *entry) { e.Panics = n })
	if err == nil && n >= maxPanics {
		err = h.outcome(Failed, reasonPanics, false)
	}
	if err != nil && h.ctx.Err() == nil {
		h.log.Error("a panic cannot be noted in a job", logkey.Err, err)
	}
	if n < maxPanics || err != nil {
		h.notYet()
	}
}
