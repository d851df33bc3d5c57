package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// statusClientGone is the status in logs of a request whose client did not wait for the answer.
const statusClientGone = 499

// unreachable is the message for a supervisor that does not answer.
const unreachable = "The kernel's supervisor cannot be reached at the moment. Try again."

// maxRepeated bounds the bytes of a client's text in a message. As JSON a byte may become six.
const maxRepeated = 200

// Checks that may refuse a request, by their names in the audit log.
const (
	tokenCheck      = "token"
	originCheck     = "origin"
	hostCheck       = "host"
	accessCheck     = "access"     // the kernel belongs to another user, or the kernelspec is for others
	limitCheck      = "limit"      // on kernels, starts or connections
	launcherCheck   = "launcher"   // the kernelspec or the request asks for something that is not allowed
	supervisorCheck = "supervisor" // of the kernel's supervisor
)

// problem is an error with the answer the client gets for it.
type problem struct {
	status  int
	reason  string        // short; "" means the status's own text
	message string        // one sentence for the user
	retry   time.Duration // Retry-After; 0: none
	check   string        // the check that refused the request, for the audit log; ""
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

// refuse makes a problem with a formatted message. Its reason is the status's own text.
func refuse(status int, format string, args ...any) *problem {
	return &problem{status: status, message: fmt.Sprintf(format, args...)}
}

// by sets the check that has refused the request.
func (p *problem) by(check string) *problem {
	p.check = check
	return p
}

// problemOf decides which error becomes which status. No other function does.
func problemOf(r *call, err error) *problem {
	var p *problem
	var failed *launcher.FailedError
	var refused *launcher.RefusedError
	var limit *launcher.LimitError
	var gone *launcher.GoneError
	var unsupported *launcher.UnsupportedError
	var undelivered *undeliveredError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &p):
		return p
	case r.Context().Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, r.Context().Err())):
		return &problem{status: statusClientGone, err: err}
	case errors.As(err, &unsupported): // an undeliveredError may wrap it
		return &problem{status: http.StatusServiceUnavailable, reason: "Kernel cannot be reached", err: err,
			message: fold("This gateway cannot speak to the kernel: " + unsupported.Reason + ".")}
	case errors.As(err, &undelivered):
		// Before the launcher's errors, which it may wrap: the error of a dial does not decide whether a kernel exists.
		return &problem{status: http.StatusServiceUnavailable, err: err, message: unreachable}
	case errors.As(err, &failed):
		// Jupyter Server passes on both message and reason, in this order. So only the message says why.
		return &problem{status: http.StatusInternalServerError, reason: "Kernel failed to start",
			message: fold(failed.Reason)}
	case errors.As(err, &refused):
		return &problem{status: http.StatusForbidden, message: fold(refused.Reason), check: launcherCheck}
	case errors.As(err, &limit):
		// 403 as in Enterprise Gateway, not 429: to repeat the request does not help.
		return &problem{status: http.StatusForbidden, message: fold(limit.Reason), check: limitCheck}
	case errors.As(err, &gone) && r.who.owns(gone.Owner):
		return refuse(http.StatusNotFound, "Kernel does not exist: %s: it ended at %s: %s",
			gone.ID, api.Timestamp(gone.At), gone.Reason)
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
			message: "The state of the kernel is not known at the moment. Try again."}
	case errors.As(err, &tooLarge):
		return refuse(http.StatusRequestEntityTooLarge, "The body is larger than %d bytes.", tooLarge.Limit)
	}
	return &problem{status: http.StatusInternalServerError, err: err,
		message: "Internal error of the gateway; see its log."}
}

// errorBody is the body of every error.
type errorBody struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Short   string `json:"short_message,omitempty"`
}

// writeProblem answers with a problem, unless an answer has begun or the client is gone.
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

// writeJSON answers with a JSON value and flushes it. After an error the client cannot have the whole answer.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	return writeBody(w, status, append(b, '\n'))
}

// writeBody answers with a body in JSON and flushes it.
func writeBody(w http.ResponseWriter, status int, body []byte) error {
	beginBody(w, status, len(body))
	if _, err := w.Write(body); err != nil {
		return &unwritten{err}
	}
	return endBody(w)
}

// writeTexts answers with a list of models, in pieces of 64 KiB: a client reads one while the next one is made.
func writeTexts(w http.ResponseWriter, texts []*modelText) error {
	length := len("[]\n") + max(0, len(texts)-1)
	for _, t := range texts {
		length += len(t.text)
	}
	beginBody(w, http.StatusOK, length)
	out := bufio.NewWriterSize(w, min(length, 64<<10)) // it keeps the first error until Flush
	_ = out.WriteByte('[')
	for i, t := range texts {
		if i > 0 {
			_ = out.WriteByte(',')
		}
		_, _ = out.Write(t.text)
	}
	_, _ = out.WriteString("]\n")
	if err := out.Flush(); err != nil {
		return &unwritten{err}
	}
	return endBody(w)
}

// beginBody sends the header of an answer with a body in JSON, of length bytes.
func beginBody(w http.ResponseWriter, status, length int) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(length))
	w.WriteHeader(status)
}

// endBody flushes the body.
func endBody(w http.ResponseWriter) error {
	if err := http.NewResponseController(w).Flush(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return &unwritten{err}
	}
	return nil
}

// unwritten is the error of an answer that could not be written, since its client is gone.
type unwritten struct{ err error }

func (u *unwritten) Error() string { return "write the answer: " + u.err.Error() }
func (u *unwritten) Unwrap() error { return u.err }

// shorten returns at most n bytes of a text, whole characters only.
func shorten(text string, n int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}

// messageWidth is the longest line of a message, in characters, unless a single word is longer.
const messageWidth = 80

// fold breaks a text into lines. JupyterLab's dialog about a start that failed breaks no line itself, and cuts off what
// is wider than the page.
func fold(text string) string {
	var b strings.Builder
	width := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i > 0 && width+1+n > messageWidth:
			b.WriteByte('\n')
			width = 0
		case i > 0:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += n
	}
	return b.String()
}

// roundUp rounds a time up to whole seconds, as Retry-After needs them.
func roundUp(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}
