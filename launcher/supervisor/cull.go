package supervisor

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/routes"
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
	if p, due := s.use.Due(s.clients.sessions.Active() > 0); due {
		return p.Reason(now), p.Limit, 0
	}
	shown := s.use.Plan(s.clients.sessions.Active() > 0)
	s.endShown = shown.At
	switch {
	case shown.At.IsZero():
		s.notices.Cull.End("")
	case !now.Before(shown.Warn) && shown.Warn.Before(shown.At):
		s.showWarningLocked(shown)
	default:
		text := ""
		if now.Before(s.use.KeepUntil) {
			text = "This kernel is kept until " + shownTime(s.use.KeepUntil) + "."
		}
		s.notices.Cull.End(text)
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
	for sess := range s.clients.sessions.All() {
		if sess.Connected() {
			s.notices.Cull.Add(sess.Number, sess.LastCell)
		}
	}
	s.notices.Cull.Show(text)
}

// announceCullLocked shows every session in its last cell why the kernel was culled.
func (s *Supervisor) announceCullLocked(reason string) {
	for sess := range s.clients.sessions.All() {
		s.notices.Cull.Add(sess.Number, sess.LastCell)
	}
	s.notices.Cull.End("This kernel was ended at " + shownTime(s.now()) + ": " + reason + ". Its variables are gone.")
}

// Keep implements routes.Kernel.
func (s *Supervisor) Keep(until time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.use.State() == api.Dead {
		return routes.Error{Status: http.StatusConflict, Text: "the kernel is dead"}
	}
	switch err := s.use.Keep(until); {
	case errors.Is(err, activity.ErrPast):
		return routes.Error{Status: http.StatusBadRequest, Text: err.Error()}
	case err != nil:
		return routes.Error{Status: http.StatusForbidden, Text: err.Error()}
	}
	return nil
}
