package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// statusClientGone is what the log says of a request whose client did not wait for the answer.
const statusClientGone = 499

const unreachable = "The kernel's supervisor cannot be reached at this moment. Try again."

// maxRepeated bounds, in bytes, what a message repeats of what its client wrote. As JSON a byte may become six.
const maxRepeated = 200

// Checks that may refuse a request, as the audit log names them.
const (
	tokenCheck      = "token"
	originCheck     = "origin"
	hostCheck       = "host"
	accessCheck     = "access"     // the kernel is somebody else's
	limitCheck      = "limit"      // of kernels, of starts, of connections
	launcherCheck   = "launcher"   // what the kernelspec or the request wants is not allowed here
	supervisorCheck = "supervisor" // the kernel's own
)

// problem is an error with the answer the client gets for it.
type problem struct {
	status  int
	reason  string        // short; "" means the status's own text
	message string        // one sentence for the user
	retry   time.Duration // Retry-After; 0: none
	check   string        // which one has refused the request, for the audit log; "": none
	short   bool          // add Jupyter Server's short_message, which its 501 for a session has
	err     error         // for the log only; may be nil
}

func (p *problem) Error() string {
	if p.err != nil {
		return p.err.Error()
	}
	return p.message
}

func (p *problem) Unwrap() error { return p.err }

// refuse makes a problem with a formatted message and the status's own text as its reason.
func refuse(status int, format string, args ...any) *problem {
	return &problem{status: status, message: fmt.Sprintf(format, args...)}
}

// by names the check that has refused the request.
func (p *problem) by(check string) *problem {
	p.check = check
	return p
}

// problemOf is the one place that decides which error is which status.
func problemOf(r *http.Request, err error) *problem {
	var p *problem
	var failed *launcher.FailedError
	var refused *launcher.RefusedError
	var limit *launcher.LimitError
	var gone *launcher.GoneError
	var undelivered *undeliveredError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &p):
		return p
	case r.Context().Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, r.Context().Err())):
		return &problem{status: statusClientGone, err: err}
	case errors.As(err, &undelivered):
		// Before the launcher's errors, one of which it may wrap: what a dial says of a kernel is no last word.
		return &problem{status: http.StatusServiceUnavailable, err: err, message: unreachable}
	case errors.As(err, &failed):
		// Front ends show either of the two, so both carry the sentence.
		return &problem{status: http.StatusInternalServerError, reason: failed.Reason, message: failed.Reason}
	case errors.As(err, &refused):
		return &problem{status: http.StatusForbidden, reason: refused.Reason, message: refused.Reason, check: launcherCheck}
	case errors.As(err, &limit):
		// 403, as Enterprise Gateway has it, and not 429: who repeats that at once gets no further.
		return &problem{status: http.StatusForbidden, reason: limit.Reason, message: limit.Reason, check: limitCheck}
	case errors.As(err, &gone) && callerOf(r.Context()).owns(gone.Owner):
		return refuse(http.StatusNotFound, "Kernel does not exist: %s: it is gone since %s: %s",
			gone.ID, timestamp(gone.At), gone.Reason)
	case errors.Is(err, errHidden):
		return problemOf(r, launcher.ErrNotFound).by(accessCheck)
	case errors.Is(err, launcher.ErrNotFound):
		if id := r.PathValue("id"); id != "" {
			return refuse(http.StatusNotFound, "Kernel does not exist: %s", shorten(id, maxRepeated))
		}
		return refuse(http.StatusNotFound, "The kernel does not exist any more.")
	case errors.Is(err, launcher.ErrConflict):
		return refuse(http.StatusConflict, "The kernel id is in use by another kernel.")
	case errors.Is(err, launcher.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return &problem{status: http.StatusServiceUnavailable, err: err,
			message: "The state of the kernel cannot be told at this moment. Try again."}
	case errors.As(err, &tooLarge):
		return refuse(http.StatusRequestEntityTooLarge, "The body is larger than %d bytes.", tooLarge.Limit)
	}
	return &problem{status: http.StatusInternalServerError, err: err,
		message: "Something went wrong inside the gateway; its log says what."}
}

// errorBody is the body of every error.
type errorBody struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Short   string `json:"short_message,omitempty"`
}

// writeProblem answers with a problem, unless an answer has begun or nobody is there to read it.
func (g *Gateway) writeProblem(w *response, p *problem) {
	if w.status != 0 || p.status == statusClientGone {
		return
	}
	body := errorBody{Reason: p.reason, Message: p.message}
	if body.Reason == "" {
		body.Reason = http.StatusText(p.status)
	}
	if p.short {
		body.Short = body.Message
	}
	if p.retry > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(int(roundUp(p.retry).Seconds())))
	}
	if err := writeJSON(w, p.status, body); err != nil {
		w.problem = errors.Join(p, err)
	}
}

// writeJSON answers with a JSON value and makes sure that it has left this program, so that an error means that the
// client cannot have it.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", fmt.Sprint(len(b)+1))
	w.WriteHeader(status)
	if _, err := w.Write(append(b, '\n')); err != nil {
		return &unwritten{err}
	}
	if err := http.NewResponseController(w).Flush(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return &unwritten{err}
	}
	return nil
}

// unwritten is the error of an answer that could not be written: its client is gone.
type unwritten struct{ err error }

func (u *unwritten) Error() string { return "write the answer: " + u.err.Error() }
func (u *unwritten) Unwrap() error { return u.err }
