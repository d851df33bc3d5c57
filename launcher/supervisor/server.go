package supervisor

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gate"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

// bodyTimeout bounds the time for a request's body.
const bodyTimeout = 10 * time.Second

// Handler serves the kernel's routes: model, keeping, interrupt, restart, channels, log, timeline, status stream,
// assignment, limits, and the cluster's reports on the kernel's container. It answers 421 for another kernel's id. If
// the Config has a token, it answers 401 to requests without it.
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
			if err := s.refuseWarm(); err != nil {
				return err
			}
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
	handle("GET /api/kernels/{id}/timeline", func(w http.ResponseWriter, r *http.Request) error {
		if err := s.refuseWarm(); err != nil {
			return err
		}
		return s.getTimeline(w, r)
	})
	handle("GET /api/kernels/{id}/status", s.getStatus)
	handle("PUT /api/kernels/{id}/assignment", s.putAssignment)
	handle("PUT /api/kernels/{id}/limits", s.putLimits)
	handle("PUT /api/kernels/{id}/waiting", s.putWaiting)
	handle("PUT /api/kernels/{id}/node-notice", s.putNodeNotice)
	handle("/", func(http.ResponseWriter, *http.Request) error {
		return httpError{http.StatusNotFound, "no such route"}
	})
	return mux
}

// logRequest logs POST and DELETE requests under the ids that the gateway has given them. Websockets have log lines of
// their own.
func (s *Supervisor) logRequest(r *http.Request, err error, took time.Duration) {
	if r.Method != http.MethodPost && r.Method != http.MethodDelete {
		return
	}
	args := []any{logkey.Method, r.Method, logkey.Route, r.Pattern, logkey.Request, requestID(r), logkey.Took, took}
	if err != nil {
		args = append(args, logkey.Err, err)
	}
	s.logger.Info("request", args...)
}

// requestID returns the id that the gateway has given a request, or "". Other clients could write anything there.
func requestID(r *http.Request) string {
	id := r.Header.Get(api.HeaderRequestID)
	if len(id) > api.MaxRequestID || strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id
}

// httpError is an error whose text the client gets.
type httpError struct {
	status int
	text   string
}

func (e httpError) Error() string { return e.text }

// check authorizes every request.
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
	reader := r.Header.Get(api.HeaderRight) == "read"
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
	case errors.Is(err, session.ErrTooMany), errors.Is(err, gate.ErrFull):
		known = httpError{http.StatusServiceUnavailable, err.Error()}
	case errors.Is(err, errOver):
		known = httpError{http.StatusNotFound, err.Error()}
	default:
		s.logger.Error("request failed", logkey.Method, r.Method, logkey.Route, r.Pattern,
			logkey.Request, requestID(r), logkey.Err, err)
		known = httpError{http.StatusInternalServerError, "the supervisor could not do this; its log says why"}
	}
	writeJSON(w, known.status, map[string]string{"reason": http.StatusText(known.status), "message": known.text})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) //nolint:errcheck // the client may have gone
}

func (s *Supervisor) model() api.Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := api.Model{
		ID:             s.cfg.KernelID,
		Name:           s.cfg.SpecName,
		LastActivity:   s.use.LastActivity().UTC().Format(api.TimeFormat),
		ExecutionState: s.use.State(),
		Connections:    s.sessions.Active(),
		Reason:         s.shownReasonLocked(),
	}
	m.GPU, m.Memory = s.use.Held(), s.memoryLocked().Bytes
	if at := s.use.Plan(s.sessions.Active() > 0).At; !at.IsZero() {
		m.CullAt = at.UTC().Format(api.TimeFormat)
	}
	if until := s.use.Kept(); !until.IsZero() {
		m.KeepUntil = until.Format(api.TimeFormat)
	}
	return m
}

// shownReasonLocked returns the reason that users are shown: for a death, a wait, a fault, or a node that will go away.
// "" means none of these.
func (s *Supervisor) shownReasonLocked() string {
	if text := s.waitingTextLocked(); text != "" {
		return text
	}
	switch {
	case s.reason != "":
		return s.reason
	case s.heartbeatMissed:
		return silentReason
	}
	return s.nodeNotice
}

func (s *Supervisor) getModel(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, s.model())
	return nil
}

// readBody reads a request's body within bodyTimeout. The server itself sets no limit, because a websocket lasts as
// long as its notebook is open.
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
	// A stop is carried out even if its client goes.
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
		return httpError{http.StatusInternalServerError, err.Error()}
	}
	if err != nil {
		return err
	}
	s.awaitUp(r.Context())
	writeJSON(w, http.StatusOK, s.model())
	return nil
}

// awaitUp returns when the kernel has answered or is dead, at the latest after restartWait. A client may take a kernel
// that is not up for dead: jupyter_client's GatewayKernelManager fails if an answer takes a second.
func (s *Supervisor) awaitUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, restartWait)
	defer cancel()
	for {
		st, changed := s.currentStatus()
		if st.State != api.Starting && st.State != api.Restarting {
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
		err = json.Unmarshal(b, &body) // a newer gateway may send more fields
	}
	if err != nil || body.LogLimit <= 0 {
		return httpError{http.StatusBadRequest, "the body is not {\"log_limit\": bytes}"}
	}
	s.log.SetLimit(body.LogLimit)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// currentStatus returns the status and a channel that is closed at its next change.
func (s *Supervisor) currentStatus() (api.Status, <-chan struct{}) {
	size, limit := s.log.Sizes()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := api.Status{
		Protocol:     api.ProtocolVersion,
		Build:        s.build,
		KernelID:     s.cfg.KernelID,
		PID:          os.Getpid(),
		Epoch:        s.epoch,
		State:        s.use.State(),
		Reason:       s.shownReasonLocked(),
		LastActivity: s.use.LastActivity().UTC(),
		Computes:     s.use.Computes,
		NodeNotice:   s.nodeNotice,
		Connections:  s.sessions.Active(),
		CullAt:       s.use.Plan(s.sessions.Active() > 0).At.UTC(),
		KeepUntil:    s.use.Kept(),
		LogBytes:     size,
		LogLimit:     limit,
		Counts:       s.countsLocked(),
		GPU:          s.use.Held(),
		GPUUse:       s.use.GPUs.Sum,
		GPUs:         len(s.cfg.GPUSamples.Devices),
		Started:      s.use.Started.UTC(),
		Warm:         s.assign.warm,
		Memory:       s.memoryLocked().Bytes,
	}
	if s.process != nil {
		st.KernelPID = s.process.PID()
	}
	if s.cfg.SameMachine {
		st.ParentPID = os.Getppid()
	}
	return st, s.change
}

func (s *Supervisor) countsLocked() api.Counts {
	c := s.traffic.read()
	c.LogEvicted = s.log.Evicted()
	if s.adopted && !s.inherited.Left {
		c.Failed = 1
	}
	return c
}

func (s *Supervisor) getStatus(w http.ResponseWriter, r *http.Request) error {
	return api.StreamStatus(w, r, s.currentStatus, s.over)
}
