package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Users says whether the owners of jobs are still users; *identity.Verifier implements it. Its methods may be called
// concurrently.
type Users interface {
	// Standing says whether a name is still that of a user; see identity.Verifier.
	Standing(ctx context.Context, name string) (identity.Standing, error)
	// Seen returns the users whose tokens a source has verified since the last call.
	Seen() []string
}

// kindOwner has a sighting for each owner who was seen, or asked for, and still has a job or a definition.
const kindOwner = "job-owners"

// Times of owners.
const (
	noteEvery   = time.Minute     // between two looks at who was seen
	absenceStep = 30              // a sighting is replaced when it is older than this part of Policy.OwnerAbsence
	firingTime  = 2 * time.Second // for the answer about an owner at a firing; the job's start asks again
)

// Reasons that concern the owner.
const (
	reasonGone      = "its owner is not a user of this gateway any more"
	reasonUndecided = "it waits until the gateway can find out whether its owner is still a user"
)

// Ask sets who says whether owners are still users. It must be called before any other method. Without it, the gateway
// has no users.
func (m *Manager) Ask(u Users) { m.users = u }

// gone returns why no more jobs of an author start; "" if they do. The error says that it is not known now.
func (m *Manager) gone(ctx context.Context, author Author) (reason string, err error) {
	if m.users == nil || author.Sole { // one without users starts nothing where there are some
		return "", nil
	}
	standing, err := m.users.Standing(ctx, author.Name)
	switch standing {
	case identity.Known:
		return "", nil
	case identity.Gone:
		return reasonGone, nil
	case identity.Undecided:
		return "", err
	}
	absence := m.policy.OwnerAbsence
	if absence == 0 {
		return "", nil
	}
	last, lastErr := m.sight(ctx, author.Name, false)
	switch {
	case lastErr == nil && time.Since(last) < absence:
		return "", nil
	case lastErr != nil || err != nil: // err: another source may have the owner
		return "", errors.Join(lastErr, err)
	}
	return fmt.Sprintf("no token of its owner was verified for %s", days(absence)), nil
}

// days returns a duration as people say it.
func days(d time.Duration) string {
	if n := d / (24 * time.Hour); n > 1 && d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%d days", n)
	}
	return d.String()
}

// sighting is the record of when a token of an owner was verified last.
type sighting struct {
	Owner string    `json:"owner"`
	Seen  time.Time `json:"seen"`

	record launcher.Record
}

// sight returns when a token of an owner was verified last. An owner without a record is seen now: so after an upgrade
// of the gateway, jobs go on for as long as they do after a token.
func (m *Manager) sight(ctx context.Context, owner string, now bool) (time.Time, error) {
	s, err := changed(
		func() (s sighting, err error) {
			s.record, err = m.store.keeper.Record(ctx, kindOwner, roomID("owner", owner))
			if err == nil && json.Unmarshal(s.record.Data, &s) != nil {
				s.Seen = time.Time{}
			}
			if errors.Is(err, launcher.ErrRecordDamaged) {
				err = m.store.keeper.RemoveRecord(ctx, kindOwner, s.record.ID)
				s.record.Version = ""
			}
			if errors.Is(err, launcher.ErrNoRecord) {
				err = nil
			}
			s.record.Kind, s.record.ID, s.record.Settled = kindOwner, roomID("owner", owner), true
			return s, err
		},
		func(s *sighting) error {
			if !s.Seen.IsZero() && (!now || time.Since(s.Seen) < m.policy.OwnerAbsence/absenceStep) {
				return errSame
			}
			s.Owner, s.Seen = owner, time.Now().UTC()
			return nil
		},
		func(s *sighting) error { return m.store.put(ctx, s.record, s, &s.record.Version) })
	if errors.Is(err, errSame) {
		err = nil
	}
	return s.Seen, err
}

// noteOwners stores which owners of jobs and definitions were seen.
func (m *Manager) noteOwners(ctx context.Context) error {
	if m.users == nil || m.policy.OwnerAbsence == 0 || time.Since(m.noted) < noteEvery {
		return nil
	}
	m.noted = time.Now()
	for _, name := range m.users.Seen() {
		m.unnoted[name] = true
	}
	if len(m.unnoted) == 0 {
		return nil
	}
	owners, err := m.owners(ctx)
	if err != nil {
		return err
	}
	for name := range m.unnoted {
		if owners[name] {
			if _, err := m.sight(ctx, name, true); err != nil {
				return err
			}
		}
		delete(m.unnoted, name)
	}
	return nil
}

// owners returns those who have a definition, or a job that has not ended.
func (m *Manager) owners(ctx context.Context) (map[string]bool, error) {
	definitions, _, err := m.allDefinitions(ctx, false)
	if err != nil {
		return nil, err
	}
	open, _, err := m.readable(ctx, true)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for i := range definitions {
		names[definitions[i].Owner] = true
	}
	for i := range open {
		if !open[i].ended() {
			names[open[i].Owner] = true
		}
	}
	return names, nil
}

// sweepOwners removes the sightings of those who own nothing any more.
func (m *Manager) sweepOwners(ctx context.Context) error {
	owners, err := m.owners(ctx)
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for name := range owners {
		named[roomID("owner", name)] = true
	}
	return m.sweepUnnamed(ctx, kindOwner, named, nil)
}

// allowed reports whether the job may start as far as its owner is concerned. If not, it has failed, or it waits until
// that is known.
func (h *hold) allowed(e *entry) (bool, error) {
	reason, err := h.m.gone(h.ctx, e.Author)
	switch {
	case err != nil && h.ctx.Err() != nil:
		return false, err
	case err != nil:
		h.log.Warn("a job waits, since it is not known whether its owner is still a user", logkey.User, e.Owner,
			logkey.Err, err)
		h.notYet()
		if e.Reason == reasonUndecided {
			return false, nil
		}
		return false, h.must("wait", func(e *entry) { e.Reason = reasonUndecided })
	case reason == "":
		return true, nil
	}
	h.log.Warn("a job fails, since its owner is gone", logkey.User, e.Owner, logkey.Reason, reason)
	if e.inKernel() { // the kernel may end with it
		return false, h.outcome(Failed, reason, false)
	}
	return false, h.last("refuse", func(e *entry) { e.State, e.Reason, e.Ended = Failed, reason, time.Now().UTC() })
}
