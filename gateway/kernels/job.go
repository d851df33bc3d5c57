package kernels

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// startGrace is how long the start of a job's kernel goes on when its gateway or its job ends. Launchers may remove a
// kernel whose start is given up.
const startGrace = 5 * time.Second

// StartJob starts the kernel of a job, which has the wish's id, and returns when it is being started. A start that an
// earlier call or another gateway has begun goes on. Nothing is removed when ctx ends: the job's record has the id, so
// the next gateway goes on with the kernel. The audit log gets an entry, unless a limit is reached: such a start is
// tried again every few seconds.
func (s *Service) StartJob(ctx context.Context, a *Act, wish Wish) error {
	err := s.startJob(launcher.WithRequestID(ctx, a.ID), a, wish)
	if err == nil || ctx.Err() != nil || RefusalOf(a.Who, "", err).Check != LimitCheck {
		e := a.Entry("start", "")
		e.Outcome = OutcomeDone
		if err != nil {
			e.Outcome = OutcomeFailed
		}
		s.audit.Write(e)
	}
	return err
}

func (s *Service) startJob(ctx context.Context, a *Act, wish Wish) error {
	req, err := s.request(a.Who, wish)
	if err != nil {
		return err
	}
	k, err := s.launcher.Kernel(ctx, wish.ID)
	switch {
	case err == nil && k.Owner == a.Who.Owner(): // it was counted, and it may be dead: method Up says why
		a.starting(&req)
	case err == nil:
		return launcher.ErrConflict
	case !errors.Is(err, launcher.ErrNotFound):
		return err
	default:
		if err := s.allow(a, &req); err != nil {
			return err
		}
		req.Job = true
		ctx, cancel := outlive(ctx, startGrace)
		defer cancel()
		var created bool
		if k, created, err = s.launch(ctx, req); err != nil {
			return err
		}
		if created {
			s.log.Info("kernel started", logkey.Kernel, k.ID, logkey.Spec, k.SpecName, logkey.Request, a.ID)
		}
	}
	s.launcher.Claim(k.ID)
	return nil
}

// outlive returns a context that ends some time after ctx.
func outlive(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	detach := context.AfterFunc(ctx, func() {
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() {
		detach()
		cancel()
	}
}

// Up returns when a kernel is up. It calls waits with each reason for which the kernel waits. The error is that of a
// start that has failed, or ctx's.
func (s *Service) Up(ctx context.Context, id string, waits func(reason string)) error {
	said := ""
	for {
		k, err := s.launcher.Wait(ctx, id, func(k launcher.Kernel) bool { return IsUp(k) || k.Reason != said })
		switch {
		case err != nil:
			return err
		case IsUp(k):
			return StartError(k)
		}
		said = k.Reason
		waits(k.Reason)
	}
}

// Starts reports whether a kernel is still being started, or waits.
func (s *Service) Starts(ctx context.Context, id string) (bool, error) {
	k, err := s.launcher.Kernel(ctx, id)
	if errors.Is(err, launcher.ErrNotFound) {
		return false, nil
	}
	return err == nil && !IsUp(k), err
}

// lostTime bounds the wait for the end of a kernel that has told its clients that it ends.
const lostTime = 5 * time.Second

// Lost returns why a kernel has ended. It waits some seconds for that, and returns "" if it is not known then.
func (s *Service) Lost(ctx context.Context, id string) (reason string) {
	ctx, cancel := context.WithTimeout(ctx, lostTime)
	defer cancel()
	k, err := s.launcher.Wait(ctx, id, func(k launcher.Kernel) bool { return k.State == api.Dead })
	var gone *launcher.GoneError
	switch {
	case errors.As(err, &gone):
		return gone.Reason
	case err != nil:
		return ""
	}
	return k.Reason
}

// GPUWaits returns the kernels that have waited for GPUs for as long as their flavor says, the longest first.
func (s *Service) GPUWaits(ctx context.Context) ([]launcher.GPUWait, error) {
	after := map[string]time.Duration{}
	if s.opts.Flavors != nil {
		for _, f := range s.opts.Flavors.List() {
			if f.JobsGiveWay > 0 {
				after[f.Name] = f.JobsGiveWay
			}
		}
	}
	if len(after) == 0 {
		return nil, nil
	}
	waits, err := s.launcher.GPUWaits(ctx)
	return slices.DeleteFunc(waits, func(w launcher.GPUWait) bool {
		k, err := s.launcher.Kernel(ctx, w.Kernel)
		return err != nil || after[k.Flavor] == 0 || w.For < after[k.Flavor] // a kernel that is gone does not wait
	}), err
}

// GaveWay writes to the audit log that a kernel is ended for another one.
func (s *Service) GaveWay(a *Act, id string) {
	a.Kernel = id
	e := a.Entry("give-way", "")
	e.Outcome = OutcomeDone
	s.audit.Write(e)
}
