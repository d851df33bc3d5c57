// Package history records the life of one kernel for its users: its events, and when it was busy. Package supervisor
// serves a History as the kernel's timeline. It is bounded, however long the kernel lives. It takes no locks and starts
// no goroutine: its callers guard a History.
package history

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	// MaxEvents bounds the events. The first ones tell the start; after them the oldest are dropped.
	MaxEvents = 200
	keptFirst = 8
	maxText   = 500 // bytes of an event's text

	// steps is the most steps of the record of busy times. When they do not reach any more, each two become one.
	steps     = 240
	firstStep = time.Second
)

// History is the record of one kernel. Make one with New.
type History struct {
	events  []api.TimelineEvent
	dropped int

	began time.Time // of the first step
	step  time.Duration
	busy  []time.Duration // in each step
	since time.Time       // up to when busy is known
	now   bool            // the kernel is busy since then
}

// New returns the History of a kernel that is starting.
func New(now time.Time) History {
	return History{began: now, step: firstStep, since: now}
}

// Empty reports whether there are no events.
func (h *History) Empty() bool { return len(h.events) == 0 }

// Add adds an event. A text that is too long is shortened.
func (h *History) Add(at time.Time, kind api.TimelineKind, text string) {
	if len(h.events) >= MaxEvents {
		h.events = append(h.events[:keptFirst], h.events[keptFirst+1:]...)
		h.dropped++
	}
	h.events = append(h.events, api.TimelineEvent{At: at.UTC(), Kind: kind, Text: api.PlainText(text, maxText)})
}

// AddNew is Add, unless the last event of this kind has the same text.
func (h *History) AddNew(at time.Time, kind api.TimelineKind, text string) {
	text = api.PlainText(text, maxText)
	for i := len(h.events) - 1; i >= 0; i-- {
		if h.events[i].Kind == kind {
			if h.events[i].Text == text {
				return
			}
			break
		}
	}
	h.Add(at, kind, text)
}

// AddNewAt is AddNew for an event that may have been before others that are known already.
func (h *History) AddNewAt(at time.Time, kind api.TimelineKind, text string) {
	before := len(h.events) + h.dropped
	if h.AddNew(at, kind, text); len(h.events)+h.dropped == before {
		return
	}
	for i := len(h.events) - 1; i > 0 && h.events[i].At.Before(h.events[i-1].At); i-- {
		h.events[i], h.events[i-1] = h.events[i-1], h.events[i]
	}
}

// Busy notes whether the kernel is busy from now on.
func (h *History) Busy(at time.Time, busy bool) {
	h.fill(at)
	h.now = busy
}

// fill adds the time up to at.
func (h *History) fill(at time.Time) {
	for at.Sub(h.began) >= steps*h.step {
		h.halve()
	}
	for h.since.Before(at) {
		i := int(h.since.Sub(h.began) / h.step)
		for len(h.busy) <= i {
			h.busy = append(h.busy, 0)
		}
		end := h.began.Add(time.Duration(i+1) * h.step)
		if end.After(at) {
			end = at
		}
		if h.now {
			h.busy[i] += end.Sub(h.since)
		}
		h.since = end
	}
}

// halve makes the steps twice as long.
func (h *History) halve() {
	h.step *= 2
	half := make([]time.Duration, (len(h.busy)+1)/2)
	for i, d := range h.busy {
		half[i/2] += d
	}
	h.busy = half
}

// Timeline returns the record up to a time.
func (h *History) Timeline(at time.Time) api.Timeline {
	h.fill(at)
	t := api.Timeline{Since: h.began.UTC(), Until: at.UTC(), Dropped: h.dropped, Step: h.step.Seconds(),
		Events: append([]api.TimelineEvent{}, h.events...), Busy: make([]float64, len(h.busy))}
	for i, d := range h.busy {
		t.Busy[i] = float64(d.Milliseconds()) / 1000
	}
	return t
}
