package supervisor

import (
	"net/http"
	"os"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/logstream"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/routes"
)

var _ routes.Kernel = (*Supervisor)(nil)

// Handler serves the kernel's routes. See routes.New.
func (s *Supervisor) Handler() http.Handler {
	return routes.New(s, routes.Options{KernelID: s.cfg.KernelID, Token: s.cfg.Token, Logger: s.logger,
		Source: logstream.Source{Log: s.log, Over: s.over, Ended: s.ended, Patience: s.logPatience}})
}

// ended reports whether the kernel is dead, though it may still be started again, or gone for good.
func (s *Supervisor) ended() bool {
	select {
	case <-s.over:
		return true
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.use.State() == api.Dead
}

// Model implements routes.Kernel.
func (s *Supervisor) Model() api.Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := api.Model{
		ID:             s.cfg.KernelID,
		Name:           s.cfg.SpecName,
		LastActivity:   s.use.LastActivity().UTC().Format(api.TimeFormat),
		ExecutionState: s.use.State(),
		Connections:    s.clients.sessions.Counted(),
		Reason:         s.kernel.shownReason(s.use.State()),
	}
	m.LastDeath, m.Parked = s.kernel.death.Death, s.parker.Shown(s.use.Kept().KeepGPUUntil)
	m.GPU, m.Memory = s.use.Held(), s.kernel.memory().Bytes
	m.CullAt = api.OptionalTimestamp(s.use.Plan(s.clients.sessions.Active() > 0).At)
	m.KeepUntil = api.OptionalTimestamp(s.use.Kept().KeepUntil)
	return m
}

// Status returns the status and a channel that is closed at its next change.
func (s *Supervisor) Status() (api.Status, <-chan struct{}) {
	size, limit := s.log.Sizes()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.use.GPUs.Park(s.parker.Away(), s.now())
	st := api.Status{
		Protocol:     api.ProtocolVersion,
		Build:        s.build,
		KernelID:     s.cfg.KernelID,
		PID:          os.Getpid(),
		Epoch:        s.kernel.epoch,
		State:        s.use.State(),
		Reason:       s.kernel.shownReason(s.use.State()),
		LastActivity: s.use.LastActivity().UTC(),
		Computes:     s.use.Computes,
		NodeNotice:   s.kernel.node,
		Connections:  s.clients.sessions.Counted(),
		CullAt:       s.use.Plan(s.clients.sessions.Active() > 0).At.UTC(),
		KeepUntil:    s.use.Kept().KeepUntil,
		LogBytes:     size,
		LogLimit:     limit,
		Counts:       s.traffic.Read(),
		GPU:          s.use.Held(),
		GPUUse:       s.use.GPUs.Sum,
		GPUs:         len(s.cfg.GPUSamples.Devices),
		Started:      s.use.Started.UTC(),
		Warm:         s.assigning.warm,
		Memory:       s.kernel.memory().Bytes,
		LastDeath:    s.kernel.death.Death,
		Parked:       s.parker.Shown(s.use.Kept().KeepGPUUntil),
	}
	if s.shared != nil {
		st.Seat = new(s.shared.Say(st.GPU))
	}
	st.Counts.LogEvicted, st.Counts.Wakes = s.log.Evicted(), s.parker.Wakes()
	if s.kernel.adopted && !s.inherited.Left {
		st.Counts.Failed = 1
	}
	if s.kernel.process != nil {
		st.KernelPID = s.kernel.process.PID()
	}
	if s.cfg.SameMachine {
		st.ParentPID = os.Getppid()
	}
	return st, s.change
}
