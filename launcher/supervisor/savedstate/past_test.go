package savedstate

import (
	"testing"
	"time"
)

// TestPast: the time since a save is measured by the clock since boot, whatever the wall clock shows. A machine that
// was booted meanwhile ends no kernel early.
func TestPast(t *testing.T) {
	now := time.Now()
	saved := now.Add(-time.Hour).UTC()
	began := saved.Add(-time.Hour)
	for name, tc := range map[string]struct {
		use       Use
		sinceBoot time.Duration
		want      time.Duration // since began
	}{
		"no step": {Use{SavedAt: saved, SinceBoot: time.Minute}, time.Hour + time.Minute, 2 * time.Hour},
		"a step":  {Use{SavedAt: saved, SinceBoot: time.Minute}, 11 * time.Minute, 70 * time.Minute},
		"a boot":  {Use{SavedAt: saved, SinceBoot: 5 * time.Hour}, time.Minute, time.Hour},
	} {
		p := NewPast(tc.use, now, tc.sinceBoot)
		if got := now.Sub(p.At(began)); (got - tc.want).Abs() > time.Millisecond {
			t.Errorf("%s: it began %v ago, not %v", name, got, tc.want)
		}
		if at := p.At(now.Add(time.Hour)); at.After(now) {
			t.Errorf("%s: a time in the future is %v", name, at)
		}
		if at := p.Shown(saved); !at.Equal(saved) {
			t.Errorf("%s: %v is shown as %v", name, saved, at)
		}
	}
	if !NewPast(Use{SavedAt: saved}, now, 0).At(time.Time{}).IsZero() {
		t.Error("a time that is not set is set")
	}
}
