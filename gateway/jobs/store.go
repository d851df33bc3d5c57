package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Kinds of records.
const (
	kindJob      = "jobs"          // entry, by the job's id
	kindNotebook = "job-notebooks" // what was submitted, and saved, by the job's id and a random text
)

// entry is a job's record.
type entry struct {
	Job
	Author   Author          `json:"author"`
	Start    json.RawMessage `json:"start"`
	Language string          `json:"language,omitempty"`
	From     string          `json:"from,omitempty"` // Submission.From

	// A job in its author's kernel that may be refused, because another one may have the kernel; see Manager.occupy.
	Pending bool `json:"pending,omitempty"`

	Holder string `json:"holder,omitempty"` // the gateway that works on the job; "" for none
	Beat   uint64 `json:"beat"`             // the holder counts it up while it lives

	Source  string `json:"source"`            // record of the notebook that was submitted
	Saved   string `json:"saved,omitempty"`   // record of the notebook that was saved last; "": none was
	Reached bool   `json:"reached,omitempty"` // its present attempt has begun the cell RestartFrom
	Before  string `json:"before,omitempty"`  // record of the notebook of the last attempt that had begun it; "": none had
	// The kernel that gets this job's GPU. It is set while the job is being ended for that kernel, or waits until the
	// kernel has started.
	GiveWay string   `json:"give_way,omitempty"`
	GaveWay string   `json:"gave_way,omitempty"` // the kernel to which an earlier attempt has given way last
	Outcome *outcome `json:"outcome,omitempty"`  // its present attempt has ended so, and its kernel is to be stopped
}

// ended reports whether nothing is left to do for the job.
func (e *entry) ended() bool { return e.State.Final() && e.Outcome == nil }

// outcome is how an attempt has ended.
type outcome struct {
	State  State  `json:"state"` // Queued: it begins again
	Reason string `json:"reason,omitempty"`
	Waits  bool   `json:"waits,omitempty"` // it has not begun: it waits for a limit
}

// saved is a notebook in the middle of its run.
type saved struct {
	State    notebook.State  `json:"state"`
	Notebook json.RawMessage `json:"notebook"`
}

// store reads and writes jobs.
type store struct{ keeper launcher.RecordKeeper }

// stored is an entry as it was read, with the version that a change needs.
type stored struct {
	entry
	version string
}

// decode reads a record. The error is launcher.ErrRecordDamaged.
func decode(r launcher.Record) (stored, error) {
	s := stored{version: r.Version}
	if err := json.Unmarshal(r.Data, &s.entry); err != nil {
		return s, fmt.Errorf("jobs: record %s: %w: %w", r.ID, launcher.ErrRecordDamaged, err)
	}
	return s, nil
}

func (t store) job(ctx context.Context, id string) (stored, error) {
	r, err := t.keeper.Record(ctx, kindJob, id)
	if err != nil {
		return stored{}, err
	}
	return decode(r)
}

// write creates the job's record if its version is "", else replaces it.
func (t store) write(ctx context.Context, s *stored) error {
	r := launcher.Record{Kind: kindJob, ID: s.ID, Version: s.version, Settled: s.ended()}
	return t.put(ctx, r, s.entry, &s.version)
}

// put creates a record of a value if its version is "", else replaces it. It sets version to the new one.
func (t store) put(ctx context.Context, r launcher.Record, value any, version *string) (err error) {
	if r.Data, err = json.Marshal(value); err != nil {
		return err
	}
	if r.Version == "" {
		r, err = t.keeper.CreateRecord(ctx, r)
	} else {
		r, err = t.keeper.ReplaceRecord(ctx, r)
	}
	if err == nil {
		*version = r.Version
	}
	return err
}

// change lets do modify a job's record, and stores it. If another gateway has changed the record meanwhile, it begins
// again with that one.
func (t store) change(ctx context.Context, id string, do func(*entry) error) (stored, error) {
	return changed(
		func() (stored, error) { return t.job(ctx, id) },
		func(s *stored) error { return do(&s.entry) },
		func(s *stored) error { return t.write(ctx, s) })
}

// changed reads a value, changes and writes it, until no other gateway has changed it meanwhile.
func changed[T any](read func() (T, error), do, write func(*T) error) (T, error) {
	for {
		value, err := read()
		if err != nil {
			return value, err
		}
		if err := do(&value); err != nil {
			return value, err
		}
		if err := write(&value); !errors.Is(err, launcher.ErrRecordChanged) {
			return value, err
		}
	}
}

// lister is launcher.RecordKeeper's Records or OpenRecords.
type lister func(ctx context.Context, kind string) ([]launcher.Record, error)

// decodeAll returns what decode makes of the records that list returns. A record that cannot be read is reported and
// left out; damaged has its id.
func decodeAll[T any](
	ctx context.Context, list lister, kind string,
	decode func(launcher.Record) (T, error), report func(id string, err error),
) (all []T, damaged map[string]bool, err error) {
	records, err := list(ctx, kind)
	if err != nil {
		return nil, nil, err
	}
	all, damaged = make([]T, 0, len(records)), map[string]bool{}
	for _, r := range records {
		value, err := decode(r)
		if err != nil {
			report(r.ID, err)
			damaged[r.ID] = true
			continue
		}
		all = append(all, value)
	}
	return all, damaged, nil
}

// keep stores a notebook of a job or a definition and returns the record's id. No other gateway writes to that record.
func (t store) keep(ctx context.Context, kind, of string, data []byte) (string, error) {
	id := of + "-" + strconv.FormatUint(rand.Uint64(), 36)
	_, err := t.keeper.CreateRecord(ctx, launcher.Record{Kind: kind, ID: id, Data: data})
	return id, err
}

// notebookOf returns the id of the job or the definition to which a notebook that keep has stored belongs.
func notebookOf(id string) string { return id[:max(0, strings.LastIndexByte(id, '-'))] }

// notebook returns the job's notebook as it is now, or as it was submitted if nothing was saved yet.
func (t store) notebook(ctx context.Context, e *entry) ([]byte, error) {
	now := cmp.Or(e.Saved, e.Before)
	if now == "" {
		return t.source(ctx, e)
	}
	s, err := t.saved(ctx, now)
	return s.Notebook, err
}

func (t store) source(ctx context.Context, e *entry) ([]byte, error) {
	r, err := t.keeper.Record(ctx, kindNotebook, e.Source)
	return r.Data, err
}

// saved returns a notebook that a run has saved in a record.
func (t store) saved(ctx context.Context, id string) (s saved, err error) {
	r, err := t.keeper.Record(ctx, kindNotebook, id)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(r.Data, &s); err != nil {
		return s, fmt.Errorf("jobs: notebook %s: %w", r.ID, err)
	}
	return s, nil
}

// remove removes a job and its notebooks. The record goes first: a notebook without a job is removed later.
func (t store) remove(ctx context.Context, e *entry) error {
	if err := t.keeper.RemoveRecord(ctx, kindJob, e.ID); err != nil {
		return err
	}
	err := t.keeper.RemoveRecord(ctx, kindNotebook, e.Source)
	for _, id := range []string{e.Saved, e.Before} {
		if id != "" {
			err = errors.Join(err, t.keeper.RemoveRecord(ctx, kindNotebook, id))
		}
	}
	return err
}

// removeDamaged removes a record that cannot be read, and the notebooks of that job or definition.
func (t store) removeDamaged(ctx context.Context, kind, notebooks, id string) error {
	ids, err := t.keeper.RecordIDs(ctx, notebooks)
	if err != nil {
		return err
	}
	if err := t.keeper.RemoveRecord(ctx, kind, id); err != nil {
		return err
	}
	for _, of := range ids {
		if notebookOf(of) == id {
			err = errors.Join(err, t.keeper.RemoveRecord(ctx, notebooks, of))
		}
	}
	return err
}
