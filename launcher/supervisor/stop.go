package supervisor

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/routes"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/starter"
)

const (
	// launchedGrace is how long a kernel with a launcher has to end after shutdown_request, unless freeOfListener has
	// succeeded. Enterprise Gateway gives it no time.
	launchedGrace = 2 * time.Second

	// freeLimit bounds freeOfListener: for an idle kernel to run reapListener.
	freeLimit = time.Second
)

// reapListener waits until a child of a Python kernel has ended, for half a second, and reaps those that have. It
// leaves no name in the kernel's namespace.
const reapListener = `(lambda m: (m.connection.wait([p.sentinel for p in m.active_children()], 0.5), ` +
	`m.active_children()))(__import__('multiprocessing.connection')) and None`

// Interrupt interrupts the kernel, by SIGINT to its process group or by interrupt_request on control.
func (s *Supervisor) Interrupt() error {
	s.mu.Lock()
	proc := s.kernel.process
	if proc != nil {
		s.timeline.Add(s.nowLocked(), api.TimelineInterrupted, "")
		s.clients.passFailed(nil)
	}
	if proc != nil && s.parker.Interrupt() {
		s.mu.Unlock()
		return nil
	}
	if proc != nil && interruptMode(&s.cfg, proc) == "message" {
		// Through the gate: a kernel that does not read must not block the caller.
		defer s.mu.Unlock()
		m := jupyter.New(jupyter.Control, "interrupt_request", s.own.session, nil, struct{}{})
		return s.kernel.gates[jupyter.Control].Push(m, nil)
	}
	s.mu.Unlock()
	if proc == nil {
		return routes.ErrNotRunning
	}
	switch err := proc.Signal(syscall.SIGINT); { // what Ctrl-C does in a terminal
	case errors.Is(err, child.ErrNoContainer):
		return routes.ErrNotRunning
	case err != nil && !errors.Is(err, os.ErrProcessDone):
		return err
	}
	return nil
}

// ExpectCell notes a sign that a cell will follow, as when a user types. See parker.Parker.ExpectCell.
func (s *Supervisor) ExpectCell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parker.ExpectCell()
}

// interruptMode returns how the kernel is interrupted. A kernelspec that was found in the kernel's image decides before
// the Config.
func interruptMode(cfg *api.Config, proc starter.Process) string {
	if mode := proc.InterruptMode(); mode != "" {
		return mode
	}
	return cfg.InterruptMode
}

// interruption is what a stop or restart has interrupted. Until the process has ended, failed replies of cells are
// withheld, and so are their idles: the supervisor then answers these cells with the reason of the end. What the cells
// print is passed on. Supervisor.mu guards it. Its methods may be called if nothing was interrupted: it is nil then.
type interruption struct {
	rested chan struct{}              // closed when the kernel works on no request
	idled  map[*requests.Request]bool // cells whose idle is withheld; their reply has not come
	idle   func(*requests.Request)    // ends a cell whose idle was withheld
}

// stopProcess asks a kernel to end, kills it if it does not, and returns when its process has ended. A kernel that
// works on a request is interrupted first, so that its code can clean up: in Python, finally and atexit run.
func (l *life) stopProcess(restart bool) {
	s, proc := l.s, l.proc
	s.mu.Lock()
	b := s.kernel.bridge
	s.kernel.stopping = true
	s.mu.Unlock()
	if s.container != nil {
		s.container.AwaitNoReason()
	}
	if b != nil {
		sigterm := time.Now().Add(s.cfg.StopGrace)
		if l.interruptRunning(b) {
			return
		}
		freed := make(chan struct{}) // closed if nothing of the kernel's launcher delays its end
		// In the background: a kernel that does not read must not delay the signals.
		b.wg.Go(func() {
			if l.freeOfListener(b) {
				close(freed)
			}
			if err := b.request(jupyter.Control, "shutdown_request", map[string]bool{"restart": restart}); err != nil {
				b.fail(err)
			}
			starter.EndListener(proc)
		})
		if starter.IsLaunched(proc) && time.Until(sigterm) > launchedGrace {
			brief := time.NewTimer(launchedGrace)
			defer brief.Stop()
			select {
			case <-freed:
			case <-proc.Done():
			case <-brief.C:
				sigterm = time.Now()
			}
		}
		if goroutines.Within(proc.Done(), time.Until(sigterm)) {
			return
		}
	}
	s.starter.Signal(proc, syscall.SIGTERM)
	if goroutines.Within(proc.Done(), s.cfg.StopGrace) {
		return
	}
	proc.Kill()
	<-proc.Done()
}

// interruptRunning interrupts the requests that the kernel works on, and waits until they end, for half of StopGrace.
// An idle kernel gets no interrupt. interruptRunning reports whether the process has ended.
func (l *life) interruptRunning(b *bridge) (ended bool) {
	s, proc := l.s, l.proc
	s.mu.Lock()
	if !s.use.Works() {
		s.mu.Unlock()
		return false
	}
	i := &interruption{rested: make(chan struct{}), idled: map[*requests.Request]bool{},
		idle: func(r *requests.Request) {
			r.Idled = true
			s.log.Append(allSessions, s.notices.State(api.Idle, r.Header), true)
		}}
	s.kernel.interruption = i
	s.mu.Unlock()
	if interruptMode(&s.cfg, proc) == "message" {
		b.wg.Go(func() {
			if err := b.request(jupyter.Control, "interrupt_request", struct{}{}); err != nil {
				b.fail(err)
			}
		})
	} else {
		s.starter.Signal(proc, syscall.SIGINT)
	}
	t := time.NewTimer(s.cfg.StopGrace / 2)
	defer t.Stop()
	select {
	case <-proc.Done():
		return true
	case <-i.rested:
	case <-t.C:
	}
	return false
}

// freeOfListener ends the listener of a launcher for Python, and reports whether the kernel has reaped it. Before it
// ends, ipykernel asks its children to end. It waits half a minute for those that it does not reap, and the listener is
// such a child. A kernel that is busy, or is not in Python, is left alone.
func (l *life) freeOfListener(b *bridge) bool {
	s := l.s
	if !starter.HasListener(l.proc) {
		return false
	}
	s.mu.Lock()
	able := b.ready && !s.use.Works() && isPython(s.kernel.info) == nil
	s.mu.Unlock()
	if !able {
		return false
	}
	starter.EndListener(l.proc)
	ctx, cancel := context.WithTimeout(context.Background(), freeLimit)
	defer cancel()
	reply, err := s.own.execute(ctx, b, reapListener)
	if err != nil || jupyter.StringField(reply, "status") != "ok" {
		s.logger.Info("the kernel has not reaped its launcher's listener; its end takes longer", logkey.Err, err)
		return false
	}
	return true
}

// noteRest wakes interruptRunning when the kernel works on no request any more.
func (i *interruption) noteRest(works bool) {
	if i == nil || works {
		return
	}
	select {
	case <-i.rested:
	default:
		close(i.rested)
	}
}

// withholdsReply reports whether the kernel's reply to r is withheld. A cell that has succeeded gets its reply, and the
// idle that was withheld before.
func (i *interruption) withholdsReply(r *requests.Request, m *jupyter.Message) bool {
	if i == nil || !r.Executes() {
		return false
	}
	if jupyter.StringField(m.Content, "status") != "ok" {
		return true
	}
	if i.idled[r] {
		i.idle(r)
	}
	return false
}

// withholdsIdle reports whether the idle of r is withheld. r may be nil.
func (i *interruption) withholdsIdle(r *requests.Request) bool {
	if i == nil || r == nil || !r.Executes() || r.Replied {
		return false
	}
	i.idled[r] = true
	return true
}
