package follow

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Supervisor holds what is known of a kernel's supervisor from its status streams. Options.Lock guards it, and callers
// of its methods hold that lock.
type Supervisor struct {
	Status      api.Status // the last status that was received
	HasStatus   bool       // a status was received
	Streaming   bool       // Status is being kept up to date
	Unsupported string     // a sentence, if the supervisor lives and this gateway cannot speak to it
	Refused     time.Time  // when the last attempt has found it Unsupported
	Lost        time.Time  // when the last stream ended; zero while Streaming, and before the first status

	stream  *stream       // nil: it is not followed
	died    time.Time     // the last death that was seen
	counted api.Counts    // the last counts that any supervisor of the kernel has reported
	changed chan struct{} // closed at the next change
}

// NewSupervisor returns a Supervisor that has no status yet.
func NewSupervisor() Supervisor { return Supervisor{changed: make(chan struct{})} }

// ChangedLocked wakes all callers that wait for a change of the supervisor or of its kernel.
func (s *Supervisor) ChangedLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// FollowedLocked reports whether a goroutine follows the supervisor.
func (s *Supervisor) FollowedLocked() bool { return s.stream != nil }

// TriedLocked reports whether a caller should not wait for a first status: the supervisor is not followed, or an
// attempt to reach it has failed.
func (s *Supervisor) TriedLocked() bool { return s.stream == nil || s.stream.failed }

// LeaveLocked stops following the supervisor. Later statuses of its stream are ignored.
func (s *Supervisor) LeaveLocked() {
	s.stream, s.Streaming = nil, false
}

// ForgetLocked stops following the supervisor and forgets its status, because the kernel gets another supervisor. The
// counts and the last death stay known.
func (s *Supervisor) ForgetLocked() {
	*s = Supervisor{died: s.died, counted: s.counted, changed: s.changed}
}

// SaysLocked reports whether the last status has one of the states.
func (s *Supervisor) SaysLocked(states ...api.State) bool {
	for _, state := range states {
		if s.HasStatus && s.Status.State == state {
			return true
		}
	}
	return false
}

// DescribeLocked writes what the supervisor has reported into d, which is a new description: its State is Starting, and
// its LastActivity is the kernel's creation. If ended, the kernel has ended, and reason says why.
func (s *Supervisor) DescribeLocked(d *launcher.Kernel, ended bool, reason string) {
	d.Stale = !s.Streaming
	if s.HasStatus {
		d.State, d.Reason = api.StateOf(s.Status.State), s.Status.Reason
		d.Connections, d.LogBytes = s.Status.Connections, s.Status.LogBytes
		d.CullAt, d.KeepUntil, d.Memory = s.Status.CullAt, s.Status.KeepUntil, s.Status.Memory
		d.LastDeath, d.Parked = s.Status.LastDeath, s.Status.Parked
		d.GPU, d.GPUUse = s.Status.GPU, s.Status.GPUUse
		d.LastActivity = s.later(d.LastActivity)
	}
	switch {
	case ended:
		d.State, d.Reason, d.Stale, d.Connections, d.LogBytes = api.Dead, reason, false, 0, 0
		d.CullAt, d.KeepUntil, d.GPU, d.Memory, d.Parked = time.Time{}, time.Time{}, nil, 0, api.Parked{}
	case s.Unsupported != "":
		// It may be in use. A client that culls takes only a busy kernel, or one with a recent activity, for used.
		d.State, d.Reason, d.Stale = api.Unknown, s.Unsupported, true
		if s.Refused.After(d.LastActivity) {
			d.LastActivity = s.Refused.UTC()
		}
	case !s.HasStatus:
		d.Reason = "its supervisor has not answered this gateway yet"
	}
}

// HeldLocked writes the supervisor's last status into h.
func (s *Supervisor) HeldLocked(h *launcher.Held) {
	if s.HasStatus {
		h.State = api.StateOf(s.Status.State)
		h.LastActivity = s.later(h.LastActivity)
	}
}

// later returns the later one of at and the last activity that the supervisor has reported. The latter is in UTC.
func (s *Supervisor) later(at time.Time) time.Time {
	if s.Status.LastActivity.After(at) {
		return s.Status.LastActivity.UTC()
	}
	return at
}
