package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// usage is what is known of the kernel's use. With a request in progress that is only a poll, as far as can be told yet, passing
// is true: what is shown to users does not change for it. s.mu is held.
func (s *Supervisor) usage() (u usage, passing bool) {
	c := &s.clock
	u = usage{up: c.state == stateIdle || c.state == stateBusy, started: s.started, idleSince: c.idleSince, spoke: c.spoke,
		busy: s.computes, busySince: c.busySince(), worked: c.worked, connected: s.connections() > 0, left: s.left, keepUntil: s.keepUntil}
	passing = len(c.inProgress) > 0 && !s.computes
	for _, p := range c.inProgress {
		u.busy = true
		passing = passing && !c.counts(p.msgType) && c.now().Sub(p.since) < c.long
	}
	return u, passing
}

// shownPlan is the plan as users are told it. s.mu is held.
func (s *Supervisor) shownPlan() plan {
	u, passing := s.usage()
	if passing {
		u.busy = false
	}
	if s.clock.state == stateDead {
		return plan{}
	}
	return s.cfg.Cull.plan(u)
}

// lookAgain has the kernel's life look at the plan. s.mu is held.
func (s *Supervisor) lookAgain() {
	if s.cfg.Cull.ends() {
		poke(s.useNews)
	}
}

// considerCull returns why the kernel is to be ended now and which limit wants it, or "" and how long nothing needs to be looked at
// if nothing happens. It brings up to date what notebooks are shown.
func (s *Supervisor) considerCull() (reason, limit string, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cull, now := &s.cfg.Cull, s.now()
	pause = cull.interval()
	u, _ := s.usage()
	if p := cull.plan(u); !p.at.IsZero() && !now.Before(p.at) {
		return p.why(now), p.limit, 0
	}
	shown := s.shownPlan()
	if shown.at != s.toldEnd {
		s.toldEnd = shown.at
		s.touched() // who reads the status may know it a second later
	}
	switch {
	case shown.at.IsZero():
		s.endWarning("")
	case !now.Before(shown.warn) && shown.warn.Before(shown.at):
		s.warn(shown)
	default:
		text := ""
		if now.Before(s.keepUntil) {
			text = "This kernel is kept until " + shownTime(s.keepUntil) + "."
		}
		s.endWarning(text)
	}
	for _, at := range []time.Time{shown.warn, shown.at} {
		if now.Before(at) {
			pause = min(pause, at.Sub(now))
		}
	}
	return "", "", pause // where a poll has come at the time of the end, its own end is news
}

// shownTime is a time as it stands in a notebook.
func shownTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// warn tells sessions that are open, and have not been told, where they have run their last cell, when the kernel will be ended.
// s.mu is held.
func (s *Supervisor) warn(p plan) {
	text := fmt.Sprintf("This kernel will be ended at %s: by then it will have been %s.", shownTime(p.at), p.state(p.at))
	if p.limit == LimitIdle {
		text += " Run a cell to keep it."
	}
	for _, sess := range s.sessions {
		if len(sess.conns) == 0 || len(sess.cell) == 0 {
			continue
		}
		if !slices.ContainsFunc(s.warnings, func(l *line) bool { return l.session == sess }) {
			s.warnings = append(s.warnings, newLine(sess, sess.cell))
		}
	}
	for _, l := range s.warnings {
		s.say(l, text)
	}
}

// endWarning leaves a last text, or none, where warnings stand. s.mu is held.
func (s *Supervisor) endWarning(text string) {
	for _, l := range s.warnings {
		s.say(l, text)
	}
	s.warnings = nil
}

// sayCulled tells every session where it has run its last cell why the kernel was ended. s.mu is held.
func (s *Supervisor) sayCulled(reason string) {
	text := "This kernel was ended at " + shownTime(s.now()) + ": " + reason + ". Its variables are gone."
	for _, sess := range s.sessions {
		at := slices.IndexFunc(s.warnings, func(l *line) bool { return l.session == sess })
		switch {
		case at >= 0:
			s.say(s.warnings[at], text)
		case len(sess.cell) > 0:
			s.say(newLine(sess, sess.cell), text)
		}
	}
	s.warnings = nil
}

// line is what a cell shows and can be changed.
type line struct {
	session *session
	parent  []byte // header of the cell's request
	id      string // display_id
	text    string
}

func newLine(sess *session, parent []byte) *line {
	return &line{session: sess, parent: parent, id: "ekg-" + wire.NewID()}
}

// say shows a text in a cell, in place of what was shown there; "" takes it away. s.mu is held.
func (s *Supervisor) say(l *line, text string) {
	if l.text == text {
		return
	}
	msgType := "update_display_data"
	if l.text == "" {
		msgType = "display_data"
	}
	l.text = text
	data := map[string]string{}
	if text != "" {
		data["text/plain"] = "[ekg] " + text
	}
	s.log.append(l.session, wire.New(wire.IOPub, msgType, s.voiceSession(), l.parent, map[string]any{
		"data": data, "metadata": struct{}{}, "transient": map[string]string{"display_id": l.id}}), true)
}

// restUsed notes that somebody has asked for the kernel by REST.
func (s *Supervisor) restUsed() {
	if !slices.Contains(s.cfg.Cull.Activity, activityREST) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used()
}

// used restarts the idle clock. s.mu is held.
func (s *Supervisor) used() {
	s.clock.used()
	s.estate.changed()
	s.lookAgain()
}

// patchKernel changes until when the kernel is kept, whether or not it is idle.
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

// keep keeps the kernel until a time, or no longer if that is zero.
func (s *Supervisor) keep(until time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	cull, now := &s.cfg.Cull, s.now()
	most, ends := now.Add(cull.KeepLimit), s.started.Add(cull.MaxAge)
	switch {
	case s.clock.state == stateDead:
		return httpError{http.StatusConflict, "the kernel is dead"}
	case until.IsZero():
	case !until.After(now):
		return httpError{http.StatusBadRequest, "keep_until is in the past"}
	case cull.KeepLimit == 0:
		return httpError{http.StatusForbidden, "kernels cannot be kept here"}
	case until.After(most):
		return httpError{http.StatusForbidden, fmt.Sprintf("keep_until can be at most %s from now, which is %s", cull.KeepLimit, most.UTC().Format(time.RFC3339))}
	case cull.MaxAge > 0 && until.After(ends):
		return httpError{http.StatusForbidden, fmt.Sprintf("no kernel runs for longer than %s here: keep_until can be at most %s", cull.MaxAge, ends.UTC().Format(time.RFC3339))}
	}
	s.keepUntil = until.UTC()
	s.estate.changed()
	s.changed()
	s.lookAgain()
	return nil
}

// kept is until when the kernel's owner keeps it; zero if that is over, or there is nothing to be kept. s.mu is held.
func (s *Supervisor) kept() time.Time {
	if s.clock.state == stateDead || !s.now().Before(s.keepUntil) {
		return time.Time{}
	}
	return s.keepUntil
}
