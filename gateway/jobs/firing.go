package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/schedule"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// lookAtSchedules makes this gateway look at all definitions now.
func (m *Manager) lookAtSchedules() { goroutines.Wake(m.defined) }

// fireSchedules makes the jobs that are due, until ctx ends.
func (m *Manager) fireSchedules(ctx context.Context) {
	f := schedule.Firer{Store: &scheduled{m: m, parse: (*definition).parsed}, Changed: m.defined, Log: m.log}
	f.Run(ctx)
}

// scheduled has the definitions for a schedule.Firer. One goroutine uses it.
type scheduled struct {
	m     *Manager
	parse func(*definition) (*schedule.Schedule, error) // definition.parsed; tests replace it

	known map[[2]string]*schedule.Schedule // by expression and time zone, of the definitions that were read last
}

// reasonSchedule pauses a definition whose schedule has made the gateway panic.
const reasonSchedule = "the gateway has failed at its schedule, by an error of its own; see its log"

// read reads a definition's schedule. The error's text is for the owner.
func (s *scheduled) read(d *definition) (parsed *schedule.Schedule, err error) {
	err = goroutines.Contain(func() (err error) {
		parsed, err = s.parse(d)
		return err
	})
	var panicked *goroutines.PanicError
	if errors.As(err, &panicked) {
		s.m.log.Error("the schedule of a job definition cannot be read", logkey.Definition, d.ID, logkey.Err, err)
		err = errors.New(reasonSchedule)
	}
	return parsed, err
}

// Scheduled returns the definitions whose schedule is not paused.
func (s *scheduled) Scheduled(ctx context.Context) ([]schedule.Definition, error) {
	all, _, err := s.m.allDefinitions(ctx, true)
	if err != nil {
		return nil, err
	}
	var active []schedule.Definition
	known := map[[2]string]*schedule.Schedule{}
	for i := range all {
		d := &all[i]
		if !d.scheduled() {
			continue
		}
		key := [2]string{d.Schedule, d.Timezone}
		if known[key] == nil {
			known[key] = s.known[key]
		}
		if known[key] == nil {
			if known[key], err = s.read(d); err != nil { // an earlier release took it
				s.m.pause(ctx, d.ID, func(d *definition) string {
					if _, err := s.read(d); err != nil {
						return err.Error()
					}
					return ""
				})
				continue
			}
		}
		active = append(active, schedule.Definition{ID: d.ID, Schedule: known[key], Since: d.Since})
	}
	s.known = known
	return active, nil
}

// Broken pauses a definition whose times cannot be computed, unless its schedule was changed meanwhile.
func (s *scheduled) Broken(ctx context.Context, broken schedule.Definition, err error) {
	s.m.log.Error("the times of a job definition cannot be computed", logkey.Definition, broken.ID, logkey.Err, err)
	s.m.pause(ctx, broken.ID, func(d *definition) string {
		if !d.Since.Equal(broken.Since) {
			return ""
		}
		return reasonSchedule
	})
}

// pause pauses a definition with the reason that why returns. Its owner reads the reason. The definition stays active
// if why returns "".
func (m *Manager) pause(ctx context.Context, id string, why func(*definition) string) {
	reason := ""
	_, err := m.store.changeDefinition(ctx, id, func(d *definition) error {
		if reason = why(d); reason == "" || !d.scheduled() {
			reason = ""
			return errSame
		}
		d.Active, d.Reason = false, "it is paused: "+reason
		return nil
	})
	switch {
	case err != nil && !errors.Is(err, launcher.ErrNoRecord) && ctx.Err() == nil:
		m.log.Warn("a job definition cannot be paused; this is tried again", logkey.Definition, id, logkey.Err, err)
	case err == nil && reason != "":
		m.log.Warn("a job definition is paused", logkey.Definition, id, logkey.Reason, reason)
	}
}

// dueSpace makes the ids of jobs that are due by a schedule.
var dueSpace = uuid.MustParse("b8d4c1c6-3a57-4b0e-a0d2-96d4e1f0a5c3")

// Fire makes the job that was due at a time. Its id follows from the definition and the time, so there is one job,
// whichever gateways make it. Then it moves the definition's Since. A job is not removed before that; see discard.
func (s *scheduled) Fire(ctx context.Context, id string, due time.Time) error {
	return goroutines.Contain(func() error { return s.fire(ctx, id, due) })
}

func (s *scheduled) fire(ctx context.Context, id string, due time.Time) error {
	m := s.m
	d, sub, err := m.store.submissionOf(ctx, id)
	if errors.Is(err, launcher.ErrNoRecord) {
		return nil
	}
	if err != nil {
		return err
	}
	due = due.UTC()
	if !d.Active || !due.After(d.Since) {
		return nil
	}
	if s.pausedForOwner(ctx, &d) {
		return nil
	}
	name := []byte(id + due.Format(time.RFC3339))
	job, made, err := m.create(ctx, sub, Job{ID: uuid.NewSHA1(dueSpace, name).String(), Template: sub.Template,
		Definition: id, Due: due})
	var many *TooManyError
	var invalid *InvalidError
	reason := ""
	switch {
	case errors.As(err, &many), errors.As(err, &invalid), errors.Is(err, launcher.ErrRecordTooLarge):
		reason = err.Error() // it would fail again, and the author sees why
		m.log.Warn("a scheduled job is left out", logkey.Definition, id, logkey.Err, err)
	case err != nil:
		return err
	case made:
		m.observer.JobDue(true)
	}
	noted, err := m.fired(ctx, id, due, job.ID, reason)
	if noted && reason != "" {
		m.observer.JobDue(false)
	}
	return err
}

// pausedForOwner pauses a definition whose owner is gone. If that is not known now, the job is made: its start asks
// again, and waits for the answer.
func (s *scheduled) pausedForOwner(ctx context.Context, d *definition) bool {
	asking, cancel := context.WithTimeout(ctx, firingTime)
	defer cancel()
	reason, err := s.m.gone(asking, d.Author)
	if err != nil || reason == "" {
		return false
	}
	s.m.pause(ctx, d.ID, func(*definition) string { return reason })
	return true
}

// fired notes in a definition that its job for a time was made, or why none was. noted is false if that was noted
// before. A definition that cannot be read is left as it is: it cannot make the job again.
func (m *Manager) fired(ctx context.Context, id string, due time.Time, job, reason string) (noted bool, err error) {
	_, err = m.store.changeDefinition(ctx, id, func(d *definition) error {
		if noted = due.After(d.Since); !noted {
			return errSame
		}
		d.Since, d.Due, d.Job, d.Reason = due, due, job, reason
		return nil
	})
	if errors.Is(err, launcher.ErrNoRecord) || errors.Is(err, launcher.ErrRecordDamaged) {
		return false, nil
	}
	return noted && err == nil, err
}

// discard removes a job and its notebooks. Its definition notes first that it was made, or another gateway would make
// it again.
func (m *Manager) discard(ctx context.Context, e *entry) error {
	if e.Definition != "" && !e.Due.IsZero() {
		if _, err := m.fired(ctx, e.Definition, e.Due, e.ID, ""); err != nil {
			return err
		}
	}
	return m.store.remove(ctx, e)
}
