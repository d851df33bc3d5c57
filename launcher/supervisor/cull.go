package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// checkCull returns why the kernel is to be culled now, and for which limit. Otherwise reason is "", and pause is the
// time until the next check if nothing happens. It updates what notebooks show.
func (s *Supervisor) checkCull() (reason, limit string, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cull, now := &s.cfg.Cull, s.now()
	pause = cull.LookInterval()
	if s.assign.warm {
		return "", "", pause // it waits for its owner
	}
	if p, due := s.use.Due(s.sessions.Active() > 0); due {
		return p.Reason(now), p.Limit, 0
	}
	shown := s.use.Plan(s.sessions.Active() > 0)
	s.endShown = shown.At
	switch {
	case shown.At.IsZero():
		s.endWarningLocked("")
	case !now.Before(shown.Warn) && shown.Warn.Before(shown.At):
		s.showWarningLocked(shown)
	default:
		text := ""
		if now.Before(s.use.KeepUntil) {
			text = "This kernel is kept until " + shownTime(s.use.KeepUntil) + "."
		}
		s.endWarningLocked(text)
	}
	for _, at := range []time.Time{shown.Warn, shown.At} {
		if now.Before(at) {
			pause = min(pause, at.Sub(now))
		}
	}
	return "", "", pause // if a poll runs at that time, its end causes another check
}

// shownTime returns a time as notebooks show it.
func shownTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// showWarningLocked shows connected sessions when the kernel will be culled, in their last cell.
func (s *Supervisor) showWarningLocked(p activity.Plan) {
	text := fmt.Sprintf("This kernel will be ended at %s: by then it will have been %s.", shownTime(p.At), p.State(p.At))
	if p.Limit == api.LimitIdle {
		text += " Run a cell to keep it."
	}
	s.history.AddNew(s.nowLocked(), api.TimelineWarning, text)
	for sess := range s.sessions.All() {
		if !sess.Connected() || len(sess.LastCell) == 0 {
			continue
		}
		if !slices.ContainsFunc(s.warnings, func(l *cellDisplay) bool { return l.session == sess.Number }) {
			s.warnings = append(s.warnings, newCellDisplay(sess.Number, sess.LastCell))
		}
	}
	for _, l := range s.warnings {
		s.showLocked(l, text)
	}
}

// endWarningLocked replaces the warnings by a last text, or removes them if that is "".
func (s *Supervisor) endWarningLocked(text string) {
	for _, l := range s.warnings {
		s.showLocked(l, text)
	}
	s.warnings = nil
}

// announceCullLocked shows every session in its last cell why the kernel was culled.
func (s *Supervisor) announceCullLocked(reason string) {
	text := "This kernel was ended at " + shownTime(s.now()) + ": " + reason + ". Its variables are gone."
	for sess := range s.sessions.All() {
		at := slices.IndexFunc(s.warnings, func(l *cellDisplay) bool { return l.session == sess.Number })
		switch {
		case at >= 0:
			s.showLocked(s.warnings[at], text)
		case len(sess.LastCell) > 0:
			s.showLocked(newCellDisplay(sess.Number, sess.LastCell), text)
		}
	}
	s.warnings = nil
}

// cellDisplay is a notice.Display for one session.
type cellDisplay struct {
	session uint64 // number
	*notice.Display
}

func newCellDisplay(session uint64, parent []byte) *cellDisplay {
	return &cellDisplay{session, notice.NewDisplay(parent)}
}

// showLocked shows a text in a cell instead of the previous one; "" removes it.
func (s *Supervisor) showLocked(l *cellDisplay, text string) {
	if m, changed := l.Show(s.senderSessionLocked(), text); changed {
		s.log.Append(l.session, m, true)
	}
}

// patchKernel sets the time until which the kernel is kept, whether or not it is idle.
func (s *Supervisor) patchKernel(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		KeepUntil json.RawMessage `json:"keep_until"`
	}
	b, err := readBody(w, r, 4<<10)
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		err = d.Decode(&body)
	}
	if err != nil || body.KeepUntil == nil {
		return httpError{http.StatusBadRequest, `the body is not {"keep_until": "2006-01-02T15:04:05Z" or null}`}
	}
	var text *string
	var until time.Time
	if err = json.Unmarshal(body.KeepUntil, &text); err == nil && text != nil {
		until, err = time.Parse(time.RFC3339, *text)
	}
	if err != nil {
		return httpError{http.StatusBadRequest, "keep_until is neither null nor a time like 2006-01-02T15:04:05Z (RFC 3339)"}
	}
	if err := s.keep(until); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, s.model())
	return nil
}

// keep keeps the kernel until a time. The zero time ends that.
func (s *Supervisor) keep(until time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.use.State() == api.Dead {
		return httpError{http.StatusConflict, "the kernel is dead"}
	}
	switch err := s.use.Keep(until); {
	case errors.Is(err, activity.ErrPast):
		return httpError{http.StatusBadRequest, err.Error()}
	case err != nil:
		return httpError{http.StatusForbidden, err.Error()}
	}
	return nil
}
