package kernels

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Class says what kind of error the caller reads. Package gateway has one status for each.
type Class int

// The classes of errors.
const (
	Internal    Class = iota // a fault of gateway, launcher or kernel
	Invalid                  // the request asks for something that does not exist, or is not well formed
	Forbidden                // the caller may not do it, or has reached a limit
	NotFound                 // the kernel or the kernelspec does not exist for the caller
	Conflict                 // the kernel's state does not allow it
	TooMany                  // too often; see Refusal.Retry
	Unavailable              // the state is not known at present
	Full                     // the gateway's disk is full
)

// Checks that may refuse a request, by their names in the audit log.
const (
	AccessCheck     = "access"     // the kernel belongs to another user, or the kernelspec is for others
	LimitCheck      = "limit"      // on kernels, starts or connections
	LauncherCheck   = "launcher"   // the kernelspec or the request asks for something that is not allowed
	SupervisorCheck = "supervisor" // of the kernel's supervisor
)

// Unreachable is the message for a supervisor that does not answer.
const Unreachable = "The kernel's supervisor cannot be reached at the moment. Try again."

// maxRepeated bounds the bytes of a client's text in a message. As JSON a byte may become six.
const maxRepeated = 200

// Refusal is an error with what the caller reads of it.
type Refusal struct {
	Class   Class
	Reason  string        // short; "" means the text of the class's status
	Message string        // one sentence for the caller
	Long    bool          // the message may be several sentences, which a dialog breaks into lines
	Retry   time.Duration // after which it may succeed; 0: it is not known
	Check   string        // the check that refused the request, for the audit log; ""
	Err     error         // for the log only; may be nil
}

func (r *Refusal) Error() string {
	if r.Err != nil {
		return r.Err.Error()
	}
	return r.Message
}

// Unwrap returns the error for the log.
func (r *Refusal) Unwrap() error { return r.Err }

// refuse makes a refusal with a formatted message.
func refuse(class Class, format string, args ...any) *Refusal {
	return &Refusal{Class: class, Message: fmt.Sprintf(format, args...)}
}

// by sets the check that has refused the request.
func (r *Refusal) by(check string) *Refusal {
	r.Check = check
	return r
}

// ErrHidden is the error of a kernel that the caller may not see. Only the audit log tells it from a kernel that does
// not exist.
var ErrHidden = fmt.Errorf("%w for this user", launcher.ErrNotFound)

// ErrNoModel is the error of a supervisor's answer that cannot be used.
var ErrNoModel = refuse(Unavailable, "The kernel's supervisor gave an invalid answer.")

// RefusalOf decides what a caller reads of an error. No other function does. named is the id by which the caller has
// named the kernel, or "".
func RefusalOf(who Caller, named string, err error) *Refusal {
	var r *Refusal
	var failed *launcher.FailedError
	var refused *launcher.RefusedError
	var limit *launcher.LimitError
	var gone *launcher.GoneError
	var unsupported *launcher.UnsupportedError
	var undelivered *UndeliveredError
	switch {
	case errors.As(err, &r):
		return r
	case errors.As(err, &unsupported): // an UndeliveredError may wrap it
		return &Refusal{Class: Unavailable, Reason: "Kernel cannot be reached", Err: err, Long: true,
			Message: "This gateway cannot speak to the kernel: " + unsupported.Reason + "."}
	case errors.As(err, &undelivered):
		// Before the launcher's errors, which it may wrap: the error of a dial does not decide whether a kernel exists.
		return &Refusal{Class: Unavailable, Err: err, Message: Unreachable}
	case errors.As(err, &failed):
		// Jupyter Server passes on both message and reason, in this order. So only the message says why.
		return &Refusal{Class: Internal, Reason: "Kernel failed to start", Message: failed.Reason, Long: true}
	case errors.As(err, &refused):
		return &Refusal{Class: Forbidden, Message: refused.Reason, Long: true, Check: LauncherCheck}
	case errors.As(err, &limit):
		// As in Enterprise Gateway, and not TooMany: to repeat the request does not help.
		message := limit.Reason
		if !who.Owns(limit.Owner) {
			message = launcher.LimitForOthers(limit.Limit)
		}
		return &Refusal{Class: Forbidden, Message: message, Long: true, Check: LimitCheck}
	case errors.As(err, &gone) && who.Owns(gone.Owner):
		return refuse(NotFound, "Kernel does not exist: %s: it ended at %s: %s", gone.ID, api.Timestamp(gone.At),
			gone.Reason)
	case errors.Is(err, ErrHidden):
		return RefusalOf(who, named, launcher.ErrNotFound).by(AccessCheck)
	case errors.Is(err, launcher.ErrNotFound):
		if named != "" {
			return refuse(NotFound, "Kernel does not exist: %s", Shorten(named))
		}
		return refuse(NotFound, "The kernel does not exist any more.")
	case errors.Is(err, launcher.ErrConflict):
		return refuse(Conflict, "The kernel id is in use by another kernel.")
	case launcher.DiskFull(err):
		return &Refusal{Class: Full, Reason: "Disk is full", Err: err, Message: "The disk of the gateway is full. " +
			"An administrator of the gateway has to make space."}
	case errors.Is(err, launcher.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return &Refusal{Class: Unavailable, Err: err,
			Message: "The state of the kernel is not known at the moment. Try again."}
	}
	return &Refusal{Class: Internal, Err: err, Message: "Internal error of the gateway; see its log."}
}

// Shorten bounds a client's text that a message repeats. It keeps whole characters only.
func Shorten(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= maxRepeated {
		return text
	}
	return strings.ToValidUTF8(text[:maxRepeated], "")
}

// RoundUp rounds a time up to whole seconds, as callers read it.
func RoundUp(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}
