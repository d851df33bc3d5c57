package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/starter"
)

const (
	firstContainer = time.Hour        // for a kernel's container to start, after the last report on it
	nextContainer  = 10 * time.Minute // for it to start again: the kubelet backs off for at most 5 minutes
	childPatience  = 15 * time.Second // for the child on the same machine to connect; it tries once a second at least
)

// begin starts the process of a life, or adopts one. It waits for the kernel's container first, and settles op. It
// reports false if there is no process; out has the reason.
func (l *life) begin(ctx context.Context, op *operation, out *outcome) bool {
	s := l.s
	out.started = s.now()
	err := l.start(ctx)
	if errors.Is(err, child.ErrNoContainer) {
		s.beginLife(nil, op) // the client need not wait for the container
		if op != nil {
			s.operations.settle(op, nil)
			op = nil
		}
		for errors.Is(err, child.ErrNoContainer) {
			if !l.awaitContainer(ctx, out) {
				return false
			}
			out.started = s.now()
			err = l.start(ctx)
		}
		s.mu.Lock()
		s.kernel.setProcess(l.proc)
		s.showWaitingLocked()
		s.mu.Unlock()
	} else {
		s.beginLife(l.proc, op)
	}
	if op != nil {
		s.operations.settle(op, err)
	}
	if err == nil {
		return true
	}
	if errors.Is(err, child.ErrSilent) {
		s.held.leave() // the child may start it yet
	}
	out.reason, out.fatal = err.Error(), true
	if s.container != nil {
		l.endUnstarted(out)
	}
	return false
}

// start tries once to start the process.
func (l *life) start(ctx context.Context) (err error) {
	env, dir := l.s.assigning.settings()
	l.started, err = l.s.starter.Start(ctx, starter.Life{Env: env, Dir: dir, First: l.first(), Found: l.s.restore})
	if err == nil {
		l.proc = l.started.Process
	}
	return err
}

// first reports whether this supervisor has not run the kernel yet.
func (l *life) first() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return !l.s.kernel.everUp()
}

// beginLife begins a new life of the kernel in a new epoch. op is the restart that asked for it, or nil; the caller
// settles it.
func (s *Supervisor) beginLife(proc starter.Process, op *operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kernel.begin(proc)
	s.use.Computes = activity.Measures(&s.cfg.Cull)
	switch {
	case op != nil:
		s.use.Reset(api.Starting)
		s.kernel.death.seen = true // who restarts it gives up its variables
		// A client that returns after a requested restart reads only the new life's messages.
		s.clients.floor = s.log.Tail()
		for sess := range s.clients.sessions.All() {
			sess.Restart(s.clients.floor)
		}
	case s.use.State() == api.Restarting:
		s.use.Reset(api.Restarting)
	}
	s.showWaitingLocked()
}

// awaitContainer waits for a child. If none will come, it reports false and out has the reason.
func (l *life) awaitContainer(ctx context.Context, out *outcome) bool {
	s := l.s
	patience := nextContainer
	if l.first() {
		patience = firstContainer
	}
	operations, ended := s.operations.requested, ctx.Done()
	if s.cfg.SameMachine {
		// The child is there, and connects again soon. It may run a kernel, which can be stopped and restarted only then.
		operations, ended, patience = nil, nil, childPatience
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	for !s.container.Connected() {
		select {
		case <-s.container.Changed():
		case <-s.containerReported:
			s.mu.Lock()
			if s.kernel.waiting.Class == api.NeverClass {
				out.reason = s.kernel.waiting.Text
			}
			s.mu.Unlock()
			if out.reason != "" {
				out.fatal = true
				l.endUnstarted(out)
				return false
			}
			t.Reset(patience)
		case op := <-operations:
			if op.stop {
				out.op = op
				l.endUnstarted(out)
				return false
			}
			// The restart is done: earlier requests end, and the kernel starts with its container. If that still runs the
			// kernel of the previous supervisor, the starter ends it.
			s.starter.Replace()
			if l.first() {
				s.restore(starter.Restarted)
			}
			l.endUnstarted(&outcome{op: op})
			s.beginLife(nil, op)
			s.operations.settle(op, nil)
		case <-ended:
			out.op = stopBySignal()
			l.endUnstarted(out)
			return false
		case <-t.C:
			s.held.leave() // the child may run the kernel of an earlier supervisor
			out.reason, out.fatal = starter.PlaceOf(&s.cfg).Starter()+" was not there within "+patience.String(), true
			s.mu.Lock()
			if s.kernel.waiting.Text != "" {
				out.reason += ": " + s.kernel.waiting.Text
			}
			s.mu.Unlock()
			l.endUnstarted(out)
			return false
		}
	}
	return true
}

// endUnstarted ends the requests to a kernel that could not be started.
func (l *life) endUnstarted(out *outcome) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if out.op != nil {
		out.reason = out.op.reason
	}
	s.endRequestsLocked(out)
}
