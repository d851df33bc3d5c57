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

// culling decides when the kernel is culled, and shows that to its users. Supervisor.mu guards it.
type culling struct {
	// Fixed.
	cull     *api.Cull
	clients  *clients
	timeline *timeline
	changed  chan struct{} // capacity 1: the time of culling may have changed

	shown time.Time // when the kernel will be culled, as it was shown last
}

// check returns why the kernel is to be culled now, and for which limit. Otherwise reason is "", and pause is the time
// until the next check if nothing happens. It updates what notebooks show. A warm kernel waits for its owner.
func (c *culling) check(warm bool) (reason, limit string, pause time.Duration) {
	use, now, connected := c.clients.use, c.clients.now(), c.clients.sessions.Active() > 0
	pause = c.cull.LookInterval()
	if warm {
		return "", "", pause
	}
	if p, due := use.Due(connected); due {
		return p.Reason(now), p.Limit, 0
	}
	plan := use.Plan(connected)
	c.shown = plan.At
	switch {
	case plan.At.IsZero():
		c.clients.notices.Cull.End("")
	case !now.Before(plan.Warn) && plan.Warn.Before(plan.At):
		c.warn(plan)
	default:
		text := ""
		if now.Before(use.KeepUntil) {
			text = "This kernel is kept until " + api.ShownTime(use.KeepUntil) + "."
		}
		c.clients.notices.Cull.End(text)
	}
	for _, at := range []time.Time{plan.Warn, plan.At} {
		if now.Before(at) {
			pause = min(pause, at.Sub(now))
		}
	}
	return "", "", pause // if a poll runs at that time, its end causes another check
}

// warn shows connected sessions when the kernel will be culled, in their last cell.
func (c *culling) warn(p activity.Plan) {
	text := fmt.Sprintf("This kernel will be ended at %s: by then it will have been %s.", api.ShownTime(p.At),
		p.State(p.At))
	if p.Limit == api.LimitIdle {
		text += " Run a cell to keep it."
	}
	c.timeline.AddNew(c.clients.now(), api.TimelineWarning, text)
	for sess := range c.clients.sessions.All() {
		if sess.Connected() {
			c.clients.notices.Cull.Add(sess.Number, sess.LastCell)
		}
	}
	c.clients.notices.Cull.Show(text)
}

// announce shows every session in its last cell why the kernel was culled.
func (c *culling) announce(reason string) {
	for sess := range c.clients.sessions.All() {
		c.clients.notices.Cull.Add(sess.Number, sess.LastCell)
	}
	c.clients.notices.Cull.End("This kernel was ended at " + api.ShownTime(c.clients.now()) + ": " + reason +
		". Its variables are gone.")
}

// Keep implements routes.Kernel.
func (s *Supervisor) Keep(gpu bool, until time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.use.State() == api.Dead {
		return routes.Error{Status: http.StatusConflict, Text: "the kernel is dead"}
	}
	if gpu && !s.parker.Parks() && !until.IsZero() {
		return routes.Error{Status: http.StatusConflict, Text: "the kernel is not parked: it keeps its GPU, or has none"}
	}
	switch err := s.use.Keep(gpu, until); {
	case errors.Is(err, activity.ErrPast):
		return routes.Error{Status: http.StatusBadRequest, Text: err.Error()}
	case err != nil:
		return routes.Error{Status: http.StatusForbidden, Text: err.Error()}
	}
	return nil
}
