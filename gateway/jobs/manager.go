package jobs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Defaults of Policy.
const (
	DefaultPerUser = 100
	DefaultKeepFor = 30 * 24 * time.Hour
	DefaultKeep    = 1000

	DefaultDefinitions = 100

	DefaultOwnerAbsence = 30 * 24 * time.Hour
)

// Policy says how jobs are kept, and bounds those of each user.
type Policy struct {
	// Dir is a folder with the jobs of all gateways; see package folder. "": the launcher keeps them.
	Dir string

	PerUser     int           // jobs that have not ended; 0: any number
	KeepFor     time.Duration // after their end; 0: without a limit
	Keep        int           // how many that have ended; 0: any number
	Definitions int           // 0: any number

	// OwnerAbsence is how long an owner's jobs start after the owner's last verified token, where only tokens tell who is
	// a user; 0: without a limit.
	OwnerAbsence time.Duration
}

// Kernels starts and reaches the kernels of jobs. Its methods may be called concurrently.
type Kernels interface {
	// Start starts a kernel with an id on behalf of an author, and returns when it is being started. The same start may
	// be repeated. The error is a *WaitError if it may succeed later, and a *RefusedError if it never will. Others have
	// a text for the author.
	Start(ctx context.Context, author Author, id string, wish kernels.Wish) error
	// Up returns when the kernel is up. It calls waits with each reason for which the kernel waits. The error is a
	// *WaitError or has a text for the author, or is ctx's.
	Up(ctx context.Context, id string, waits func(reason string)) error
	// Lost returns why a kernel has ended. It waits some seconds for that, and returns "" if it is not known then.
	Lost(ctx context.Context, id string) (reason string)
	// Dial connects to the kernel's channels; see notebook.RelayOptions.
	Dial(ctx context.Context, author Author, id string, query url.Values) (*websocket.Conn, error)
	// Interrupt interrupts the kernel.
	Interrupt(ctx context.Context, author Author, id string) error
	// GPUSeconds returns the GPUs that an owner's kernel has held after a time, times the seconds for which it held them.
	// It returns 0 for a kernel that ended more than some days ago.
	GPUSeconds(ctx context.Context, owner, id string, since time.Time) (float64, error)
	// Stop ends the kernel and returns when it is gone. It is no error if the kernel does not exist.
	Stop(ctx context.Context, author Author, id, reason string) error

	// GPUWaits returns the kernels for which jobs end: they have waited for GPUs for long enough, the longest first.
	GPUWaits(ctx context.Context) ([]launcher.GPUWait, error)
	// Starts reports whether a kernel is still being started, or waits.
	Starts(ctx context.Context, id string) (bool, error)
	// GaveWay records that a job's kernel is ended for another one.
	GaveWay(ctx context.Context, author Author, id string)
}

// RefusedError says that a kernel cannot be started as the job wants it. Another attempt would fail, too.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// WaitError says that a kernel cannot be started at present.
type WaitError struct{ Reason string }

func (e *WaitError) Error() string { return e.Reason }

// TooManyError says that the author has too many jobs. Its text is for the author.
type TooManyError struct{ text string }

func (e *TooManyError) Error() string { return e.text }

// timing holds the durations that tests shorten.
type timing struct {
	scan  time.Duration // between two looks at all jobs
	beat  time.Duration // between two renewals of a lease
	lease time.Duration // after which a holder that does not renew its lease is dead
	again time.Duration // until a start that must wait is tried again
	sweep time.Duration // between two looks for what nobody needs
}

var realTiming = timing{scan: 5 * time.Second, beat: 5 * time.Second, lease: 20 * time.Second, again: 5 * time.Second,
	sweep: time.Hour}

// Manager runs jobs. All methods may be called concurrently.
type Manager struct {
	// Fixed.
	store   store
	index   *index[stored]
	defines *index[definition]
	turns   turns
	kernels Kernels
	policy  Policy
	log     *slog.Logger
	name    string // of this gateway, as a holder: no other process ever has it
	lease   *lease
	timing  timing
	born    time.Time
	perform func(context.Context, *notebook.Run) (notebook.Result, error) // runs cells; tests replace it

	observer Observer
	users    Users            // nil: the gateway has none
	budget   *notebook.Budget // of all runs

	wake    chan struct{} // capacity 1: Run looks at all jobs now
	defined chan struct{} // capacity 1: Run looks at all definitions now

	// Owned by Run.
	orphans map[string]map[string]bool // what no job or definition named at the last sweep, by kind
	trimmed time.Time                  // when jobs that are too many were removed last
	noted   time.Time                  // when it was noted last who was seen
	unnoted map[string]bool            // who was seen, and it was not noted yet

	view view

	mu      sync.Mutex
	holds   map[string]*hold     // by job
	looking map[string]bool      // jobs in a kernel that are submitted at the moment; see occupy
	watched map[string]*watched  // jobs that other gateways hold
	notYet  map[string]time.Time // jobs that have to wait, until when
	ends    map[string]bool      // owners of jobs that have ended since the last trim
	gave    map[string]time.Time // jobs in the queue that have given way, since when this gateway knows it
}

// watched is what was last seen of another gateway's holding.
type watched struct {
	holder string
	lease  string // the version of the holder's lease; "" for a holder without a lease
	since  time.Time
}

// New returns a manager whose jobs are records of keeper.
func New(keeper launcher.RecordKeeper, kernels Kernels, policy Policy, log *slog.Logger) *Manager {
	name := uuid.NewString()
	return &Manager{
		store: store{keeper}, kernels: kernels, policy: policy, log: log.With(logkey.Component, "jobs"),
		name: name, lease: &lease{store: store{keeper}, name: name}, timing: realTiming, born: time.Now(),
		observer: unobserved{}, budget: notebook.NewBudget(notebook.DefaultBudget),
		perform: func(ctx context.Context, r *notebook.Run) (notebook.Result, error) { return r.Do(ctx) },
		wake:    make(chan struct{}, 1), defined: make(chan struct{}, 1), holds: map[string]*hold{},
		watched: map[string]*watched{}, notYet: map[string]time.Time{}, gave: map[string]time.Time{},
		orphans: map[string]map[string]bool{}, ends: map[string]bool{},
		unnoted: map[string]bool{}, looking: map[string]bool{},
		index: newIndex(kindJob, decodeLight), defines: newIndex(kindDefinition, decodeLightDefinition),
	}
}

// Observe sets what counts the manager's work. It must be called before any other method.
func (m *Manager) Observe(o Observer) { m.observer = o }

// jobSpace makes the ids of jobs that were submitted with a token.
var jobSpace = uuid.MustParse("6f1c3a52-52a7-4d0c-9d2a-0f3e5b0c7d11")

// idOf returns the id of what an owner submits with a token, or a random one without a token.
func idOf(space uuid.UUID, owner, token string) string {
	if token == "" {
		return uuid.NewString()
	}
	return uuid.NewSHA1(space, []byte(owner+"\x00"+token)).String()
}

// Submit stores a job that will be run. A submission with the author's earlier token returns the earlier job, and
// created is false. The error is an *InvalidError or a *TooManyError, or internal.
func (m *Manager) Submit(ctx context.Context, sub Submission) (job Job, created bool, err error) {
	job = Job{ID: idOf(jobSpace, sub.Owner, sub.Token), Template: sub.Template, Kernel: sub.Kernel, Then: sub.Then}
	return m.create(ctx, sub, job)
}

// create stores a job, or returns the one that has its id already.
func (m *Manager) create(ctx context.Context, sub Submission, job Job) (_ Job, created bool, err error) {
	// A job that exists costs one read: the notebook may be large, and several gateways make the same scheduled job.
	if s, err := m.store.job(ctx, job.ID); err == nil {
		return s.Job, false, nil
	} else if !errors.Is(err, launcher.ErrNoRecord) {
		return Job{}, false, err
	}
	doc, err := sub.check()
	if err != nil {
		return Job{}, false, err
	}
	if sub.Then != "" {
		if _, there, err := m.In(ctx, sub.Kernel); err != nil || there {
			return Job{}, false, cmp.Or(err, ErrOccupied)
		}
	}
	// The goroutine of all schedules does not wait for one owner's submissions.
	release, err := m.reserveJob(ctx, sub.Owner, job.ID, job.Due.IsZero())
	if err != nil {
		if s, err := m.store.job(ctx, job.ID); err == nil { // another gateway was faster, and its job was counted
			return s.Job, false, nil
		}
		return Job{}, false, err
	}
	defer release()
	s := stored{entry: entry{Form: form, Job: job, Author: sub.Author, Start: sub.Start, Language: sub.Language,
		From: sub.From}}
	s.State, s.Created, s.Cells = Queued, time.Now().UTC(), doc.CodeCells()
	s.Name = sub.name()
	// The notebook first: a job's record always has one.
	if s.Source, err = m.store.keep(ctx, kindNotebook, job.ID, sub.Notebook); err != nil {
		return Job{}, false, err
	}
	if s.inKernel() {
		s.FromCell = doc.From()
		err = m.occupy(ctx, &s)
	} else {
		err = m.store.write(ctx, &s)
	}
	if errors.Is(err, launcher.ErrRecordChanged) { // the same job, at the same time
		earlier, err := m.store.job(ctx, job.ID)
		if err == nil && earlier.Source != s.Source {
			m.unkeep(ctx, kindNotebook, s.Source, nil)
		}
		return earlier.Job, false, err
	}
	if err != nil {
		m.unkeep(ctx, kindNotebook, s.Source, err)
		return Job{}, false, err
	}
	m.view.note(s.brief())
	m.log.Info("job submitted", logkey.Job, s.ID, logkey.User, s.Owner, logkey.Spec, s.Kernelspec)
	m.look()
	return s.Job, true, nil
}

// read returns all jobs, or at least those that have not ended; see index.read.
func (m *Manager) read(ctx context.Context, onlyOpen bool) (all []stored, damaged map[string]bool, err error) {
	return m.index.read(ctx, m.store.keeper, onlyOpen, func(id string, err error) {
		m.log.Error("the record of a job cannot be read", logkey.Job, id, logkey.Err, err)
	})
}

// readable is read with the jobs in front that start first.
func (m *Manager) readable(ctx context.Context, onlyOpen bool) (all []stored, damaged map[string]bool, err error) {
	all, damaged, err = m.read(ctx, onlyOpen)
	slices.SortFunc(all, func(a, b stored) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return all, damaged, err
}

// List returns the jobs for which want is true, the oldest first.
func (m *Manager) List(ctx context.Context, want func(*Job) bool) ([]Job, error) {
	all, _, err := m.read(ctx, false)
	if err != nil {
		return nil, err
	}
	list := []Job{}
	for i := range all {
		if !want(&all[i].Job) {
			continue
		}
		if all[i].lacks {
			switch s, err := m.store.job(ctx, all[i].ID); {
			case errors.Is(err, launcher.ErrNoRecord): // it was removed meanwhile
				continue
			case err != nil:
				return nil, err
			default:
				all[i] = s
			}
		}
		list = append(list, all[i].Job)
	}
	slices.SortFunc(list, func(a, b Job) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return list, nil
}

// Get returns one job. The error is launcher.ErrNoRecord if it does not exist.
func (m *Manager) Get(ctx context.Context, id string) (Job, error) {
	if !launcher.ValidID(id) {
		return Job{}, launcher.ErrNoRecord
	}
	s, err := m.store.job(ctx, id)
	return s.Job, err
}

// WriteNotebook writes a job's notebook: as it was submitted, or with the outputs that it has by now. That one is
// assembled while it is written.
func (m *Manager) WriteNotebook(ctx context.Context, to io.Writer, id string, source bool) error {
	s, err := m.store.job(ctx, id)
	if err != nil {
		return err
	}
	if s.Form != form {
		return errForm
	}
	if source || s.shown() == nil {
		b, err := m.store.source(ctx, &s.entry)
		if err != nil {
			return err
		}
		_, err = to.Write(jupyter.ShowNaN(b))
		return err
	}
	state, err := parseState(s.shown())
	if err != nil {
		return err
	}
	// Another notebook may be saved meanwhile. Its pieces are in the place of those that have gone. One of another
	// attempt has other outputs, so the writing ends.
	newer := func(ctx context.Context, err error) (notebook.State, error) {
		now, readErr := m.store.job(ctx, id)
		switch {
		case !errors.Is(err, launcher.ErrNoRecord):
			return state, err
		case readErr != nil:
			return state, readErr
		case now.Attempt != s.Attempt || now.Run == nil && s.Run != nil:
			return state, fmt.Errorf("jobs: job %s: %w: its attempt has ended", id, launcher.ErrRecordChanged)
		case bytes.Equal(now.shown(), s.shown()):
			return state, fmt.Errorf("jobs: job %s: %w: a piece of its notebook: %v", id, launcher.ErrRecordDamaged, err)
		}
		s = now
		return parseState(s.shown())
	}
	pieces := m.store.pieces(id, m.log)
	pieces.patience = downloadPatience
	return notebook.Write(ctx, to, state, pieces, newer)
}

// Stop asks for the end of a job: its kernel is interrupted and ended. A job that has ended stays as it is.
func (m *Manager) Stop(ctx context.Context, id string) (Job, error) {
	ended := false
	s, err := m.store.change(ctx, id, func(e *entry) error {
		ended = false
		switch { // a kernel that ends with its job is left to the job's next holder
		case e.State.Final():
		case e.State == Queued && e.Holder == "" && e.Outcome == nil && e.Then != ThenEnd:
			e.State, e.Ended, e.Reason = Stopped, time.Now().UTC(), reasonStopped
			ended = true
		default:
			e.Stopping = true
		}
		return nil
	})
	if err != nil {
		return Job{}, err
	}
	if m.view.note(s.brief()); ended {
		m.observeEnd(&s.Job)
	}
	if h := m.hold(id); h != nil {
		h.end(errStopped)
	}
	m.look()
	return s.Job, nil
}

// ErrRuns says that a job has not ended.
var ErrRuns = errors.New("jobs: the job has not ended")

// Remove removes a job that has ended, with its notebooks.
func (m *Manager) Remove(ctx context.Context, id string) error {
	s, err := m.store.job(ctx, id)
	if err != nil {
		return err
	}
	if !s.ended() {
		return ErrRuns
	}
	return m.discard(ctx, &s.entry)
}

// RemoveDamaged removes a job whose record cannot be read, with its notebooks. It is not known who owns the job, and
// which kernel it has. The error is ErrRuns if the record can be read.
func (m *Manager) RemoveDamaged(ctx context.Context, id string) error {
	if _, err := m.Get(ctx, id); !errors.Is(err, launcher.ErrRecordDamaged) {
		return cmp.Or(err, ErrRuns)
	}
	m.log.Warn("a job whose record cannot be read is removed", logkey.Job, id)
	return m.store.removeDamaged(ctx, kindJob, kindNotebook, id)
}

// look makes Run look at all jobs now.
func (m *Manager) look() { goroutines.Wake(m.wake) }

// Run runs jobs until ctx ends. It then gives back the jobs that it holds, so that another gateway carries on at once.
// Their cells go on.
func (m *Manager) Run(ctx context.Context) {
	defer m.endLease(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	working.Go(func() { m.fireSchedules(ctx) })
	working.Go(func() { m.keepLease(ctx) })
	swept := time.Now()
	for {
		err := goroutines.Contain(func() error { return m.round(ctx, &working) })
		if err != nil && ctx.Err() == nil {
			m.log.Warn("jobs cannot be read", logkey.Err, err)
		}
		err = goroutines.Contain(func() error { return m.trim(ctx) })
		if err != nil && ctx.Err() == nil {
			m.log.Warn("jobs that are too many cannot be removed; this is tried again later", logkey.Err, err)
		}
		err = goroutines.Contain(func() error { return m.noteOwners(ctx) })
		if err != nil && ctx.Err() == nil {
			m.log.Warn("it cannot be stored which users were seen; this is tried again", logkey.Err, err)
		}
		if time.Since(swept) > m.timing.sweep {
			swept = time.Now()
			err := goroutines.Contain(func() error {
				return errors.Join(m.sweep(ctx), m.sweepDefinitions(ctx), m.sweepOwners(ctx))
			})
			if err != nil && ctx.Err() == nil {
				m.log.Warn("old jobs cannot be removed", logkey.Err, err)
			}
		}
		t := time.NewTimer(m.timing.scan)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-m.wake:
			t.Stop()
		case <-t.C:
		}
	}
}
