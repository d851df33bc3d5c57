package schedule

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Defaults of a Firer.
const (
	DefaultDeadline = 10 * time.Minute
	DefaultPoll     = 15 * time.Second
)

// Definition is a job that is due by a schedule.
type Definition struct {
	ID       string
	Schedule *Schedule
	// Since is the time from which on the schedule counts: its newest firing, its creation, or when it was resumed,
	// whichever is newest.
	Since time.Time
}

// Store has the definitions. All gateways share one.
type Store interface {
	// Scheduled returns the definitions that are active.
	Scheduled(ctx context.Context) ([]Definition, error)
	// Fire creates the definition's job for the time at which it was due, and moves its Since there. Several gateways may
	// do so at the same time, and a gateway may die in the middle and another repeat it: there must be one job for each
	// definition and time. A definition that is paused or gone meanwhile is no error.
	Fire(ctx context.Context, definition string, due time.Time) error
	// Broken takes a definition whose times cannot be computed: that has panicked. It pauses the definition.
	Broken(ctx context.Context, d Definition, err error)
}

// Firer fires the jobs that are due. Its fields are fixed before Run.
type Firer struct {
	Store Store
	// Deadline is how late a job may be fired: a firing that all gateways have missed for longer is left out. Of several
	// missed firings, the newest is made up for. 0 is DefaultDeadline.
	Deadline time.Duration
	// Poll is how often the definitions are read. 0 is DefaultPoll.
	Poll time.Duration
	// Changed makes the definitions be read at once. It may be nil.
	Changed <-chan struct{}
	Log     *slog.Logger

	ahead map[string]ahead // by definition; owned by Run
}

// ahead is when a definition that was not changed is due next.
type ahead struct {
	schedule *Schedule
	since    time.Time
	at       time.Time
}

// Run fires jobs until ctx ends. A store that fails is tried again at the next poll.
func (f *Firer) Run(ctx context.Context) {
	poll := f.Poll
	if poll == 0 {
		poll = DefaultPoll
	}
	for ctx.Err() == nil {
		pause := min(poll, f.fire(ctx))
		select {
		case <-ctx.Done():
		case <-f.Changed:
		case <-time.After(pause):
		}
	}
}

// fire fires what is due now. It returns the time until the next firing.
func (f *Firer) fire(ctx context.Context) time.Duration {
	const long = 24 * time.Hour
	definitions, err := f.Store.Scheduled(ctx)
	if err != nil {
		if ctx.Err() == nil {
			f.Log.Warn("job definitions cannot be read; this is tried again", logkey.Err, err)
		}
		return long
	}
	deadline := f.Deadline
	if deadline == 0 {
		deadline = DefaultDeadline
	}
	now := time.Now()
	next := long
	known := map[string]ahead{}
	for _, d := range definitions {
		var err error
		a := f.ahead[d.ID]
		if a.schedule == d.Schedule && a.since.Equal(d.Since) && now.Before(a.at) {
			known[d.ID] = a
			next = min(next, a.at.Sub(now))
			continue
		}
		var due, at time.Time
		err = goroutines.Contain(func() error {
			due, at = d.Schedule.Due(d.Since, now, deadline), d.Schedule.Next(now)
			return nil
		})
		if err != nil {
			f.Store.Broken(ctx, d, err)
			continue
		}
		if !due.IsZero() {
			err = f.Store.Fire(ctx, d.ID, due)
		}
		if err != nil && ctx.Err() == nil {
			f.Log.Warn("a scheduled job cannot be created; this is tried again", logkey.Err,
				fmt.Errorf("schedule %s: %w", d.ID, err))
		}
		if !at.IsZero() {
			next = min(next, at.Sub(now))
			if err == nil { // else it is still due
				known[d.ID] = ahead{d.Schedule, d.Since, at}
			}
		}
	}
	f.ahead = known
	return next
}
