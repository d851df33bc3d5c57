package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/schedule"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Kinds of records.
const (
	kindDefinition         = "job-definitions"          // definition, by its id
	kindDefinitionNotebook = "job-definition-notebooks" // what was submitted, by the definition's id and a random text
)

// Definition makes jobs: by a schedule, and on request. Times are in UTC.
type Definition struct {
	ID string `json:"id"`
	Template

	Schedule string `json:"schedule,omitempty"` // a cron expression; "": it makes jobs on request only
	Timezone string `json:"timezone,omitempty"` // of the schedule, as IANA names it; "": UTC
	Active   bool   `json:"active"`             // false: its schedule is paused

	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`          // when its owner has changed it last
	Next    time.Time `json:"next,omitzero"`    // when it is due next
	Due     time.Time `json:"due,omitzero"`     // when it was due last
	Job     string    `json:"job_id,omitempty"` // that was made then
	Reason  string    `json:"reason,omitempty"` // why no job was made then, or why a gateway has paused it
}

// Change is what a client changes of a definition. What is nil stays.
type Change struct {
	Submission *Submission // replaces the notebook and everything of the template
	Schedule   *string
	Timezone   *string
	Active     *bool
}

// definition is the record of a Definition.
type definition struct {
	Definition
	Author   Author       `json:"author"`
	Start    kernels.Wish `json:"start"`
	Language string       `json:"language,omitempty"`
	Source   string       `json:"source"` // record of its notebook
	Since    time.Time    `json:"since"`  // jobs are due after this time

	version string // as it was read
	light   bool   // it is from an index, and cannot be written
	lacks   bool   // it is light, and lacks the parameters, too
}

// scheduled reports whether it makes jobs by itself.
func (d *definition) scheduled() bool { return d.Active && d.Schedule != "" }

// shown returns what clients see.
func (d *definition) shown() Definition {
	shown := d.Definition
	if !d.scheduled() { // one that was paused for its schedule can be read
		return shown
	}
	if s, err := d.parsed(); err == nil {
		shown.Next = s.Next(time.Now()).UTC()
	}
	return shown
}

// parsed returns the schedule. It is nil for a definition that makes jobs on request only.
func (d *definition) parsed() (*schedule.Schedule, error) {
	if d.Schedule == "" && d.Timezone == "" {
		return nil, nil
	}
	if d.Schedule == "" {
		return nil, &InvalidError{"there is a time zone, but no schedule"}
	}
	s, err := schedule.Parse(d.Schedule, d.Timezone)
	if err != nil {
		return nil, &InvalidError{err.Error()}
	}
	return s, nil
}

// set takes a submission.
func (d *definition) set(sub *Submission, source string) {
	owner := d.Owner
	d.Template, d.Start, d.Language, d.Source = sub.Template, sub.Start, sub.Language, source
	d.Name = sub.name()
	if d.version == "" {
		d.Author = sub.Author
		return
	}
	d.Owner = owner // an admin may change the definition, and its jobs stay its owner's
	if sub.Owner == owner {
		d.Author = sub.Author
	}
}

// decodeDefinition reads a record. The error is launcher.ErrRecordDamaged.
func decodeDefinition(r launcher.Record) (d definition, err error) {
	if err := json.Unmarshal(r.Data, &d); err != nil {
		return d, fmt.Errorf("jobs: definition %s: %w: %w", r.ID, launcher.ErrRecordDamaged, err)
	}
	d.version = r.Version
	return d, nil
}

func (t store) definition(ctx context.Context, id string) (definition, error) {
	if !launcher.ValidID(id) {
		return definition{}, launcher.ErrNoRecord
	}
	r, err := t.keeper.Record(ctx, kindDefinition, id)
	if err != nil {
		return definition{}, err
	}
	return decodeDefinition(r)
}

// writeDefinition creates the record if its version is "", else replaces it.
func (t store) writeDefinition(ctx context.Context, d *definition) error {
	if d.light {
		return errLight
	}
	r := launcher.Record{Kind: kindDefinition, ID: d.ID, Version: d.version, Settled: !d.scheduled()}
	return t.put(ctx, r, d, &d.version)
}

// errSame says that a change has nothing to do.
var errSame = errors.New("jobs: nothing to change")

// changeDefinition is change for a definition. If do returns errSame, nothing is written.
func (t store) changeDefinition(ctx context.Context, id string, do func(*definition) error) (definition, error) {
	d, err := changed(
		func() (definition, error) { return t.definition(ctx, id) },
		do,
		func(d *definition) error { return t.writeDefinition(ctx, d) })
	if errors.Is(err, errSame) {
		err = nil
	}
	return d, err
}

// submissionOf returns a definition, and what it submits for each of its jobs.
func (t store) submissionOf(ctx context.Context, id string) (definition, Submission, error) {
	for {
		d, err := t.definition(ctx, id)
		if err != nil {
			return d, Submission{}, err
		}
		r, err := t.keeper.Record(ctx, kindDefinitionNotebook, d.Source)
		if errors.Is(err, launcher.ErrNoRecord) {
			again, err := t.definition(ctx, id)
			if err == nil && again.version != d.version {
				continue // its notebook was replaced meanwhile
			}
			if err == nil {
				err = fmt.Errorf("jobs: the notebook of definition %s is missing", id)
			}
			return d, Submission{}, err
		}
		return d, Submission{Template: d.Template, Notebook: r.Data, Author: d.Author, Start: d.Start,
			Language: d.Language}, err
	}
}

// definitionSpace makes the ids of definitions that were submitted with a token.
var definitionSpace = uuid.MustParse("0d0b1a4e-94c2-4b63-8f0e-5c2f7f6d3a91")

// Define stores a definition. A submission with the author's earlier token returns the earlier definition, and created
// is false. The error is an *InvalidError or a *TooManyError, or internal.
func (m *Manager) Define(ctx context.Context, sub Submission, change Change) (_ Definition, created bool, err error) {
	if _, err := sub.check(); err != nil {
		return Definition{}, false, err
	}
	now := time.Now().UTC()
	d := definition{Since: now}
	d.ID, d.Active, d.Created = idOf(definitionSpace, sub.Owner, sub.Token), true, now
	if earlier, err := m.store.definition(ctx, d.ID); err == nil {
		return earlier.shown(), false, nil
	} else if !errors.Is(err, launcher.ErrNoRecord) {
		return Definition{}, false, err
	}
	if err := d.apply(change, now); err != nil {
		return Definition{}, false, err
	}
	release, err := m.reserveDefinition(ctx, sub.Owner, d.ID)
	if err != nil {
		return Definition{}, false, err
	}
	defer release()
	source, err := m.store.keep(ctx, kindDefinitionNotebook, d.ID, sub.Notebook)
	if err != nil {
		return Definition{}, false, err
	}
	d.set(&sub, source)
	err = m.store.writeDefinition(ctx, &d)
	if errors.Is(err, launcher.ErrRecordChanged) { // the same token, at the same time
		earlier, err := m.store.definition(ctx, d.ID)
		if err == nil && earlier.Source != source {
			m.unkeep(ctx, kindDefinitionNotebook, source, nil)
		}
		return earlier.shown(), false, err
	}
	if err != nil {
		m.unkeep(ctx, kindDefinitionNotebook, source, err)
		return Definition{}, false, err
	}
	m.log.Info("job definition stored", logkey.Definition, d.ID, logkey.User, d.Owner, logkey.Spec, d.Kernelspec)
	m.lookAtSchedules()
	return d.shown(), true, nil
}

// apply makes a client's change of the schedule. A schedule that is changed or resumed begins now.
func (d *definition) apply(c Change, now time.Time) error {
	before := *d
	if c.Schedule != nil {
		d.Schedule = *c.Schedule
	}
	if c.Timezone != nil {
		d.Timezone = *c.Timezone
	}
	if c.Active != nil {
		d.Active = *c.Active
	}
	if c.Schedule != nil || c.Timezone != nil || d.Active && !before.Active {
		if _, err := d.parsed(); err != nil {
			return err
		}
	}
	if d.Schedule != before.Schedule || d.Timezone != before.Timezone || d.Active && !before.Active {
		d.Since = now
	}
	if d.Active && !before.Active {
		d.Reason = "" // it said why it was paused
	}
	d.Updated = now
	return nil
}

// allDefinitions returns all definitions, or at least those that make jobs by themselves, the oldest first; see
// index.read.
func (m *Manager) allDefinitions(
	ctx context.Context, onlyOpen bool,
) (all []definition, damaged map[string]bool, err error) {
	all, damaged, err = m.defines.read(ctx, m.store.keeper, onlyOpen, func(id string, err error) {
		m.log.Error("the record of a job definition cannot be read", logkey.Definition, id, logkey.Err, err)
	})
	slices.SortFunc(all, func(a, b definition) int { return a.Created.Compare(b.Created) })
	return all, damaged, err
}

// Definitions returns the definitions for which want is true, the oldest first.
func (m *Manager) Definitions(ctx context.Context, want func(*Definition) bool) ([]Definition, error) {
	all, _, err := m.allDefinitions(ctx, false)
	if err != nil {
		return nil, err
	}
	list := []Definition{}
	for i := range all {
		if !want(&all[i].Definition) {
			continue
		}
		if all[i].lacks {
			switch d, err := m.store.definition(ctx, all[i].ID); {
			case errors.Is(err, launcher.ErrNoRecord): // it was removed meanwhile
				continue
			case err != nil:
				return nil, err
			default:
				all[i] = d
			}
		}
		list = append(list, all[i].shown())
	}
	return list, nil
}

// Definition returns one definition. The error is launcher.ErrNoRecord if it does not exist.
func (m *Manager) Definition(ctx context.Context, id string) (Definition, error) {
	d, err := m.store.definition(ctx, id)
	return d.shown(), err
}

// DefinitionSubmission returns what a definition submits for each of its jobs.
func (m *Manager) DefinitionSubmission(ctx context.Context, id string) (Submission, error) {
	_, sub, err := m.store.submissionOf(ctx, id)
	return sub, err
}

// ChangeDefinition changes a definition. Jobs that it has made stay as they are. The error is an *InvalidError,
// launcher.ErrNoRecord, or internal.
func (m *Manager) ChangeDefinition(ctx context.Context, id string, c Change) (Definition, error) {
	source, before := "", ""
	if c.Submission != nil {
		if _, err := c.Submission.check(); err != nil {
			return Definition{}, err
		}
	}
	now, err := m.store.definition(ctx, id) // so that nothing is stored of what is refused
	if err == nil {
		err = now.apply(c, time.Now().UTC())
	}
	if err == nil && c.Submission != nil {
		source, err = m.store.keep(ctx, kindDefinitionNotebook, id, c.Submission.Notebook)
	}
	if err != nil {
		return Definition{}, err
	}
	d, err := m.store.changeDefinition(ctx, id, func(d *definition) error {
		if c.Submission != nil {
			before = d.Source
			d.set(c.Submission, source)
		}
		return d.apply(c, time.Now().UTC())
	})
	if err != nil {
		if source != "" {
			m.unkeep(ctx, kindDefinitionNotebook, source, err)
		}
		return Definition{}, err
	}
	if before != "" {
		if err := m.store.keeper.RemoveRecord(ctx, kindDefinitionNotebook, before); err != nil {
			m.log.Warn("an old notebook of a job definition cannot be removed; this is tried again later", logkey.Definition, id,
				logkey.Err, err)
		}
	}
	m.lookAtSchedules()
	return d.shown(), nil
}

// RemoveDefinition removes a definition. Jobs that it has made stay.
func (m *Manager) RemoveDefinition(ctx context.Context, id string) error {
	d, err := m.store.definition(ctx, id)
	if err != nil {
		return err
	}
	// The record goes first: a notebook without a definition is removed later.
	if err := m.store.keeper.RemoveRecord(ctx, kindDefinition, id); err != nil {
		return err
	}
	return m.store.keeper.RemoveRecord(ctx, kindDefinitionNotebook, d.Source)
}

// RemoveDamagedDefinition is RemoveDamaged for a definition.
func (m *Manager) RemoveDamagedDefinition(ctx context.Context, id string) error {
	if _, err := m.store.definition(ctx, id); !errors.Is(err, launcher.ErrRecordDamaged) {
		return cmp.Or(err, ErrRuns)
	}
	m.log.Warn("a job definition whose record cannot be read is removed", logkey.Definition, id)
	return m.store.removeDamaged(ctx, kindDefinition, kindDefinitionNotebook, id)
}

// RunDefinition makes a job of a definition now, also if its schedule is paused. Parameters replace the definition's if
// they are not nil. The rest is as for Submit.
func (m *Manager) RunDefinition(
	ctx context.Context, id string, parameters json.RawMessage, token string,
) (Job, bool, error) {
	_, sub, err := m.store.submissionOf(ctx, id)
	if err != nil {
		return Job{}, false, err
	}
	if parameters != nil {
		sub.Parameters = parameters
	}
	if sub.Token = token; token != "" {
		token = id + "\x00" + token
	}
	return m.create(ctx, sub, Job{ID: idOf(jobSpace, sub.Owner, token), Template: sub.Template, Definition: id})
}
