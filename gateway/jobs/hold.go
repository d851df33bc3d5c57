package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Reasons that authors read.
const (
	reasonStopped  = "it was stopped on request"
	reasonInternal = "an internal error of the gateway; see its log"
)

// giveBack bounds the last write of a gateway that ends.
const giveBack = 5 * time.Second

// gpuSecondsTime bounds the reading of a kernel's GPU time.
const gpuSecondsTime = 10 * time.Second

// errLost says that another gateway holds the job.
var errLost = errors.New("jobs: another gateway holds the job")

// hold is a job that this gateway works on. Method work is its goroutine.
type hold struct {
	// Fixed.
	m    *Manager
	id   string
	log  *slog.Logger
	ctx  context.Context // ends when the job is lost, or with Manager.Run
	lose context.CancelCauseFunc
	life context.Context // Manager.Run's
	beat chan struct{}   // capacity 1: count now

	stopping context.Context // ends when the end of the job is wanted, or of its attempt; see its cause
	end      context.CancelCauseFunc

	known atomic.Pointer[Brief] // of s

	mu sync.Mutex
	s  stored
}

func newHold(ctx context.Context, m *Manager, s stored) *hold {
	h := &hold{m: m, id: s.ID, log: m.log.With(logkey.Job, s.ID), life: ctx,
		beat: make(chan struct{}, 1), s: s}
	h.stopping, h.end = context.WithCancelCause(context.Background())
	h.ctx, h.lose = context.WithCancelCause(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noteLocked()
	return h
}

// noteLocked looks at what others may have changed in the record, and shows it to the manager.
func (h *hold) noteLocked() {
	brief := h.s.brief()
	h.known.Store(&brief)
	h.m.view.note(brief)
	switch {
	case h.s.Stopping:
		h.end(errStopped)
	case h.s.GiveWay != "" && h.s.State == Running:
		h.end(errGaveWay)
	}
}

// poke makes the hold look at its record now.
func (h *hold) poke() { goroutines.Wake(h.beat) }

// entry returns the record as this gateway knows it.
func (h *hold) entry() entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.s.entry
}

// update changes the record. It fails, and the job is lost, if another gateway holds the job. change may run twice, the
// second time on what the first has made: it must set values, and not count.
func (h *hold) update(ctx context.Context, change func(*entry)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	next := h.s
	change(&next.entry)
	err := h.m.store.write(ctx, &next)
	if errors.Is(err, launcher.ErrRecordChanged) {
		next, err = h.m.store.change(ctx, h.id, func(e *entry) error {
			if e.Holder != h.m.name {
				return errLost
			}
			change(e)
			return nil
		})
	}
	switch {
	case err == nil:
		h.s = next
		h.noteLocked()
	case errors.Is(err, errLost), errors.Is(err, launcher.ErrNoRecord):
		h.lose(errLost)
	}
	return err
}

// must calls update until the record can be written.
func (h *hold) must(what string, change func(*entry)) error {
	return retry(h.ctx, h.log, what, func() error { return h.update(h.ctx, change) })
}

// count proves to other gateways that this one lives, until ctx ends.
func (h *hold) count(ctx context.Context) {
	t := time.NewTicker(h.m.timing.beat)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-h.beat:
		}
		if err := h.update(ctx, func(e *entry) { e.Beat++ }); err != nil && ctx.Err() == nil {
			h.log.Warn("this gateway cannot renew its hold on a job", logkey.Err, err)
		}
	}
}

// work brings the job as far as possible, and then gives it back.
func (h *hold) work() {
	ctx, end := context.WithCancel(h.ctx)
	var counting sync.WaitGroup
	counting.Go(func() { h.count(ctx) })
	err := h.steps()
	end()
	counting.Wait()
	if err != nil && h.ctx.Err() == nil {
		h.log.Error("a job cannot go on", logkey.Err, err)
		h.fail(err)
	}
	if errors.Is(context.Cause(h.ctx), errLost) {
		h.log.Warn("another gateway has taken the job")
		if err := h.endLeft(); err != nil && h.life.Err() == nil {
			h.log.Error("the kernel of a job may still run", logkey.Kernel, h.entry().Kernel, logkey.Err, err)
		}
		return
	}
	back, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), giveBack)
	defer cancel()
	err = h.update(back, func(e *entry) { e.Holder = "" })
	if err != nil && !errors.Is(err, launcher.ErrNoRecord) { // its author has removed it
		h.log.Warn("a job cannot be released; another gateway takes it later", logkey.Err, err)
	}
	h.lose(nil)
}

// endLeft ends the kernel of a job that this gateway has lost, if the job does not need it any more. A gateway that was
// frozen during a start may have started it after the job's next holder had ended it.
func (h *hold) endLeft() error {
	last := h.entry()
	if last.Kernel == "" || last.inKernel() {
		return nil
	}
	return retry(h.life, h.log, "end its kernel", func() error {
		now, err := h.m.store.job(h.life, h.id)
		switch {
		case errors.Is(err, launcher.ErrNoRecord): // the job has ended and was removed
		case err != nil:
			return err
		case now.Kernel == last.Kernel && !now.State.Final() && now.Outcome == nil:
			return nil
		}
		return h.m.kernels.Stop(h.life, last.Author, last.Kernel, "its job does not need it any more")
	})
}

// fail ends a job that no gateway could bring further. What may succeed later is tried again later.
func (h *hold) fail(err error) {
	later := errors.Is(err, launcher.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
	reason := reasonInternal
	switch {
	case errors.Is(err, launcher.ErrRecordTooLarge):
		reason = "its notebook is larger than what can be stored here"
	case errors.Is(err, launcher.ErrRecordDamaged):
		reason = "its stored notebook can no longer be read"
	}
	if later || h.outcome(Failed, reason, false) != nil {
		h.notYet()
	}
}

// notYet makes this gateway wait before it tries the job again.
func (h *hold) notYet() {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.m.notYet[h.id] = time.Now().Add(h.m.timing.again)
}

// steps does what the record says is next, until the job has ended or has to wait. Every step can be repeated by
// another gateway.
func (h *hold) steps() error {
	for {
		e := h.entry()
		switch {
		case e.Outcome != nil:
			if err := h.settle(&e); err != nil {
				return err
			}
		case e.State.Final():
			return nil
		case e.Pending:
			if err := h.accept(&e); err != nil {
				return err
			}
		case e.Form != form && e.Kernel == "":
			return h.last("refuse", func(e *entry) { e.State, e.Reason, e.Ended = Failed, reasonForm, time.Now().UTC() })
		case e.Form != form:
			if err := h.outcome(Failed, reasonForm, false); err != nil {
				return err
			}
		case e.Stopping && e.State == Queued && e.Then == ThenEnd: // its kernel is ended, too
			if err := h.outcome(Stopped, reasonStopped, false); err != nil {
				return err
			}
		case e.Stopping && (e.Kernel == "" || e.State == Queued):
			return h.last("stop", func(e *entry) { e.State, e.Reason, e.Ended = Stopped, reasonStopped, time.Now().UTC() })
		case e.State == Queued && e.inKernel():
			now := time.Now().UTC()
			if err := h.must("start", func(e *entry) { e.State, e.Attempt, e.Started = Running, 1, now }); err != nil {
				return err
			}
			h.m.observer.JobBegan(e.Flavor, now.Sub(e.Created))
		case e.State == Queued && (h.stopping.Err() != nil || h.m.waits(h.id)):
			return nil // the next attempt has a hold of its own: the stopping of this one has ended
		case e.State == Queued:
			if behind, err := h.behind(&e); behind || err != nil {
				return err
			}
			// The kernel's id is stored before the kernel is started.
			kernel, attempt := uuid.NewString(), e.Attempt+1
			err := h.must("start", func(e *entry) {
				e.State, e.Reason, e.Kernel, e.Attempt = Starting, "", kernel, attempt
				if e.GiveWay != "" {
					e.GaveWay, e.GiveWay = e.GiveWay, ""
				}
			})
			if err != nil {
				return err
			}
		case e.State == Starting:
			if err := h.start(&e); err != nil {
				return err
			}
		default:
			if err := h.run(&e); err != nil {
				return err
			}
		}
	}
}

// settle stops the kernel of an attempt that has ended, unless its author keeps it. It then ends the job or lets it
// begin again.
func (h *hold) settle(e *entry) error {
	gpuSeconds := e.GPUSeconds + h.gpuSeconds(e)
	err := retry(h.ctx, h.log, "stop its kernel", func() error {
		if e.Then == ThenKeep {
			return nil
		}
		return h.m.kernels.Stop(h.ctx, e.Author, e.Kernel, "its job has ended")
	})
	if err != nil {
		return err
	}
	end := *e.Outcome
	if end.State == Queued {
		h.notYet() // what has failed at once would fail again
	}
	attempt := e.Attempt
	if end.Waits {
		attempt--
	}
	return h.last("end", func(e *entry) {
		e.State, e.Reason, e.Attempt, e.Outcome = end.State, end.Reason, attempt, nil
		e.GPUSeconds = gpuSeconds
		if e.State.Final() {
			e.Ended = time.Now().UTC()
			return
		}
		e.Kernel, e.Cell, e.Started, e.Reached = "", 0, time.Time{}, false
	})
}

// gpuSeconds returns what the attempt's kernel has held of GPUs. It is read before the kernel is stopped: later, the
// kernel's end may not be recorded yet. It never keeps a job from its end.
func (h *hold) gpuSeconds(e *entry) (used float64) {
	if e.Kernel == "" || e.inKernel() && e.Started.IsZero() {
		return 0
	}
	ctx, cancel := context.WithTimeout(h.ctx, gpuSecondsTime)
	defer cancel()
	used, err := h.m.kernels.GPUSeconds(ctx, e.Kernel, e.GPUsSince())
	if err != nil && h.ctx.Err() == nil {
		h.log.Warn("the GPU time of a job is incomplete", logkey.Err, err)
	}
	return used
}

// last is must for a change that may end the job. An end is counted when it is stored.
func (h *hold) last(what string, change func(*entry)) error {
	if err := h.must(what, change); err != nil {
		return err
	}
	if e := h.entry(); e.State.Final() {
		h.m.observeEnd(&e.Job)
	}
	return nil
}

// outcome stores how an attempt has ended. An attempt whose kernel was lost is followed by another one, if the author
// wanted that.
func (h *hold) outcome(state State, reason string, lost bool) error {
	return h.must("store its outcome", func(e *entry) {
		end := outcome{State: state, Reason: reason}
		if e.Stopping && reason == reasonGaveWay {
			end = outcome{State: Stopped, Reason: reasonStopped}
		}
		if lost && !e.Stopping && e.Attempt <= e.Retries {
			end.State = Queued
			if e.Reached && e.Run != nil && e.RestartFrom != "" {
				e.Before = e.Run
			}
			e.Run = nil // what it and an earlier Before have named is swept up
		}
		e.Outcome = &end
	})
}

// start starts the job's kernel and waits until it is up.
func (h *hold) start(e *entry) error {
	ctx, release := h.untilStopped(h.ctx)
	defer release()
	err := retry(ctx, h.log, "start its kernel", func() error {
		return h.m.kernels.Start(ctx, e.Author, e.Kernel, e.Start)
	})
	if err == nil {
		err = h.m.kernels.Up(ctx, e.Kernel, func(reason string) {
			err := retry(ctx, h.log, "note what it waits for", func() error {
				return h.update(ctx, func(e *entry) { e.Reason = reason })
			})
			if err != nil && ctx.Err() == nil {
				h.log.Warn("the reason why a job waits cannot be stored", logkey.Err, err)
			}
			h.m.look() // it is admitted, so the author's next job may start
		})
	}
	var wait *WaitError
	switch {
	case err == nil:
		defer h.m.look() // the author's next job may start
		now := time.Now().UTC()
		err := h.must("note that it runs", func(e *entry) { e.State, e.Reason, e.Started = Running, "", now })
		if err == nil && e.Attempt == 1 {
			h.m.observer.JobBegan(e.Flavor, now.Sub(e.Created))
		}
		return err
	case h.ctx.Err() != nil:
		return err
	case errors.Is(context.Cause(ctx), errStopped):
		return h.outcome(Stopped, reasonStopped, false)
	case errors.As(err, &wait):
		return h.must("wait", func(e *entry) { e.Outcome = &outcome{State: Queued, Reason: wait.Reason, Waits: true} })
	case errors.Is(err, launcher.ErrUnavailable):
		return err
	}
	var refused *RefusedError
	return h.outcome(Failed, "its kernel could not be started: "+err.Error(), !errors.As(err, &refused))
}

// Reasons for which this gateway ends a wait or a run by itself.
var (
	errStopped = errors.New("jobs: stopped")
	errGaveWay = errors.New("jobs: gave way")
	errTimeout = errors.New("jobs: out of time")
)

// run runs the notebook, from where it was left.
func (h *hold) run(e *entry) error {
	document, resume, err := h.document(e)
	if err != nil {
		return err
	}
	again, cursor := e.Run == nil && e.Before != nil, ""
	if resume != nil && !again {
		cursor = resume.Cursor
	}
	relay := notebook.OpenRelay(notebook.RelayOptions{
		Dial: func(ctx context.Context, query url.Values) (*websocket.Conn, error) {
			return h.m.kernels.Dial(ctx, e.Author, e.Kernel, query)
		},
		Session:   fmt.Sprintf("job-%s-%d", e.ID, e.Attempt),
		Cursor:    cursor,
		Interrupt: func(ctx context.Context) error { return h.m.kernels.Interrupt(ctx, e.Author, e.Kernel) },
		Failed:    h.unreachable(),
	})
	defer relay.Close()
	stop, release := h.untilStopped(context.Background())
	defer release()
	if e.Timeout > 0 {
		var cancel context.CancelFunc
		over := e.Started.Add(time.Duration(e.Timeout) * time.Second)
		stop, cancel = context.WithDeadlineCause(stop, over, errTimeout)
		defer cancel()
	}
	r := notebook.Run{Conn: relay, Document: document, ID: fmt.Sprintf("%s-%d", e.ID, e.Attempt), Resume: resume,
		Again: again, Pieces: h.m.store.pieces(h.id, h.log), AllowErrors: e.AllowErrors, Save: h.save, Stop: stop.Done(),
		SaveEvery: h.m.store.keeper.RecordPace(),
		// What the run notes beside outputs is small, but a piece may have a cell's outputs in a longer form.
		OutputLimit: min(notebook.DefaultOutputLimit, h.m.store.keeper.MaxRecord()*2/3), Room: h.m.store.keeper.MaxRecord()}
	result, err := h.m.perform(h.ctx, &r)
	if err != nil {
		return err
	}
	switch result.Status {
	case notebook.Completed:
		return h.outcome(Succeeded, "", false)
	case notebook.Stopped:
		if errors.Is(context.Cause(stop), errTimeout) {
			return h.outcome(Failed, fmt.Sprintf("it ran longer than its timeout of %d s", e.Timeout), false)
		}
		if errors.Is(context.Cause(stop), errGaveWay) {
			return h.outcome(Failed, reasonGaveWay, true)
		}
		return h.outcome(Stopped, reasonStopped, false)
	}
	reason := result.Reason
	if result.Lost { // the cluster knows more than the kernel's last message
		if why := h.m.kernels.Lost(h.ctx, e.Kernel); why != "" {
			reason = "its kernel has ended: " + why
		}
	}
	if result.Cell > 0 {
		reason = fmt.Sprintf("cell %d: %s", result.Cell, reason)
	}
	return h.outcome(Failed, reason, result.Lost)
}

// logAgain is the time between two log lines about the same trouble.
const logAgain = time.Minute

// unreachable returns a function that logs that the kernel cannot be reached: at first, and then once in a while.
func (h *hold) unreachable() func(error) {
	var logged time.Time
	return func(err error) {
		if err == nil {
			logged = time.Time{}
			return
		}
		if time.Since(logged) > logAgain {
			logged = time.Now()
			h.log.Warn("the kernel of a job cannot be reached", logkey.Err, err)
		}
	}
}

// untilStopped returns a context that ends when the job, or its attempt, is to end. The cause says why. release must
// be called.
func (h *hold) untilStopped(parent context.Context) (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(parent)
	detach := context.AfterFunc(h.stopping, func() { cancel(context.Cause(h.stopping)) })
	if h.stopping.Err() != nil { // AfterFunc may take a moment, and a run that has a result already does not
		cancel(context.Cause(h.stopping))
	}
	return ctx, func() {
		detach()
		cancel(nil)
	}
}

// document returns the notebook to run, or the state of the run that goes on, or that is followed by another one.
func (h *hold) document(e *entry) (doc *notebook.Document, from *notebook.State, err error) {
	if shown := e.shown(); shown != nil {
		state, err := parseState(shown)
		return nil, &state, err
	}
	err = retry(h.ctx, h.log, "read its notebook", func() error {
		source, err := h.m.store.source(h.ctx, e)
		if err != nil {
			return err
		}
		doc, err = e.prepared(source, e.Language, e.From)
		return err
	})
	return doc, nil, err
}

// save replaces the record by one with the state of the run. It then removes the pieces that the record no longer
// names.
func (h *hold) save(ctx context.Context, state *notebook.State, p notebook.Progress) error {
	b, err := json.Marshal(state)
	if err != nil {
		return err
	}
	before := h.entry()
	err = retry(ctx, h.log, "save its progress", func() error {
		return h.update(ctx, func(e *entry) { e.Run, e.Cell, e.Cells, e.Reached = b, p.Cell, p.Cells, state.Reached })
	})
	if err != nil {
		return err
	}
	now := h.entry()
	old, oldErr := before.pieces()
	named, err := now.pieces()
	if err := errors.Join(oldErr, err); err != nil {
		return err
	}
	maps.DeleteFunc(old, func(id string, _ bool) bool { return named[id] })
	if err := h.m.store.removePieces(ctx, old); err != nil {
		h.log.Warn("old pieces of a notebook cannot be removed; this is tried again later", logkey.Err, err)
	}
	return nil
}
