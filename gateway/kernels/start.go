package kernels

import (
	"context"
	"errors"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// startTime bounds Launcher.Start, which returns before the kernel runs. Jupyter Server waits 42 s for a POST.
const startTime = 30 * time.Second

// Start starts a kernel and calls answer with it when it runs or when StartWait is over. It removes the kernel again if
// the kernel fails meanwhile, or if answer does: the client is gone before it knows the kernel's id, and no client
// could end the kernel then.
func (s *Service) Start(ctx context.Context, a *Act, wish Wish, answer func(launcher.Kernel) error) error {
	req, err := s.request(a.Who, wish)
	if err != nil {
		return err
	}
	if err := s.allow(a, &req); err != nil {
		return err
	}
	attempt := s.pending.enter(req.Owner + "\x00" + req.ID) // another user's kernel with this id is another kernel
	k, created, err := s.startAndWait(ctx, req)
	if k.ID != "" {
		a.Kernel = k.ID // a warm kernel has another id
	}
	if err == nil {
		err = answer(k)
	}
	if err == nil {
		s.launcher.Claim(k.ID)
	}
	if attempt.leave(created, err == nil) {
		s.discard(ctx, a, err)
	} else if created {
		s.log.Info("kernel started", logkey.Kernel, k.ID, logkey.Spec, k.SpecName, logkey.Request, a.ID)
	}
	return err
}

// discard removes a kernel whose start has failed, or which no client has waited for.
func (s *Service) discard(ctx context.Context, a *Act, failure error) {
	reason := "no client waited for its start"
	if failed := (*launcher.FailedError)(nil); errors.As(failure, &failed) {
		reason = failed.Reason
	} else if limit := (*launcher.LimitError)(nil); errors.As(failure, &limit) {
		reason = limit.Reason
	}
	e := a.Entry("remove", "")
	e.Outcome = OutcomeDone
	s.audit.Write(e)
	if err := s.Stop(ctx, a, a.Kernel, reason); err != nil && !errors.Is(err, launcher.ErrNotFound) {
		s.log.Error("a kernel whose start failed could not be removed", logkey.Kernel, a.Kernel, logkey.Err, err)
	}
}

// Check makes those checks of a start that do not depend on the moment, and returns what would be started. It counts
// nothing.
func (s *Service) Check(a *Act, wish Wish) (launcher.Request, error) {
	req, err := s.request(a.Who, wish)
	if err != nil {
		return req, err
	}
	return req, s.mayHave(a, &req)
}

// mayHave checks that the caller may have the kernelspec and the flavor of a start.
func (s *Service) mayHave(a *Act, req *launcher.Request) error {
	a.starting(req) // also for the audit log of a refused start
	if err := mayStart(a.Who, req.Spec); err != nil {
		return err
	}
	if err := s.chooseFlavor(a.Who, req); err != nil {
		return err
	}
	if req.Flavor != nil {
		a.Flavor = req.Flavor.Name
	}
	return nil
}

// allow makes the checks of every start, and sets what the launcher needs to know of the caller.
func (s *Service) allow(a *Act, req *launcher.Request) error {
	if err := s.mayHave(a, req); err != nil {
		return err
	}
	who := a.Who
	if err := s.CountStart(who); err != nil {
		return err
	}
	if !who.Sole {
		req.Owner = who.Owner()
		req.Groups, req.OwnerGroups = s.opts.Limits.Groups(who.Groups), who.Groups
		req.Cull = s.opts.Limits.Cull(who.Groups)
		req.Env["KERNEL_USERNAME"] = who.Name // overrides the client's value
	}
	return nil
}

// CountStart counts a start, or the restart of a dead kernel, which costs as much. It fails if the caller has started
// too many kernels in the last minute.
func (s *Service) CountStart(who Caller) error {
	wait := s.starts.Take(who.Name)
	if wait == 0 {
		return nil
	}
	return tooMany(wait, "You may start %d kernels in a minute. Try again in %v.", s.opts.StartsPerMinute, RoundUp(wait))
}

// launch starts a kernel that allow has allowed. It does not wait until the kernel runs.
func (s *Service) launch(ctx context.Context, req launcher.Request) (launcher.Kernel, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	k, created, err := s.launcher.Start(ctx, req)
	if err == nil {
		return k, created, nil
	}
	if why := failureOf(err); why != "" {
		s.metrics.KernelFailed(req.Spec.Name, why)
	}
	return k, false, err
}

// startAndWait starts a kernel and waits until it runs. A kernel that dies meanwhile is a *launcher.FailedError.
func (s *Service) startAndWait(ctx context.Context, req launcher.Request) (launcher.Kernel, bool, error) {
	k, created, err := s.launch(ctx, req)
	if err != nil {
		return k, false, err
	}
	if !created && k.State == api.Dead {
		return k, false, refuse(Conflict,
			"A kernel with this id exists and is dead: %s Restart it or delete it.", launcher.Sentence(k.Reason))
	}
	wait := s.opts.StartWait
	// Jupyter Server always sends a launch timeout: 40 s unless it is configured otherwise, and it gives the request up 2
	// s after that. It bounds this request and not the start itself, or no client could wait for a GPU from JupyterLab.
	if timeout := req.Timeout(); timeout > 0 {
		wait = min(wait, timeout)
	}
	if wait > 0 {
		waitCtx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		now, err := s.launcher.Wait(waitCtx, k.ID, IsUp)
		var gone *launcher.GoneError
		switch {
		case ctx.Err() != nil:
			return k, created, ctx.Err()
		case err == nil, errors.Is(err, context.DeadlineExceeded) && now.ID != "":
			k = now
		case errors.As(err, &gone):
			return k, created, &launcher.FailedError{Reason: gone.Reason}
		case errors.Is(err, launcher.ErrNotFound):
			return k, created, &launcher.FailedError{Reason: "the kernel was removed while it started"}
		case !errors.Is(err, launcher.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded):
			return k, created, err
		}
	}
	return k, created, StartError(k)
}

// StartError returns the error of a kernel whose start has failed, else nil.
func StartError(k launcher.Kernel) error {
	switch {
	case k.State != api.Dead:
		return nil
	case k.Limit != "":
		return &launcher.LimitError{Limit: k.Limit, Owner: k.Owner, Reason: k.Reason}
	}
	return &launcher.FailedError{Reason: k.Reason}
}

// failureOf classifies the error of a launcher's Start for metrics. It returns "" for what is not a failure: the id
// belongs to another kernel, or the client is gone.
func failureOf(err error) launcher.Failure {
	var failed *launcher.FailedError
	var refused *launcher.RefusedError
	var limit *launcher.LimitError
	switch {
	case errors.As(err, &refused):
		return launcher.FailedRefused
	case errors.As(err, &limit):
		return launcher.FailedLimit
	case errors.As(err, &failed) && failed.Class != "":
		return failed.Class
	case errors.Is(err, launcher.ErrConflict), errors.Is(err, context.Canceled):
		return ""
	case errors.Is(err, launcher.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return launcher.FailedUnavailable
	}
	return launcher.FailedInternal
}

// IsUp reports whether a kernel's start has succeeded or failed. A restarting kernel has done neither: its first start
// failed and is tried again.
func IsUp(k launcher.Kernel) bool {
	return k.State != api.Starting && k.State != api.Restarting
}
