package supervisor

import (
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/savedstate"
)

// TestRestoreUse_Monotonic: the times of a kernel have a reading of the monotonic clock, restored ones too. Otherwise a
// step of the wall clock would end kernels for their age or idleness.
func TestRestoreUse_Monotonic(t *testing.T) {
	s := New(api.Config{KernelID: testKernelID, LogLimit: 1 << 20}, "test", quiet())
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d).UTC().Round(0) }
	saved := savedstate.Use{SavedAt: ago(0), SinceBoot: s.sinceBoot(), Started: ago(5 * time.Hour),
		IdleSince: ago(3 * time.Hour), LongWork: ago(4 * time.Hour), Left: ago(2 * time.Hour)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if idle := s.use.Idle(); !monotonic(s.use.Started) || !monotonic(idle.Since) || !monotonic(s.use.LastActivity()) {
		t.Errorf("started %v, idle since %v, last activity %v", s.use.Started, idle.Since, s.use.LastActivity())
	}
	s.restoreUseLocked(saved, true)
	idle := s.use.Idle()
	for name, pair := range map[string][2]time.Time{
		"started": {s.use.Started, saved.Started}, "idle": {idle.Since, saved.IdleSince},
		"long work": {idle.LongWork, saved.LongWork}, "left": {s.use.Left, saved.Left}} {
		got, want := pair[0], pair[1]
		if !monotonic(got) {
			t.Errorf("%s: %v has no reading of the monotonic clock", name, got)
		}
		if d := got.Sub(want).Abs(); d > time.Second {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// TestRestoreUse_ClockSteps: a supervisor knows how long the kernel was idle before, whatever happens to the wall clock
// meanwhile. Users see the same last activity as before.
func TestRestoreUse_ClockSteps(t *testing.T) {
	// The kernel was idle for 3 hours when the state was saved, and for 2 more when it was read.
	const before, after = 3 * time.Hour, 2 * time.Hour
	begin := time.Now().Round(0)
	boot := 100 * time.Hour
	for name, tc := range map[string]struct {
		step, sinceBoot, idle time.Duration
	}{
		"no step":        {0, boot + after, before + after},
		"a step forward": {1000 * time.Hour, boot + after, before + after},
		"a step back":    {-1000 * time.Hour, boot + after, before + after},
		"another boot":   {0, time.Minute, before},
	} {
		t.Run(name, func(t *testing.T) {
			now := begin
			supervisor := func(sinceBoot time.Duration) *Supervisor {
				s := New(api.Config{KernelID: testKernelID, LogLimit: 1 << 20}, "test", quiet())
				s.now, s.sinceBoot = func() time.Time { return now }, func() time.Duration { return sinceBoot }
				s.use = activity.NewUse(s.now, &s.cfg.Cull)
				s.use.Ready()
				s.use.Started = now
				return s
			}
			first := supervisor(boot)
			first.use.Keeps = activity.Keeps{KeepUntil: begin.Add(time.Hour), KeepGPUUntil: begin.Add(2 * time.Hour)}
			now = begin.Add(before)
			first.mu.Lock()
			use := first.savedStateLocked().Use
			active := first.use.LastActivity()
			first.mu.Unlock()

			now = begin.Add(before + after + tc.step)
			second := supervisor(tc.sinceBoot)
			second.mu.Lock()
			defer second.mu.Unlock()
			second.restoreUseLocked(use, true)
			for what, since := range map[string]time.Time{"idle": second.use.Idle().Since, "started": second.use.Started} {
				if got := now.Sub(since); got != tc.idle {
					t.Errorf("%s %v ago, want %v", what, got, tc.idle)
				}
			}
			if second.use.Keeps != first.use.Keeps {
				t.Errorf("it is kept for %v, want %v", second.use.Keeps, first.use.Keeps)
			}
			if active.After(now) {
				active = now
			}
			if got := second.use.LastActivity(); !got.Equal(active) {
				t.Errorf("last activity is %v, want %v", got, active)
			}
		})
	}
}

// monotonic reports whether a time has a reading of the monotonic clock, which only its text shows.
func monotonic(t time.Time) bool { return strings.Contains(t.String(), " m=") }
