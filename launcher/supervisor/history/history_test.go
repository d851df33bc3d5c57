package history

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// TestHistory_Events: the first and the last events stay, and their number is bounded.
func TestHistory_Events(t *testing.T) {
	h := New(begin)
	for i := range 3 * MaxEvents {
		h.Add(begin.Add(time.Duration(i)*time.Second), api.TimelineWarning, fmt.Sprint(i))
	}
	line := h.Timeline(begin)
	if len(line.Events) != MaxEvents || line.Dropped != 2*MaxEvents || line.Events[keptFirst-1].Text != "7" ||
		line.Events[keptFirst].Text != fmt.Sprint(2*MaxEvents+keptFirst) ||
		line.Events[MaxEvents-1].Text != fmt.Sprint(3*MaxEvents-1) {
		t.Errorf("got %d events, %d dropped: %+v", len(line.Events), line.Dropped, line.Events)
	}
}

// TestHistory_AddNew: the same warning again is one event, unless another one was between them.
func TestHistory_AddNew(t *testing.T) {
	h := New(begin)
	for _, text := range []string{"a", "a", "b", "a"} {
		h.AddNew(begin, api.TimelineWarning, text)
		h.Add(begin, api.TimelineReady, "")
	}
	got := ""
	for _, e := range h.Timeline(begin).Events {
		got += e.Text
	}
	if got != "aba" {
		t.Errorf("got %q", got)
	}
}

// TestHistory_Busy: however long the kernel lives and however often it is busy, the steps are bounded, and no busy time
// is lost or moved further than a step.
func TestHistory_Busy(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		h, at, busy, want := New(begin), begin, false, 0.0
		for range random.IntN(2000) {
			next := at.Add(time.Duration(random.ExpFloat64() * float64(time.Minute)))
			if busy {
				want += next.Sub(at).Seconds()
			}
			at, busy = next, !busy
			h.Busy(at, busy)
		}
		line := h.Timeline(at)
		sum := 0.0
		for _, s := range line.Busy {
			if s < 0 || s > line.Step+0.001 {
				t.Fatalf("a step of %v s has %v s", line.Step, s)
			}
			sum += s
		}
		if len(line.Busy) > steps || math.Abs(sum-want) > 0.001*float64(len(line.Busy)+1) ||
			float64(len(line.Busy))*line.Step < at.Sub(begin).Seconds() {
			t.Fatalf("%d steps of %v s with %v s, want %v s", len(line.Busy), line.Step, sum, want)
		}
	}
	h := New(begin)
	h.Busy(begin.Add(2*time.Second), true)
	h.Busy(begin.Add(4500*time.Millisecond), false)
	if got := fmt.Sprint(h.Timeline(begin.Add(6 * time.Second)).Busy); got != "[0 0 1 1 0.5 0]" {
		t.Errorf("got %s", got)
	}
	h.Busy(begin.Add(10*time.Second), true)
	h.Busy(begin.Add(5*time.Second), false) // the clock was set back
	h.Timeline(begin.Add(11 * time.Second))
}
