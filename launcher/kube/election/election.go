// Package election elects one of all gateways by a lease of the cluster (coordination.k8s.io/v1), as kube-scheduler
// and others are elected: the holder renews the lease, and a candidate takes one that has not changed for its duration.
// client-go's elector is not used: it makes each build compile all of client-go's informers, which took a quarter of a
// build from nothing, and it releases a lease that another holds. Begin with Election.Run, which is the only goroutine.
package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	leases "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Timing holds the durations of an election: Retry < Renew < Duration. Each retry is a request to the API server.
type Timing struct {
	Duration time.Duration // after which others take a lease that was not renewed; whole seconds
	Renew    time.Duration // since the answer to the last renewal, after which the holder ends its work
	Retry    time.Duration // between two renewals; a candidate waits for up to 2.2 of it between two looks
	Release  bool          // give the lease back at the end, which may take as long as Renew
}

// Options are the options of an Election. All are required.
type Options struct {
	Leases leases.LeaseInterface // of the lease's namespace
	Name   string                // of the lease
	Labels map[string]string     // of the lease
	Holder string                // this candidate; no other has it
	Timing Timing
	Log    *slog.Logger
}

// Election is the part that one candidate takes in an election.
type Election struct {
	opts Options

	// Owned by Run.
	lease  *coordinationv1.Lease // as it was last read or written; nil: it must be read
	absent bool                  // at the last read it did not exist
	seen   version               // of the last read
	since  time.Time             // when seen was read first
	failed string                // the error that was logged last; "": the last request was answered

	answered time.Time // when the last successful renewal was answered

	mu        sync.Mutex
	renewedAt time.Time // guarded by mu; when the last successful renewal was requested; zero: the lease is not held
}

// version tells two states of a lease apart.
type version struct {
	holder  string
	renewed time.Time
}

// New returns an election in which no part is taken yet.
func New(opts Options) *Election { return &Election{opts: opts} }

// leaderJitter is the part of Retry by which a candidate waits longer at most, as client-go's do.
const leaderJitter = 1.2

// errHeld: another candidate holds the lease.
var errHeld = errors.New("another gateway holds it")

// Run takes part in the election until ctx ends. It calls lead while this candidate holds the lease. The context of
// lead ends when the lease is lost. When lead returns, the lease is given up.
func (e *Election) Run(ctx context.Context, lead func(context.Context)) {
	for ctx.Err() == nil {
		if e.try(ctx, time.Now().Add(e.opts.Timing.Renew)) == nil {
			e.hold(ctx, lead)
		}
		_ = goroutines.Sleep(ctx, wait.Jitter(e.opts.Timing.Retry, leaderJitter))
	}
}

// Holds reports whether no other candidate can have the lease at this moment. It may be called concurrently. It counts
// from the time before a renewal is requested. Others count from the later time at which they see the renewal.
func (e *Election) Holds() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.opts.Timing.Duration
	return !e.renewedAt.IsZero() && within(e.renewedAt, time.Now(), d-d/5)
}

// hold calls lead, and renews the lease until that fails for too long or lead has returned.
func (e *Election) hold(ctx context.Context, lead func(context.Context)) {
	leading, end := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		defer end()
		lead(leading)
	})
	for {
		lost := e.answered.Add(e.opts.Timing.Renew)
		if goroutines.Sleep(leading, min(e.opts.Timing.Retry, time.Until(lost))) != nil {
			break
		}
		err := e.try(leading, lost)
		if errors.Is(err, errHeld) || err != nil && leading.Err() == nil && !time.Now().Before(lost) {
			e.opts.Log.Warn("this gateway has lost a lease", logkey.Lease, e.opts.Name, logkey.Err, err)
			break
		}
	}
	end()
	done.Wait()
	e.giveUp(context.WithoutCancel(ctx))
}

func (e *Election) setRenewed(at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.renewedAt = at
}

// try takes or renews the lease by a deadline. The error is errHeld if another candidate holds it.
func (e *Election) try(ctx context.Context, by time.Time) error {
	attempt, cancel := context.WithDeadline(ctx, by)
	defer cancel()
	known := e.lease != nil
	err := e.take(attempt)
	if known && apierrors.IsConflict(err) { // the lease is not as it was written last
		err = e.take(attempt)
	}
	switch {
	case err == nil, errors.Is(err, errHeld), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		e.failed = "" // the cluster answers, and at most another candidate was faster
	case ctx.Err() == nil && err.Error() != e.failed:
		e.failed = err.Error()
		e.opts.Log.Warn("a lease was not read or renewed; this is tried again", logkey.Lease, e.opts.Name, logkey.Err, err)
	}
	return err
}

// take is try without a bound.
func (e *Election) take(ctx context.Context) error {
	if e.lease == nil {
		if err := e.read(ctx); err != nil {
			return err
		}
	}
	now, next := time.Now(), e.lease.DeepCopy()
	if held := holder(next); held != e.opts.Holder {
		if held != "" && now.Sub(e.since) < time.Duration(ptr.Deref(next.Spec.LeaseDurationSeconds, 0))*time.Second {
			e.lease = nil
			e.setRenewed(time.Time{})
			return errHeld
		}
		next.Spec.HolderIdentity, next.Spec.AcquireTime = new(e.opts.Holder), new(metav1.NewMicroTime(now))
		next.Spec.LeaseTransitions = new(ptr.Deref(next.Spec.LeaseTransitions, 0) + 1)
	}
	next.Spec.LeaseDurationSeconds = new(int32(e.opts.Timing.Duration / time.Second))
	next.Spec.RenewTime = new(metav1.NewMicroTime(now))
	return e.write(ctx, next, now)
}

// read reads the lease, and notes whether it has changed. A lease that does not exist is one without a holder.
func (e *Election) read(ctx context.Context) error {
	lease, err := e.opts.Leases.Get(ctx, e.opts.Name, metav1.GetOptions{})
	if e.absent = apierrors.IsNotFound(err); e.absent {
		lease, err = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: e.opts.Name, Labels: e.opts.Labels}}, nil
	}
	if err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	}
	e.lease = lease
	now := version{holder: holder(lease)}
	if lease.Spec.RenewTime != nil {
		now.renewed = lease.Spec.RenewTime.Time
	}
	if e.since.IsZero() || now != e.seen {
		e.seen, e.since = now, time.Now()
	}
	return nil
}

// write stores a lease that this candidate holds from a moment on. The API server rejects it if the lease has changed.
func (e *Election) write(ctx context.Context, next *coordinationv1.Lease, from time.Time) (err error) {
	e.lease = nil // without an answer it must be read
	if e.absent {
		next, err = e.opts.Leases.Create(ctx, next, metav1.CreateOptions{})
	} else {
		next, err = e.opts.Leases.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("it cannot be written: %w", err)
	}
	e.lease, e.absent, e.answered = next, false, time.Now()
	e.setRenewed(from)
	return nil
}

// giveUp ends that this candidate holds the lease. If it is given back, another one takes it at once.
func (e *Election) giveUp(ctx context.Context) {
	e.setRenewed(time.Time{}) // before the request, whatever its answer
	ctx, cancel := context.WithTimeout(ctx, e.opts.Timing.Renew)
	defer cancel()
	for e.opts.Timing.Release {
		if e.lease == nil && e.read(ctx) != nil || holder(e.lease) != e.opts.Holder {
			break
		}
		next := e.lease.DeepCopy()
		next.Spec.HolderIdentity = nil
		_, err := e.opts.Leases.Update(ctx, next, metav1.UpdateOptions{})
		e.lease = nil
		if !apierrors.IsConflict(err) { // a renewal whose answer was not awaited
			break
		}
	}
	e.lease = nil
}

func holder(l *coordinationv1.Lease) string { return ptr.Deref(l.Spec.HolderIdentity, "") }

// within reports whether less than limit has passed by both clocks of the machine. Neither clock alone is reliable: the
// monotonic clock stops while the machine is suspended, and the wall clock can be set.
func within(from, now time.Time, limit time.Duration) bool {
	byWall := now.Round(0).Sub(from.Round(0))
	return now.Sub(from) < limit && byWall < limit
}
