package supervisor

import (
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/savedstate"
)

// TestRestoreUse_Monotonic: the times of a kernel have a reading of the monotonic clock, restored ones too. Otherwise a
// step of the wall clock would end kernels for their age or idleness.
func TestRestoreUse_Monotonic(t *testing.T) {
	s := New(api.Config{KernelID: testKernelID, LogLimit: 1 << 20}, "test", quiet())
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d).UTC().Round(0) }
	saved := savedstate.Use{Started: ago(5 * time.Hour), IdleSince: ago(3 * time.Hour), LongWork: ago(4 * time.Hour),
		Left: ago(2 * time.Hour)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if idle := s.clock.Idle(); !monotonic(s.started) || !monotonic(idle.Since) || !monotonic(s.clock.LastActivity()) {
		t.Errorf("started %v, idle since %v, last activity %v", s.started, idle.Since, s.clock.LastActivity())
	}
	s.restoreUseLocked(saved, true)
	idle := s.clock.Idle()
	for name, pair := range map[string][2]time.Time{
		"started": {s.started, saved.Started}, "idle": {idle.Since, saved.IdleSince},
		"long work": {idle.LongWork, saved.LongWork}, "left": {s.lastLeft, saved.Left}} {
		got, want := pair[0], pair[1]
		if !monotonic(got) {
			t.Errorf("%s: %v has no reading of the monotonic clock", name, got)
		}
		if d := got.Sub(want).Abs(); d > time.Second {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// monotonic reports whether a time has a reading of the monotonic clock, which only its text shows.
func monotonic(t time.Time) bool { return strings.Contains(t.String(), " m=") }
