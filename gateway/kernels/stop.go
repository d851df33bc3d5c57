package kernels

import (
	"context"
	"errors"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Stop ends a kernel and then the connections that still lead to it. A client that leaves does not cancel it.
func (s *Service) Stop(ctx context.Context, a *Act, id, reason string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	if err := s.launcher.Stop(launcher.WithRequestID(ctx, a.ID), id, reason); err != nil {
		return err
	}
	s.edge.Ended(id)
	s.log.Info("kernel stopped", logkey.Kernel, id, logkey.Request, a.ID)
	return nil
}

// Interrupt interrupts a kernel.
func (s *Service) Interrupt(ctx context.Context, a *Act, id string) error {
	_, err := s.edge.Ask(ctx, a, id, Question{Verb: "POST", Action: "interrupt", Limit: actionTime})
	return err
}

// Tell sends a POST without a body to the supervisor of a kernel. Its error says why a kernel that starts or has ended
// cannot take it.
func (s *Service) Tell(ctx context.Context, a *Act, id, action string) error {
	if _, err := s.Kernel(ctx, id); err != nil {
		return err
	}
	_, err := s.edge.Ask(ctx, a, id, Question{Verb: "POST", Action: action, Limit: actionTime})
	return NotYet(s.Explain(ctx, a.Who, id, err))
}

// Wake tells the supervisor of a kernel that may be parked that a cell will follow. It reports whether that is such a
// kernel.
func (s *Service) Wake(ctx context.Context, a *Act, id string) (told bool, err error) {
	k, err := s.Kernel(ctx, id)
	if err != nil || k.Parked.State == "" {
		return false, err
	}
	return true, s.Tell(ctx, a, id, "wake")
}

// Explain adds a reason to the error of an undelivered request: why the kernel is dead, or what its start waits for.
func (s *Service) Explain(ctx context.Context, who Caller, id string, err error) error {
	var undelivered *UndeliveredError
	if !errors.As(err, &undelivered) {
		return err
	}
	k, kernelErr := s.Kernel(ctx, id)
	switch {
	case errors.Is(kernelErr, launcher.ErrNotFound):
		return kernelErr
	case kernelErr == nil && k.State == api.Dead:
		return &Refusal{Class: Unavailable, Reason: "Kernel is dead", Err: err,
			Message: "The kernel is dead: " + who.ReasonOf(&k)}
	case kernelErr == nil && errors.Is(err, launcher.ErrNoSupervisor):
		return &Refusal{Class: Unavailable, Reason: "Kernel is starting", Err: err,
			Message: launcher.StartingText(who.ReasonOf(&k))}
	}
	return err
}

// NotYet turns the error of a request that a starting kernel cannot handle into a final one. A client that repeated an
// interrupt until the kernel is up would interrupt its first cell.
func NotYet(err error) error {
	var r *Refusal
	if !errors.As(err, &r) || !errors.Is(err, launcher.ErrNoSupervisor) {
		return err
	}
	return &Refusal{Class: Conflict, Reason: r.Reason, Message: r.Message, Err: r.Err}
}

// Dead is the error of a change of a kernel that is dead.
func Dead(who Caller, k *launcher.Kernel) error {
	return &Refusal{Class: Conflict, Reason: "Kernel is dead",
		Message: "The kernel is dead: " + launcher.Sentence(who.ReasonOf(k))}
}
