// Package routes is the HTTP side of a gateway for exactly one kernel: its routes, who may use them, and the statuses
// of errors. Package supervisor is the Kernel behind them, and serves the kernel's websocket itself. Begin with New.
// The package starts no goroutine.
package routes

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gate"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/logstream"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

// bodyTimeout bounds the time for a request's body.
const bodyTimeout = 10 * time.Second

// restartWait is for a restarted kernel to be up before the client is answered.
const restartWait = 3 * time.Second

// Kernel is the kernel that the routes are for. Its methods may be called concurrently. An Error that they return is
// shown to the client; the text of other errors is not, but for ErrOver, ErrNotRunning and what is full.
type Kernel interface {
	// Model returns the kernel's model for front ends.
	Model() api.Model
	// Status returns the status for gateways, and a channel that is closed at its next change.
	Status() (api.Status, <-chan struct{})
	// Timeline returns the kernel's life so far.
	Timeline() api.Timeline
	// Warm reports whether the kernel has no owner yet.
	Warm() bool
	// OwnedBy reports whether a user owns the kernel.
	OwnedBy(user string) bool

	// Serve serves a websocket of the kernel's channels.
	Serve(w http.ResponseWriter, r *http.Request) error
	// Keep keeps the kernel until a time, whether or not it is idle, or only its GPU. The zero time ends that.
	Keep(gpu bool, until time.Time) error
	// Interrupt interrupts the kernel.
	Interrupt() error
	// ExpectCell notes a sign that a cell will follow: a parked kernel takes its GPU for it if the GPU is free.
	ExpectCell()
	// Restart replaces the kernel's process.
	Restart(ctx context.Context) error
	// Stop ends the kernel for good.
	Stop(ctx context.Context, reason string) error

	// Assign gives a kernel without an owner to its owner.
	Assign(ctx context.Context, a api.Assignment) error
	// SetWaiting stores what the cluster reports about the kernel's container.
	SetWaiting(reported api.Waiting) error
	// SetSeatNews stores what a gateway says of the kernel's turn at a GPU that pods share.
	SetSeatNews(n api.SeatNews) error
	// SetNodeNotice shows why the kernel's node will go away soon. "" ends that.
	SetNodeNotice(text string)
}

// Errors of a Kernel.
var (
	ErrOver       = errors.New("the kernel is gone")
	ErrNotRunning = errors.New("the kernel is not running")
)

// Error is an error whose text the client gets.
type Error struct {
	Status int
	Text   string
}

// Error returns the text.
func (e Error) Error() string { return e.Text }

// Options describe the routes.
type Options struct {
	KernelID string           // of all requests
	Token    string           // of all requests; "": none is asked for
	Source   logstream.Source // the kernel's log, and when the kernel is over
	Logger   *slog.Logger
}

// routes are the handlers.
type routes struct {
	Options
	kernel  Kernel
	readers logReaders
}

// New returns the kernel's routes: model, keeping, interrupt, wake, restart, channels, log, timeline, status stream,
// assignment, limits, and the cluster's reports on the kernel's container. They answer 421 for another kernel's id. If
// there is a token, they answer 401 to requests without it.
func New(k Kernel, o Options) http.Handler {
	h := &routes{Options: o, kernel: k}
	mux := http.NewServeMux()
	handle := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			begun := time.Now()
			err := h.check(r)
			if err == nil {
				err = f(w, r)
			}
			if err != nil {
				h.fail(w, r, err)
			}
			h.logRequest(r, err, time.Since(begun))
		})
	}
	byUser := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		handle(pattern, func(w http.ResponseWriter, r *http.Request) error {
			if k.Warm() {
				return Error{http.StatusServiceUnavailable, "the kernel has no owner yet"}
			}
			return f(w, r)
		})
	}
	byUser("GET /api/kernels/{id}", h.getModel)
	byUser("PATCH /api/kernels/{id}", h.patchKernel)
	handle("DELETE /api/kernels/{id}", h.deleteKernel)
	byUser("POST /api/kernels/{id}/interrupt", h.postInterrupt)
	byUser("POST /api/kernels/{id}/wake", func(w http.ResponseWriter, _ *http.Request) error {
		k.ExpectCell()
		return noContent(w, nil)
	})
	byUser("POST /api/kernels/{id}/restart", h.postRestart)
	byUser("GET /api/kernels/{id}/channels", k.Serve)
	byUser("GET /api/kernels/{id}/log", h.getLog)
	byUser("GET /api/kernels/{id}/timeline", func(w http.ResponseWriter, _ *http.Request) error {
		writeJSON(w, http.StatusOK, k.Timeline())
		return nil
	})
	handle("GET /api/kernels/{id}/status", func(w http.ResponseWriter, r *http.Request) error {
		return api.StreamStatus(w, r, k.Status, o.Source.Over)
	})
	handle("PUT /api/kernels/{id}/assignment", h.putAssignment)
	handle("PUT /api/kernels/{id}/limits", h.putLimits)
	handle("PUT /api/kernels/{id}/waiting", h.putWaiting)
	handle("PUT /api/kernels/{id}/node-notice", h.putNodeNotice)
	handle("PUT /api/kernels/{id}/seat", h.putSeat)
	handle("/", func(http.ResponseWriter, *http.Request) error {
		return Error{http.StatusNotFound, "no such route"}
	})
	return mux
}

// logRequest logs POST and DELETE requests under the ids that the gateway has given them. Websockets have log lines of
// their own.
func (h *routes) logRequest(r *http.Request, err error, took time.Duration) {
	if r.Method != http.MethodPost && r.Method != http.MethodDelete {
		return
	}
	args := []any{logkey.Method, r.Method, logkey.Route, r.Pattern, logkey.Request, RequestID(r), logkey.Took, took}
	if err != nil {
		args = append(args, logkey.Err, err)
	}
	h.Logger.Info("request", args...)
}

// RequestID returns the id that the gateway has given a request, or "". Other clients could write anything there.
func RequestID(r *http.Request) string {
	id := r.Header.Get(api.HeaderRequestID)
	if len(id) > api.MaxRequestID || strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id
}

// check authorizes every request.
func (h *routes) check(r *http.Request) error {
	if h.Token != "" {
		got := r.Header.Get("Authorization")
		if subtle.ConstantTimeCompare([]byte(got), []byte("Bearer "+h.Token)) != 1 {
			return Error{http.StatusUnauthorized, "the supervisor's token is missing or wrong"}
		}
	}
	if id := r.PathValue("id"); id != "" && id != h.KernelID {
		return Error{http.StatusMisdirectedRequest, "this supervisor answers for another kernel"}
	}
	if r.Header.Get(api.HeaderRight) == api.RightRead && r.Method != http.MethodGet {
		return Error{http.StatusForbidden, "you may only look at this kernel"}
	}
	return nil
}

// fail answers with an error. Unknown errors are logged and not shown.
func (h *routes) fail(w http.ResponseWriter, r *http.Request, err error) {
	var known Error
	switch {
	case errors.As(err, &known):
	case errors.Is(err, ErrNotRunning):
		known = Error{http.StatusConflict, err.Error()}
	case errors.Is(err, session.ErrTooMany), errors.Is(err, gate.ErrFull):
		known = Error{http.StatusServiceUnavailable, err.Error()}
	case errors.Is(err, ErrOver):
		known = Error{http.StatusNotFound, err.Error()}
	default:
		h.Logger.Error("request failed", logkey.Method, r.Method, logkey.Route, r.Pattern,
			logkey.Request, RequestID(r), logkey.Err, err)
		known = Error{http.StatusInternalServerError, "the supervisor could not do this; its log says why"}
	}
	writeJSON(w, known.Status, map[string]string{"reason": http.StatusText(known.Status), "message": known.Text})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) //nolint:errcheck // the client may have gone
}

// readBody reads the JSON of a request's body within bodyTimeout. No body leaves into as it is. The server itself sets
// no limit, because a websocket lasts as long as its notebook is open.
func readBody(w http.ResponseWriter, r *http.Request, limit int64, into any) error {
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil {
		return err
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err == nil {
		err = control.SetReadDeadline(time.Time{})
	}
	if err == nil && len(b) > 0 {
		err = json.Unmarshal(b, into)
	}
	return err
}
