package supervisor

import (
	"context"
	"sync"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/routes"
)

// operation is a request to stop or restart the kernel's process.
type operation struct {
	stop   bool // otherwise restart
	reason string
	done   chan struct{}
	err    error // valid once done is closed
}

// operations passes stops and restarts from their callers to Run. It may be used concurrently.
type operations struct {
	requested chan *operation // for Run, which settles what it takes
	over      chan struct{}   // closed when the kernel has ended for good

	mu         sync.Mutex
	restarting *operation // the restart in progress, which other restarts join; guarded by mu
}

// Stop ends the kernel and the supervisor, by an interrupt if the kernel works, shutdown_request, SIGTERM and SIGKILL
// in turn. It returns when the kernel's processes have ended.
func (s *Supervisor) Stop(ctx context.Context, reason string) error {
	return s.operations.submit(ctx, &operation{stop: true, reason: reason, done: make(chan struct{})})
}

// Restart replaces the kernel's process. It returns when the new one has been started; the kernel may not have answered
// yet. Concurrent calls share one restart.
func (s *Supervisor) Restart(ctx context.Context) error { return s.operations.restart(ctx) }

func (o *operations) restart(ctx context.Context) error {
	o.mu.Lock()
	op := o.restarting
	if op == nil {
		op = &operation{done: make(chan struct{})}
		o.restarting = op
		o.mu.Unlock()
		return o.submit(ctx, op)
	}
	o.mu.Unlock()
	return op.wait(ctx, o.over)
}

func (o *operations) submit(ctx context.Context, op *operation) error {
	// The operation is carried out even if its caller does not wait for the end.
	select {
	case o.requested <- op:
	case <-o.over:
		o.settle(op, routes.ErrOver)
	case <-ctx.Done():
		o.settle(op, ctx.Err())
	}
	return op.wait(ctx, o.over)
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
			return routes.ErrOver
		}
	}
}

// settle ends an operation with an error or nil, and wakes its callers.
func (o *operations) settle(op *operation, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.restarting == op {
		o.restarting = nil
	}
	op.err = err
	close(op.done)
}

// stopBySignal returns the stop that a signal to the supervisor asks for.
func stopBySignal() *operation {
	return &operation{stop: true, reason: api.SignalReason, done: make(chan struct{})}
}
