package supervisor

import (
	"context"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/connectionfile"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/routes"
)

const (
	firstContainer = time.Hour        // for a kernel's container to start, after the last report on it
	nextContainer  = 10 * time.Minute // for it to start again: the kubelet backs off for at most 5 minutes
	childPatience  = 15 * time.Second // for the child on the same machine to connect; it tries once a second at least
)

// place returns where the kernel's process runs.
func (s *Supervisor) place() process.Place {
	if s.cfg.ChildSocket == "" || s.cfg.SameMachine {
		return process.OnMachine
	}
	return process.InContainer
}

// SetWaiting implements routes.Kernel. An older version is ignored without an error.
func (s *Supervisor) SetWaiting(reported api.Waiting) error {
	if s.place() != process.InContainer {
		return routes.Error{Status: http.StatusNotFound, Text: "the kernel has no container of its own"}
	}
	s.mu.Lock()
	if reported.Version <= s.kernel.waiting.Version {
		s.mu.Unlock()
		return nil
	}
	s.kernel.waiting = reported
	s.timeline.pull(reported.Pulled, s.use.Started)
	s.showWaitingLocked()
	s.mu.Unlock()
	if reported.Class == api.DiedClass && reported.Text != "" {
		s.container.SetEndReason(reported.Text)
	}
	goroutines.Wake(s.containerReported)
	return nil
}

// showWaitingLocked updates the notices in waiting cells. Only the first cell of each session shows one, since the
// others wait for that cell.
func (s *Supervisor) showWaitingLocked() {
	text := s.kernel.waitingText(s.use.State())
	if text == "" {
		s.notices.Waiting.End("")
		return
	}
	for r := range s.clients.requests.Open() {
		if r.Executes() && r.Session != noSession {
			s.notices.Waiting.Add(r.Session, r.Header)
		}
	}
	s.notices.Waiting.Show("The kernel is not there yet: " + text)
}

// awaitContainer waits for a child. If none will come, it reports false and out has the reason.
func (s *Supervisor) awaitContainer(ctx context.Context, out *outcome) bool {
	patience := nextContainer
	s.mu.Lock()
	if !s.kernel.everUp() {
		patience = firstContainer
	}
	s.mu.Unlock()
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
			if out.reason = s.containerFailure(); out.reason != "" {
				out.fatal = true
				s.endUnstartedLife(out)
				return false
			}
			t.Reset(patience)
		case op := <-operations:
			if op.stop {
				out.op = op
				s.endUnstartedLife(out)
				return false
			}
			// The restart is done: earlier requests end, and the kernel starts with its container. If that still runs the
			// kernel of the previous supervisor, launchRemote ends it.
			s.replaces = true
			if s.firstLife() {
				s.restore(restarted)
			}
			s.endUnstartedLife(&outcome{op: op})
			s.beginLife(nil, op)
			s.operations.settle(op, nil)
		case <-ended:
			out.op = stopBySignal()
			s.endUnstartedLife(out)
			return false
		case <-t.C:
			s.held.leave() // the child may run the kernel of an earlier supervisor
			out.reason, out.fatal = s.place().Starter()+" was not there within "+patience.String(), true
			s.mu.Lock()
			if s.kernel.waiting.Text != "" {
				out.reason += ": " + s.kernel.waiting.Text
			}
			s.mu.Unlock()
			s.endUnstartedLife(out)
			return false
		}
	}
	return true
}

// containerFailure returns why the kernel's container will not come, or "".
func (s *Supervisor) containerFailure() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kernel.waiting.Class != api.NeverClass {
		return ""
	}
	return s.kernel.waiting.Text
}

// launchRemote makes the child start the kernel, or adopts the kernel that the child runs already.
func (s *Supervisor) launchRemote(ctx context.Context) (
	c connectionfile.Connection, p kernelProcess, adopted bool, err error,
) {
	if !s.container.Connected() {
		return c, nil, false, child.ErrNoContainer
	}
	if k := s.container.Inherited(); k != nil && s.replaces {
		s.endInherited(k)
	} else if k != nil && s.firstLife() {
		c, ok, err := connectionfile.Adopt(&s.cfg, k.ConnectionFile)
		if err != nil {
			return c, nil, false, err
		}
		if ok {
			s.restore(alive)
			return c, s.adoptKernel(k, &c), true, nil
		}
	}
	if s.firstLife() {
		s.restore(died)
	}
	if c, err = connectionfile.New(&s.cfg); err != nil {
		return c, nil, false, err
	}
	env, dir := s.assigning.settings()
	st := child.StartOptions{
		KernelID: s.cfg.KernelID, Argv: s.cfg.Argv, ImageKernelspec: s.cfg.ImageKernelspec,
		Env: env, WorkingDir: dir, ConnectionFile: c.File,
	}
	if s.cfg.SameMachine {
		st.ConnectionPath = s.cfg.ConnectionFile
		if err := files.Write(st.ConnectionPath, c.File); err != nil {
			return c, nil, false, fmt.Errorf("connection file: %w", err)
		}
	}
	e, err := s.expectLauncher(&st)
	if err != nil {
		return c, nil, false, err
	}
	r, err := s.container.Start(ctx, st)
	if err != nil {
		if e != nil {
			e.Close()
		}
		return c, nil, false, err
	}
	s.replaces = false
	if e == nil {
		return c, r, false, nil
	}
	s.expected = e
	return c, s.newLaunched(r), false, nil
}

// adoptKernel makes a kernel that the child runs already the present process.
func (s *Supervisor) adoptKernel(k *child.Kernel, c *connectionfile.Connection) kernelProcess {
	p := s.container.Adopt(k)
	if s.cfg.ResponseAddress == "" {
		return p
	}
	l := s.newLaunched(p)
	l.connected(c)
	return l
}

// endInherited ends the kernel of the previous supervisor, which is not connected.
func (s *Supervisor) endInherited(k *child.Kernel) {
	s.logger.Info("the kernel of the previous supervisor is replaced, as its restart was requested", logkey.PID, k.PID)
	p := s.container.Adopt(k)
	s.signal(p, syscall.SIGTERM)
	if waitFor(p.Done(), s.cfg.StopGrace) {
		return
	}
	p.Kill()
	<-p.Done()
}
