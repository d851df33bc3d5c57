package gpu

import "time"

// Tally is what samples have shown. Its zero value has seen none. The sums are in seconds of all devices together: a
// second in which one of two devices computes adds half a second.
type Tally struct {
	Devices  []Sample      // in the last line
	Error    string        // of the last line
	At       time.Time     // of the last line; zero: there was none
	Measured time.Duration // for which it is known whether the devices computed
	Busy     time.Duration // in which they computed
}

// Add adds a line that was received at a time. Its seconds count at most as the time since the line before, or since
// began for the first one: another program has written them.
func (t *Tally) Add(s Samples, began, now time.Time) {
	last := t.At
	if last.IsZero() {
		last = began
	}
	passed := max(0, min(time.Duration(s.Seconds*float64(time.Second)), now.Sub(last)))
	var known, busy float64
	for _, d := range s.Devices {
		if d.Utilization != nil {
			known, busy = known+1, busy+*d.Utilization
		}
	}
	if n := float64(len(s.Devices)); n > 0 {
		t.Measured += time.Duration(known / n * float64(passed))
		t.Busy += time.Duration(busy / n * float64(passed))
	}
	t.Devices, t.Error, t.At = s.Devices, s.Error, now
}
