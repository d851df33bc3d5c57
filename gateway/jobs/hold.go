package jobs

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Reasons that authors read.
const (
	reasonStopped  = "it was stopped on request"
	reasonInternal = "an internal error of the gateway; see its log"
	reasonMemory   = "it waits until other jobs with large notebooks end: the gateway has no memory for its own"
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

	stopping context.Context // ends when the end of the job is wanted, or of its attempt; see its cause
	end      context.CancelCauseFunc

	taken time.Time

	known   atomic.Pointer[Brief] // of s
	suspect atomic.Bool           // of s: it may end this gateway, and has not yet

	mu sync.Mutex
	s  stored
}

func newHold(ctx context.Context, m *Manager, s stored) *hold {
	h := &hold{m: m, id: s.ID, log: m.log.With(logkey.Job, s.ID), life: ctx, s: s, taken: time.Now()}
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
	h.suspect.Store(h.s.Silent > maxShared)
	h.m.view.note(brief)
	switch {
	case h.s.Stopping:
		h.end(errStopped)
	case h.s.GiveWay != "" && h.s.State == Running:
		h.end(errGaveWay)
	}
}

// see reads the record if another gateway has changed it. version is the record's version in a list of open records; ""
// says that the list does not have the record. see does nothing while the record is being written: the write notices a
// change.
func (h *hold) see(version string) {
	if !h.mu.TryLock() {
		return
	}
	defer h.mu.Unlock()
	if h.s.version == version {
		h.outlivedLocked()
		return
	}
	now, err := h.m.store.job(h.ctx, h.id)
	switch {
	case errors.Is(err, launcher.ErrNoRecord), err == nil && now.Holder != h.m.name:
		h.lose(errLost)
	case err == nil:
		h.s = now
		h.noteLocked()
	}
}

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

// work brings the job as far as possible, and then gives it back.
func (h *hold) work() {
	err := goroutines.Contain(h.steps)
	var panicked *goroutines.PanicError
	switch {
	case errors.As(err, &panicked):
		h.log.Error("a job's goroutine has panicked", logkey.Err, err)
		h.panicked()
	case err != nil && h.ctx.Err() == nil:
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
	var invalid *notebook.InvalidError
	switch {
	case errors.As(err, &invalid):
		reason = invalid.Error()
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
			if ok, err := h.allowed(&e); !ok || err != nil {
				return err
			}
			now := time.Now().UTC()
			err := h.must("start", func(e *entry) { e.State, e.Reason, e.Attempt, e.Started = Running, "", 1, now })
			if err != nil {
				return err
			}
			h.m.observer.JobBegan(e.Flavor, now.Sub(e.Created))
		case e.State == Queued && (h.stopping.Err() != nil || h.m.waits(h.id)):
			return nil // the next attempt has a hold of its own: the stopping of this one has ended
		case e.State == Queued:
			if behind, err := h.behind(&e); behind || err != nil {
				return err
			}
			if ok, err := h.allowed(&e); !ok || err != nil {
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
		case e.Silent > maxShared && e.due() != nil:
			if err := h.cutUnread(&e, e.due()); err != nil {
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
	owner := e.Owner
	if e.inKernel() {
		owner = "" // an admin's job may run in another owner's kernel
	}
	used, err := h.m.kernels.GPUSeconds(ctx, owner, e.Kernel, e.GPUsSince())
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
