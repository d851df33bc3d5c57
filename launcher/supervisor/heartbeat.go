package supervisor

import (
	"context"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/zeromq"
)

// heartbeatInterval is the time between two heartbeats. One that is not answered for two intervals is missed.
const heartbeatInterval = 30 * time.Second

// silentReason is the reason of a kernel that answers no heartbeat, although no cell keeps it from that. Most kernels
// answer from a thread that user code does not block. Some have one thread, so that they answer between cells only.
const silentReason = "the kernel's process does not respond: it may be stopped, or the machine may be out of memory"

// keepBeating asks on the heartbeat channel until ctx ends. The answers only decide the reason that users are shown. A
// kernel whose heartbeat is broken still works, and is not ended.
func (b *bridge) keepBeating(ctx context.Context) {
	h := zeromq.Heartbeat{Endpoint: b.hb, Interval: b.beat, Limits: bridgeLimits,
		Answered: func(asked time.Time) (missed func()) { return b.answered(b, asked) },
		Failed: func(err error) {
			b.complain("heartbeat", "kernel's heartbeat cannot be reached", logkey.Err, err)
		}}
	h.Run(ctx)
}

// heartbeatAnswered notes that the kernel's process responds. missed is called if the next heartbeat is not answered in
// time. A call that comes too late does nothing.
func (s *Supervisor) heartbeatAnswered(b *bridge, asked time.Time) (missed func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.beats++
	n := b.beats
	cell := ""
	if r := s.clients.runningCell(); r != nil && s.use.BusySince(r.ID, r.Type).Before(asked) {
		cell = r.ID
	}
	// Two answers in the same cell prove it. One does not: it may have been sent at the cell's end, and have overtaken the
	// last status.
	s.kernel.pulse.inCells = s.kernel.pulse.inCells || cell != "" && cell == b.beatCell
	b.beatCell = cell
	note := func(missed bool) {
		if s.kernel.bridge == b && s.kernel.pulse.missed != missed {
			s.kernel.pulse.missed = missed
			s.logger.Warn("kernel's heartbeat", logkey.Answered, !missed)
		}
	}
	note(false)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if b.beats == n && !s.kernel.mayBeDeaf(s.use.State()) {
			note(true)
		}
	}
}

// pulse is what heartbeats have told about the kernel's process.
type pulse struct {
	missed  bool // it answers no heartbeat
	inCells bool // it has answered heartbeats while a cell ran
}
