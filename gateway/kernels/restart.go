package kernels

import (
	"context"
	"errors"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	restartTime = 90 * time.Second // a restart: the old process gets its grace twice
	// until the launcher knows that a kernel has died, or that a dead one was restarted
	settleTime = time.Second
	endTime    = 30 * time.Second       // until a supervisor that is about to end has ended
	reviveTime = 500 * time.Millisecond // until a program that fails at once has failed
)

// Restart makes the supervisor restart its kernel, and returns the supervisor's answer, with the kernel as it was
// before. If the supervisor has ended with its kernel, or if this gateway cannot speak to it, the launcher starts both
// again. The answer is nil then, and the kernel is the new one.
func (s *Service) Restart(ctx context.Context, a *Act, id string) (answer []byte, k launcher.Kernel, err error) {
	before, err := s.Kernel(ctx, id)
	if err != nil {
		return nil, k, err
	}
	if err := s.MayRestart(a.Who, before); err != nil {
		return nil, k, err
	}
	if before.State == api.Dead || before.State == api.Unknown {
		if err := s.CountStart(a.Who); err != nil {
			return nil, k, err
		}
	}
	done, err := s.launcher.Restarting(ctx, id)
	if err != nil {
		return nil, k, err
	}
	answer, err = s.edge.Ask(ctx, a, id, Question{Verb: "POST", Action: "restart", Limit: restartTime})
	done()
	if err != nil {
		k, err = s.restartAfter(ctx, a.Who, id, err)
		return nil, k, err
	}
	if before.State == api.Dead {
		// Until the launcher knows of the restart, its list says dead, and front ends would believe that.
		ctx, cancel := context.WithTimeout(ctx, settleTime)
		defer cancel()
		_, err := s.launcher.Wait(ctx, id, func(k launcher.Kernel) bool { return k.State != api.Dead })
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return nil, k, err
		}
	}
	return answer, before, nil
}

// restartAfter starts a kernel again whose supervisor has not restarted it, if the error says that it may.
func (s *Service) restartAfter(ctx context.Context, who Caller, id string, err error) (k launcher.Kernel, _ error) {
	var never *DialError
	var undelivered *UndeliveredError
	var unsupported *launcher.UnsupportedError
	switch {
	case errors.As(err, &unsupported):
		return s.revive(ctx, id)
	case errors.As(err, &never):
		now, kernelErr := s.Kernel(ctx, id)
		if kernelErr == nil && now.State == api.Dead {
			return s.revive(ctx, id)
		}
		return k, NotYet(s.Explain(ctx, who, id, err))
	case errors.As(err, &undelivered) && s.IsDead(ctx, id):
		// Most likely the supervisor has ended during the request, or is about to. If it lives, nothing is done, and the
		// outcome of the request is unknown.
		limited, cancel := context.WithTimeout(ctx, endTime)
		defer cancel()
		k, reviveErr := s.revive(limited, id)
		if failed := (*launcher.FailedError)(nil); errors.As(reviveErr, &failed) {
			return k, s.Explain(ctx, who, id, err)
		}
		return k, reviveErr
	}
	return k, s.Explain(ctx, who, id, err)
}

// IsDead reports whether a kernel is dead, as far as the launcher learns within a second.
func (s *Service) IsDead(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	_, err := s.launcher.Wait(ctx, id, func(k launcher.Kernel) bool { return k.State == api.Dead })
	return err == nil
}

// revive starts a kernel again whose supervisor has ended. It waits for reviveTime, so that the answer has the reason
// of a program that fails at once.
func (s *Service) revive(ctx context.Context, id string) (launcher.Kernel, error) {
	restart, cancel := context.WithTimeout(ctx, restartTime)
	defer cancel()
	k, err := s.launcher.Revive(restart, id)
	if err != nil {
		return k, err
	}
	wait, cancel := context.WithTimeout(ctx, reviveTime)
	defer cancel()
	now, err := s.launcher.Wait(wait, id, func(k launcher.Kernel) bool { return k.State != api.Starting })
	switch {
	case err == nil:
		k = now
	case errors.Is(err, launcher.ErrNotFound), ctx.Err() != nil:
		return k, err
	}
	return k, StartError(k)
}
