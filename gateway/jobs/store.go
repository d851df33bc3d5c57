package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Kinds of records.
const (
	kindJob      = "jobs"          // entry, by the job's id
	kindNotebook = "job-notebooks" // pieces: the notebook as it was submitted, and those of runs
	kindLease    = "job-leases"    // by the name of a gateway; see lease
)

// form is the form of records and pieces that this build stores.
const form = 2

// reasonForm is the end of a job that an earlier build has stored.
const reasonForm = "an earlier build of the gateway has stored it in a form that is no longer read"

// errForm says that an earlier build has stored a job.
var errForm = &InvalidError{"the job has no notebook: " + reasonForm}

// entry is a job's record.
type entry struct {
	Form int `json:"form"`
	Job
	Author   Author       `json:"author"`
	Start    kernels.Wish `json:"start"`
	Language string       `json:"language,omitempty"`
	From     string       `json:"from,omitempty"` // Submission.From

	// A job in its author's kernel that may be refused, because another one may have the kernel; see Manager.occupy.
	Pending bool `json:"pending,omitempty"`

	Holder string `json:"holder,omitempty"` // the gateway that works on the job; "" for none
	trial
	Source string `json:"source"` // piece with the notebook that was submitted

	// A notebook.State. Its pieces have their names behind the job's id.
	Run     json.RawMessage `json:"run,omitempty"`     // of the present attempt; none: nothing was saved
	Before  json.RawMessage `json:"before,omitempty"`  // of the last attempt that had begun the cell RestartFrom
	Reached bool            `json:"reached,omitempty"` // the present attempt has begun that cell

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

// shown returns the state of the notebook as it is now. It is nil if nothing was saved yet.
func (e *entry) shown() json.RawMessage {
	if e.Run != nil {
		return e.Run
	}
	return e.Before
}

// pieces returns the ids of the pieces that the record names. Of a job that an earlier build has stored, it is only the
// source: the other notebooks are swept.
func (e *entry) pieces() (map[string]bool, error) {
	ids := map[string]bool{e.Source: true}
	if e.Form != form {
		return ids, nil
	}
	for _, raw := range []json.RawMessage{e.Run, e.Before} {
		s, err := parseState(raw)
		if err != nil {
			return nil, fmt.Errorf("job %s: %w", e.ID, err)
		}
		for _, name := range s.Names() {
			ids[pieceID(e.ID, name)] = true
		}
	}
	return ids, nil
}

// parseState reads the state of a run; none is an empty one.
func parseState(raw json.RawMessage) (s notebook.State, err error) {
	if len(raw) == 0 {
		return s, nil
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("%w: its run: %w", launcher.ErrRecordDamaged, err)
	}
	return s, nil
}

// store reads and writes jobs.
type store struct{ keeper launcher.RecordKeeper }

// stored is an entry as it was read, with the version that a change needs.
type stored struct {
	entry
	version string

	light bool // it is from an index, and cannot be written
	lacks bool // it is light, and lacks the parameters, too
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
	if s.light {
		return errLight
	}
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

// keep stores a notebook of a job or a definition and returns the record's id. No other gateway writes to that record.
func (t store) keep(ctx context.Context, kind, of string, data []byte) (string, error) {
	id := pieceID(of, newPrefix())
	_, err := t.keeper.CreateRecord(ctx, launcher.Record{Kind: kind, ID: id, Data: data})
	return id, err
}

// newPrefix returns a text with which the names of one writer's pieces begin. All have the same length.
func newPrefix() string { return fmt.Sprintf("%012x", rand.Uint64()>>16) }

// pieceID returns the id of a piece of a job or a definition.
func pieceID(of, name string) string { return of + "-" + name }

// pieceOf returns the id of the job or the definition to which a piece belongs.
func pieceOf(id string) string { return id[:max(0, strings.LastIndexByte(id, '-'))] }

func (t store) source(ctx context.Context, e *entry) ([]byte, error) {
	r, err := t.keeper.Record(ctx, kindNotebook, e.Source)
	return r.Data, err
}

// pieces is the notebook.Pieces of a job. A run stores pieces with names of its own.
type pieces struct {
	store  store
	job    string
	log    *slog.Logger
	prefix string
	count  uint64
	// patience bounds how long Get tries while records are unavailable; 0: until its context ends.
	patience time.Duration
}

// downloadPatience is the patience of a download: its client waits.
const downloadPatience = 30 * time.Second

func (t store) pieces(job string, log *slog.Logger) *pieces {
	return &pieces{store: t, job: job, log: log, prefix: newPrefix()}
}

// Put stores a piece. It tries it with another name if it is not known whether the piece was stored: what no record
// names is swept up.
func (p *pieces) Put(ctx context.Context, data []byte) (name string, err error) {
	err = retry(ctx, p.log, "store a piece of its notebook", func() error {
		p.count++
		name = p.prefix + strconv.FormatUint(p.count, 36)
		_, err := p.store.keeper.CreateRecord(ctx, launcher.Record{Kind: kindNotebook, ID: pieceID(p.job, name), Data: data})
		return err
	})
	return name, err
}

// Get returns a piece. The error is launcher.ErrUnavailable when the patience is over.
func (p *pieces) Get(ctx context.Context, name string) (data []byte, err error) {
	trying := ctx
	if p.patience > 0 {
		over := fmt.Errorf("%w: a piece of the notebook could not be read for %v", launcher.ErrUnavailable, p.patience)
		var cancel context.CancelFunc
		trying, cancel = context.WithTimeoutCause(ctx, p.patience, over)
		defer cancel()
	}
	err = retry(trying, p.log, "read a piece of its notebook", func() error {
		r, err := p.store.keeper.Record(trying, kindNotebook, pieceID(p.job, name))
		data = r.Data
		return err
	})
	if err != nil && trying.Err() != nil && ctx.Err() == nil {
		err = context.Cause(trying)
	}
	return data, err
}

// Remove removes pieces that no record names.
func (p *pieces) Remove(ctx context.Context, names []string) {
	ids := map[string]bool{}
	for _, name := range names {
		ids[pieceID(p.job, name)] = true
	}
	if err := p.store.removePieces(ctx, ids); err != nil {
		p.log.Warn("pieces of a notebook cannot be removed; this is tried again later", logkey.Err, err)
	}
}

// remove removes a job and its pieces. The record goes first: a piece without a job is removed later.
func (t store) remove(ctx context.Context, e *entry) error {
	ids, err := e.pieces()
	if err != nil {
		return err
	}
	if err := t.keeper.RemoveRecord(ctx, kindJob, e.ID); err != nil {
		return err
	}
	return t.removePieces(ctx, ids)
}

func (t store) removePieces(ctx context.Context, ids map[string]bool) (err error) {
	for id := range ids {
		err = errors.Join(err, t.keeper.RemoveRecord(ctx, kindNotebook, id))
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
		if pieceOf(of) == id {
			err = errors.Join(err, t.keeper.RemoveRecord(ctx, notebooks, of))
		}
	}
	return err
}
