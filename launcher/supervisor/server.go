package supervisor

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// Headers by which a gateway tells a supervisor for whom it speaks. Rights are "use" (the default) and "read".
const (
	HeaderUser  = "Ekg-User"
	HeaderRight = "Ekg-Right"
)

// HeaderRequestID is the header by which a gateway tells the id of a request, under which both logs speak of it: up to
// maxRequestID hexadecimal digits.
const (
	HeaderRequestID = "X-Request-Id"
	maxRequestID    = 64
)

// HeaderLog is the header of an answer of GET .../log that names the log: 16 hexadecimal digits. A kernel that is started
// again by another supervisor has another log, whose numbers begin anew.
const HeaderLog = "Ekg-Log"

// bodyTimeout is how long a request's body may take.
const bodyTimeout = 10 * time.Second

// TimeFormat is how Jupyter's models write times, in UTC: jupyter_server's gateway client accepts nothing but one to
// six fractional digits and a Z.
const TimeFormat = "2006-01-02T15:04:05.000000Z"

// Model is a kernel in Jupyter's REST API.
type Model struct {
	ID             string `json:"id"`
	Name           string `json:"name"`
	LastActivity   string `json:"last_activity"` // TimeFormat
	ExecutionState string `json:"execution_state"`
	Connections    int    `json:"connections"`
	Reason         string `json:"reason,omitempty"`     // why it is dead, or what it waits for
	CullAt         string `json:"cull_at,omitempty"`    // TimeFormat; when it will be culled if nothing happens
	KeepUntil      string `json:"keep_until,omitempty"` // TimeFormat; until when its owner keeps it
}

// Handler serves the kernel's routes: the model, how long to keep it, interrupt, restart, channels, the log, the status stream, the limits, and
// what the cluster says of the kernel's container.
// It answers 421 for any other kernel's id, and 401 without the token if there is one.
func (s *Supervisor) Handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			begun := time.Now()
			err := s.check(r)
			if err == nil {
				err = f(w, r)
			}
			if err != nil {
				s.fail(w, r, err)
			}
			s.logRequest(r, err, time.Since(begun))
		})
	}
	byUser := func(pattern string, f func(http.ResponseWriter, *http.Request) error) {
		handle(pattern, func(w http.ResponseWriter, r *http.Request) error {
			s.restUsed()
			return f(w, r)
		})
	}
	byUser("GET /api/kernels/{id}", s.getModel)
	byUser("PATCH /api/kernels/{id}", s.patchKernel)
	handle("DELETE /api/kernels/{id}", s.deleteKernel)
	byUser("POST /api/kernels/{id}/interrupt", s.postInterrupt)
	byUser("POST /api/kernels/{id}/restart", s.postRestart)
	handle("GET /api/kernels/{id}/channels", s.getChannels)
	byUser("GET /api/kernels/{id}/log", s.getLog)
	handle("GET /api/kernels/{id}/status", s.getStatus)
	handle("PUT /api/kernels/{id}/limits", s.putLimits)
	handle("PUT /api/kernels/{id}/waiting", s.putWaiting)
	handle("/", func(http.ResponseWriter, *http.Request) error {
		return httpError{http.StatusNotFound, "no such route"}
	})
	return mux
}

// logRequest notes what was asked that changes something, under the id that the gateway has given it. Launchers ask for
// the rest by themselves, and websockets say by themselves that they come and go.
func (s *Supervisor) logRequest(r *http.Request, err error, took time.Duration) {
	if r.Method != http.MethodPost && r.Method != http.MethodDelete {
		return
	}
	args := []any{"method", r.Method, "route", r.Pattern, "request", requestID(r), "took", took}
	if err != nil {
		args = append(args, "err", err)
	}
	s.logger.Info("request", args...)
}

// requestID is the id that the gateway has given a request, "" if it has none: whoever else may ask could write anything.
func requestID(r *http.Request) string {
	id := r.Header.Get(HeaderRequestID)
	if len(id) > maxRequestID || strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id
}

// httpError is an error that the peer is told.
type httpError struct {
	status int
	text   string
}

func (e httpError) Error() string { return e.text }

// check is what every request has to pass.
func (s *Supervisor) check(r *http.Request) error {
	if s.cfg.Token != "" {
		got := r.Header.Get("Authorization")
		if subtle.ConstantTimeCompare([]byte(got), []byte("Bearer "+s.cfg.Token)) != 1 {
			return httpError{http.StatusUnauthorized, "the supervisor's token is missing or wrong"}
		}
	}
	if id := r.PathValue("id"); id != "" && id != s.cfg.KernelID {
		return httpError{http.StatusMisdirectedRequest, "this supervisor answers for another kernel"}
	}
	reader := r.Header.Get(HeaderRight) == "read"
	if reader && r.Method != http.MethodGet {
		return httpError{http.StatusForbidden, "you may only look at this kernel"}
	}
	return nil
}

// fail answers with an error. Unknown errors are logged and not shown.
func (s *Supervisor) fail(w http.ResponseWriter, r *http.Request, err error) {
	var known httpError
	switch {
	case errors.As(err, &known):
	case errors.Is(err, errNotRunning):
		known = httpError{http.StatusConflict, err.Error()}
	case errors.Is(err, errTooMany), errors.Is(err, errGateFull):
		known = httpError{http.StatusServiceUnavailable, err.Error()}
	case errors.Is(err, errOver):
		known = httpError{http.StatusNotFound, err.Error()}
	default:
		s.logger.Error("request failed", "method", r.Method, "route", r.Pattern, "request", requestID(r), "err", err)
		known = httpError{http.StatusInternalServerError, "the supervisor could not do this; its log says why"}
	}
	writeJSON(w, known.status, map[string]string{"reason": http.StatusText(known.status), "message": known.text})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) //nolint:errcheck // the peer has gone
}

func (s *Supervisor) model() Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := Model{ID: s.cfg.KernelID, Name: s.cfg.SpecName, LastActivity: s.clock.lastActivity.UTC().Format(TimeFormat),
		ExecutionState: s.clock.state, Connections: s.connections(), Reason: s.shownReason()}
	if at := s.shownPlan().at; !at.IsZero() {
		m.CullAt = at.UTC().Format(TimeFormat)
	}
	if until := s.kept(); !until.IsZero() {
		m.KeepUntil = until.Format(TimeFormat)
	}
	return m
}

// shownReason is why the kernel is dead, what it waits for or what is wrong with it, or "". s.mu is held.
func (s *Supervisor) shownReason() string {
	if text := s.waitingText(); text != "" {
		return text
	}
	if s.reason == "" && s.silent {
		return silentReason
	}
	return s.reason
}

// connections counts the websockets somebody stands behind. s.mu is held.
func (s *Supervisor) connections() int {
	n := 0
	for _, sess := range s.sessions {
		for c := range sess.conns {
			if c.takesPart {
				n++
			}
		}
	}
	return n
}

func (s *Supervisor) getModel(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, s.model())
	return nil
}

// readBody reads a request's body, which has to come within bodyTimeout: the server itself sets no limit, since what it
// serves lasts as long as a notebook is open.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		return nil, err
	}
	return b, control.SetReadDeadline(time.Time{})
}

func (s *Supervisor) deleteKernel(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Reason string `json:"reason"`
	}
	b, err := readBody(w, r, 64<<10)
	if err == nil && len(b) > 0 {
		err = json.Unmarshal(b, &body)
	}
	if err != nil {
		return httpError{http.StatusBadRequest, "the body is not {\"reason\": \"...\"}"}
	}
	if body.Reason == "" {
		body.Reason = "it was shut down on request"
	}
	// Once begun, a stop is carried out whether or not its client stays.
	if err := s.Stop(context.WithoutCancel(r.Context()), body.Reason); err != nil && !errors.Is(err, errOver) {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Supervisor) postInterrupt(w http.ResponseWriter, _ *http.Request) error {
	if err := s.Interrupt(); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Supervisor) postRestart(w http.ResponseWriter, r *http.Request) error {
	err := s.Restart(context.WithoutCancel(r.Context()))
	if err != nil && !errors.Is(err, errOver) {
		return httpError{http.StatusInternalServerError, sentence(err)}
	}
	if err != nil {
		return err
	}
	s.awaitUp(r.Context())
	writeJSON(w, http.StatusOK, s.model())
	return nil
}

// awaitUp returns when the kernel has answered or is dead, after restartWait at the latest. A client that would ask a kernel which is
// not up may take that for its death: jupyter_client's GatewayKernelManager fails if the answer takes a second.
func (s *Supervisor) awaitUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, restartWait)
	defer cancel()
	for {
		st, changed := s.currentStatus()
		if st.State != stateStarting && st.State != stateRestarting {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		case <-s.over:
			return
		}
	}
}

func (s *Supervisor) putLimits(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		LogLimit int64 `json:"log_limit"`
	}
	b, err := readBody(w, r, 4<<10)
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		err = d.Decode(&body)
	}
	if err != nil || body.LogLimit <= 0 {
		return httpError{http.StatusBadRequest, "the body is not {\"log_limit\": bytes}"}
	}
	s.log.setLimit(body.LogLimit)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// currentStatus returns the status and a channel that is closed at its next change.
func (s *Supervisor) currentStatus() (Status, <-chan struct{}) {
	size, limit := s.log.sizes()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Protocol: ProtocolVersion, Build: s.build, KernelID: s.cfg.KernelID, PID: os.Getpid(), Epoch: s.epoch,
		State: s.clock.state, Reason: s.shownReason(), LastActivity: s.clock.lastActivity.UTC(), Connections: s.connections(),
		CullAt: s.shownPlan().at, KeepUntil: s.kept(), LogBytes: size, LogLimit: limit, Counts: s.counts()}
	if s.proc != nil {
		st.KernelPID = s.proc.pid()
	}
	return st, s.change
}

// counts is what was counted until now.
func (s *Supervisor) counts() Counts {
	return Counts{Since: s.began, ToKernel: s.toKernel.read(), FromKernel: s.fromKernel.read(),
		LogEvicted: s.log.evicted(), LogLost: s.lost.Load()}
}

func (s *Supervisor) getStatus(w http.ResponseWriter, r *http.Request) error {
	return StreamStatus(w, r, s.currentStatus, s.over)
}
