package savedstate

import "time"

// clockStep is the least difference between clocks that counts as a step of the wall clock. Without a step, users see
// exactly the same times as before: two clocks are never read at the same moment.
const clockStep = time.Second

// Time returns a time for the saved state. If the wall clock has stepped since t, it returns the present wall time
// minus the time that has passed by the monotonic clock.
func Time(t, now time.Time) time.Time {
	passed, shown := now.Sub(t), now.Round(0).Sub(t.Round(0))
	if t.IsZero() || (passed-shown).Abs() < clockStep {
		return t.UTC()
	}
	return now.Add(-passed).UTC()
}

// Past turns times that the previous supervisor has saved into times of this supervisor's clock.
//
// The wall clock may have stepped since. So the time from the save until now is measured by the clock since boot, which
// both supervisors share. After a boot that clock is younger. It then shows less time than has passed, or none, so that
// no kernel is ended early.
type Past struct {
	Now     time.Time // of this supervisor
	savedAt time.Time
	since   time.Duration // from savedAt to now
}

// NewPast returns the Past of a kernel's saved use. sinceBoot is now by the clock that SinceBoot has shown.
func NewPast(u Use, now time.Time, sinceBoot time.Duration) Past {
	p := Past{Now: now, savedAt: u.SavedAt, since: max(0, sinceBoot-u.SinceBoot)}
	if shown := now.Sub(u.SavedAt); (p.since - shown).Abs() < clockStep {
		p.since = shown
	}
	return p
}

// At returns a saved time with a reading of the monotonic clock. From then on a step of the wall clock makes no kernel
// older, or idle for longer. The time is never in the future.
func (p Past) At(saved time.Time) time.Time {
	if saved.IsZero() {
		return saved
	}
	return p.Now.Add(min(0, saved.Sub(p.savedAt)-p.since))
}

// Shown returns a saved time as the wall clock showed it: users see the same time as before.
func (p Past) Shown(saved time.Time) time.Time { return Past{Now: p.Now, savedAt: p.Now}.At(saved) }
