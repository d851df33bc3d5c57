package supervisor

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/history"
)

// memoryPause is the least time between two measurements of memory at ends of cells. Then the supervisor is awake: an
// idle one is not woken for it.
const memoryPause = 30 * time.Second

// memoryReadPause is the least time between two measurements for requests. Every user who sees the kernel may send
// them, and in a pod a measurement delays the signals that follow it.
const memoryReadPause = time.Second

// earlierUnknown is what the first event of an adopted or a replaced kernel says.
const earlierUnknown = "Earlier events are not known: the program that keeps them was started again."

// recordFateLocked begins the timeline of a kernel that an earlier supervisor has started.
func (s *Supervisor) recordFateLocked(kernel fate) {
	switch kernel {
	case alive:
		s.takesOver = true
		s.history.Add(s.nowLocked(), api.TimelineAdopted, earlierUnknown)
	case died:
		s.history.Add(s.nowLocked(), api.TimelineDied,
			"It ended while the program that keeps its events was away. Earlier events are not known.")
	case restarted: // its next process is recorded
	}
}

// recordOwnerLocked begins the timeline of a warm kernel again when it gets its owner. A process that runs already has
// answered.
func (s *Supervisor) recordOwnerLocked() {
	s.history = history.New(s.use.Started)
	if s.kernel.process != nil {
		s.history.Add(s.use.Started, api.TimelineStarted, "It was started before it had an owner.")
		s.history.Add(s.use.Started, api.TimelineReady, "")
	}
}

// recordPullLocked adds the pull of an image, once. The cluster may report it after the container has started. A pull
// for a warm kernel that had no owner yet is ignored. The cluster's times are whole seconds.
func (s *Supervisor) recordPullLocked(p *api.Pull) {
	if p == nil || p.At.Add(time.Second).Before(s.use.Started) {
		return
	}
	text := p.Image
	if p.Took > 0 {
		text += " in " + p.Took.Round(100*time.Millisecond).String()
	}
	s.history.AddNewAt(p.At, api.TimelinePulled, text)
}

// recordLocked adds what has changed between two commits to the kernel's timeline.
func (s *Supervisor) recordLocked(before, now *statusFacts) {
	at, h := s.nowLocked(), &s.history
	if now.process != nil && now.process != before.process {
		switch {
		case s.takesOver:
			s.takesOver = false // restore has recorded it
		case now.epoch > 1 && s.kernel.adopted && h.Empty():
			h.Add(at, api.TimelineRestarted, earlierUnknown)
		case now.epoch > 1:
			h.Add(at, api.TimelineRestarted, "")
		default:
			h.Add(at, api.TimelineStarted, "")
		}
	}
	if now.state != before.state {
		h.Busy(at, now.state == api.Busy)
		if now.state == api.Idle && at.Sub(s.memoryAsked) >= memoryPause {
			s.memoryAsked = at
			goroutines.Wake(s.memoryDue)
		}
		was := before.state == api.Starting || before.state == api.Restarting
		switch {
		case now.state == api.Dead:
			h.Add(at, api.TimelineDead, now.reason)
		case was && (now.state == api.Idle || now.state == api.Busy):
			h.Add(at, api.TimelineReady, "")
		}
	}
	if now.waiting != before.waiting && now.waiting != "" {
		h.AddNew(at, api.TimelineWaiting, now.waiting)
	}
	if now.reason != before.reason && now.reason != "" && now.state != api.Dead {
		h.AddNew(at, api.TimelineWarning, now.reason)
	}
	if now.silent && !before.silent {
		h.AddNew(at, api.TimelineWarning, silentReason)
	}
	if now.node != before.node && now.node != "" {
		h.AddNew(at, api.TimelineWarning, now.node)
	}
	if !now.keepUntil.Equal(before.keepUntil) {
		text := "no longer"
		if !now.keepUntil.IsZero() {
			text = "until " + shownTime(now.keepUntil)
		}
		h.Add(at, api.TimelineKept, text)
	}
}

// Timeline implements routes.Kernel. Every user who sees the kernel may read it.
func (s *Supervisor) Timeline() api.Timeline {
	s.mu.Lock()
	proc, now := s.kernel.process, s.now()
	measures := proc != nil && now.Sub(s.memoryRead) >= memoryReadPause
	if measures {
		s.memoryRead = now
	}
	s.mu.Unlock()
	if measures {
		proc.MeasureMemory()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.history.Timeline(s.now())
	used := s.kernel.memory()
	t.Memory, t.MemoryAt = used.Bytes, used.At.UTC()
	return t
}
