package supervisor

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/history"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/starter"
)

// memoryPause is the least time between two measurements of memory at ends of cells. Then the supervisor is awake: an
// idle one is not woken for it.
const memoryPause = 30 * time.Second

// memoryReadPause is the least time between two measurements for requests. Every user who sees the kernel may send
// them, and in a pod a measurement delays the signals that follow it.
const memoryReadPause = time.Second

// earlierUnknown is what the first event of an adopted or a replaced kernel says.
const earlierUnknown = "Earlier events are not known: the program that keeps them was started again."

// timeline records the kernel's life for its users. It is handed what has happened. Supervisor.mu guards it.
type timeline struct {
	history.History
	memoryDue chan struct{} // fixed; capacity 1: a cell has ended, and memory may be measured

	replaced    bool      // an earlier supervisor has run the kernel
	takesOver   bool      // that supervisor's kernel lives, and becomes the kernel's process
	memoryAsked time.Time // when its memory was last measured at the end of a cell
	memoryRead  time.Time // when its memory was last measured for a request
}

func newTimeline(started time.Time) timeline {
	return timeline{History: history.New(started), memoryDue: make(chan struct{}, 1)}
}

// fate begins the timeline of a kernel that an earlier supervisor has started.
func (t *timeline) fate(at time.Time, kernel starter.Fate) {
	t.replaced = true
	switch kernel {
	case starter.Lives:
		t.takesOver = true
		t.Add(at, api.TimelineAdopted, earlierUnknown)
	case starter.Died:
		t.Add(at, api.TimelineDied,
			"It ended while the program that keeps its events was away. Earlier events are not known.")
	case starter.Restarted: // its next process is recorded
	}
}

// owner begins the timeline of a warm kernel again when it gets its owner. A process that runs already has answered.
func (t *timeline) owner(started time.Time, runs bool) {
	t.History = history.New(started)
	if runs {
		t.Add(started, api.TimelineStarted, "It was started before it had an owner.")
		t.Add(started, api.TimelineReady, "")
	}
}

// pull adds the pull of an image, once. The cluster may report it after the container has started. A pull for a warm
// kernel that had no owner yet is ignored. The cluster's times are whole seconds.
func (t *timeline) pull(p *api.Pull, started time.Time) {
	if p == nil || p.At.Add(time.Second).Before(started) {
		return
	}
	text := p.Image
	if p.Took > 0 {
		text += " in " + p.Took.Round(100*time.Millisecond).String()
	}
	t.AddNewAt(p.At, api.TimelinePulled, text)
}

// record adds what has changed between two commits.
func (t *timeline) record(at time.Time, before, now *statusFacts) {
	if now.process != nil && now.process != before.process {
		switch {
		case t.takesOver:
			t.takesOver = false // fate has recorded it
		case now.epoch > 1 && t.replaced && t.Empty():
			t.Add(at, api.TimelineRestarted, earlierUnknown)
		case now.epoch > 1:
			t.Add(at, api.TimelineRestarted, "")
		default:
			t.Add(at, api.TimelineStarted, "")
		}
	}
	if now.state != before.state {
		t.Busy(at, now.state == api.Busy)
		if now.state == api.Idle && at.Sub(t.memoryAsked) >= memoryPause {
			t.memoryAsked = at
			goroutines.Wake(t.memoryDue)
		}
		was := before.state == api.Starting || before.state == api.Restarting
		switch {
		case now.state == api.Dead:
			t.Add(at, api.TimelineDead, now.reason)
		case was && (now.state == api.Idle || now.state == api.Busy):
			t.Add(at, api.TimelineReady, "")
		}
	}
	if now.waiting != before.waiting && now.waiting != "" {
		t.AddNew(at, api.TimelineWaiting, now.waiting)
	}
	if now.reason != before.reason && now.reason != "" && now.state != api.Dead {
		t.AddNew(at, api.TimelineWarning, now.reason)
	}
	if now.silent && !before.silent {
		t.AddNew(at, api.TimelineWarning, silentReason)
	}
	if now.node != before.node && now.node != "" {
		t.AddNew(at, api.TimelineWarning, now.node)
	}
	if !now.keeps.KeepUntil.Equal(before.keeps.KeepUntil) {
		text := "no longer"
		if !now.keeps.KeepUntil.IsZero() {
			text = "until " + api.ShownTime(now.keeps.KeepUntil)
		}
		t.Add(at, api.TimelineKept, text)
	}
}

// measures reports whether memory is to be measured for a request, and notes that it is.
func (t *timeline) measures(at time.Time) bool {
	due := at.Sub(t.memoryRead) >= memoryReadPause
	if due {
		t.memoryRead = at
	}
	return due
}

// Timeline implements routes.Kernel. Every user who sees the kernel may read it.
func (s *Supervisor) Timeline() api.Timeline {
	s.mu.Lock()
	proc := s.kernel.process
	measures := proc != nil && s.timeline.measures(s.now())
	s.mu.Unlock()
	if measures {
		proc.MeasureMemory()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.timeline.Timeline(s.now())
	used := s.kernel.memory()
	t.Memory, t.MemoryAt = used.Bytes, used.At.UTC()
	return t
}
