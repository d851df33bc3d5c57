package supervisor

import (
	"context"
	"errors"
)

// operation is a request to stop or restart the kernel's process.
type operation struct {
	stop   bool // otherwise restart
	reason string
	done   chan struct{}
	err    error // valid once done is closed
}

var errOver = errors.New("the kernel is gone")

// Stop ends the kernel and the supervisor, by an interrupt if the kernel works, shutdown_request, SIGTERM and SIGKILL
// in turn. It returns when the kernel's processes have ended.
func (s *Supervisor) Stop(ctx context.Context, reason string) error {
	return s.submit(ctx, &operation{stop: true, reason: reason, done: make(chan struct{})})
}

// Restart replaces the kernel's process. It returns when the new one has been started; the kernel may not have answered
// yet. Concurrent calls share one restart.
func (s *Supervisor) Restart(ctx context.Context) error {
	s.mu.Lock()
	op := s.restarting
	if op == nil {
		op = &operation{done: make(chan struct{})}
		s.restarting = op
		s.mu.Unlock()
		return s.submit(ctx, op)
	}
	s.mu.Unlock()
	return op.wait(ctx, s.over)
}

func (s *Supervisor) submit(ctx context.Context, op *operation) error {
	// The operation is carried out even if its caller does not wait for the end.
	select {
	case s.operations <- op:
	case <-s.over:
		s.settle(op, errOver)
	case <-ctx.Done():
		s.settle(op, ctx.Err())
	}
	return op.wait(ctx, s.over)
}

func (o *operation) wait(ctx context.Context, over <-chan struct{}) error {
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return ctx.Err()
	case <-over:
		select {
		case <-o.done:
			return o.err
		default:
			return errOver
		}
	}
}

// settle ends an operation with an error or nil, and wakes its callers.
func (s *Supervisor) settle(op *operation, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restarting == op {
		s.restarting = nil
	}
	op.err = err
	close(op.done)
}
