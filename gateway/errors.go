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

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
)

// statusClientGone is the status in logs of a request whose client did not wait for the answer.
const statusClientGone = 499

// Checks of package gateway that may refuse a request, by their names in the audit log. Package kernels has the others.
const (
	tokenCheck  = "token"
	originCheck = "origin"
	hostCheck   = "host"
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

// statusOf has the status of each class of errors.
var statusOf = map[kernels.Class]int{
	kernels.Internal:    http.StatusInternalServerError,
	kernels.Invalid:     http.StatusBadRequest,
	kernels.Forbidden:   http.StatusForbidden,
	kernels.NotFound:    http.StatusNotFound,
	kernels.Conflict:    http.StatusConflict,
	kernels.TooMany:     http.StatusTooManyRequests,
	kernels.Unavailable: http.StatusServiceUnavailable,
	kernels.Full:        http.StatusInsufficientStorage,
}

// problemOf decides which error becomes which status. No other function does.
func problemOf(r *call, err error) *problem {
	var p *problem
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &p):
		return p
	case r.Context().Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, r.Context().Err())):
		return &problem{status: statusClientGone, err: err}
	case errors.As(err, &tooLarge):
		return refuse(http.StatusRequestEntityTooLarge, "The body is larger than %d bytes.", tooLarge.Limit)
	}
	refusal := kernels.RefusalOf(r.Who, r.PathValue("id"), err)
	p = &problem{status: statusOf[refusal.Class], reason: refusal.Reason, message: refusal.Message,
		retry: refusal.Retry, check: refusal.Check, err: refusal.Err}
	if refusal.Long {
		p.message = fold(p.message)
	}
	return p
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
		w.Header().Set("Retry-After", fmt.Sprint(int(kernels.RoundUp(p.retry).Seconds())))
	}
	if err := writeJSON(w, p.status, body); err != nil {
		w.problem = errors.Join(p, err)
	}
}

// noContent answers a request that has succeeded, unless err says that it has not.
func noContent(w http.ResponseWriter, err error) error {
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
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
