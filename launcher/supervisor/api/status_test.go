package api

import (
	"testing"
	"time"
)

func TestPacer(t *testing.T) {
	now := time.Unix(1, 0)
	var p pacer
	for round := range 2 {
		for i := range statusBurst {
			want := time.Duration(0)
			if i == statusBurst-1 {
				want = statusPause
			}
			if got := max(p.wrote(now), 0); got != want {
				t.Errorf("round %d: after line %d the next one waits %s, want %s", round, i+1, got, want)
			}
		}
		for range 3 {
			now = now.Add(statusPause)
			if got := p.wrote(now); got != statusPause {
				t.Errorf("round %d: in a flood a line waits %s, want %s", round, got, statusPause)
			}
		}
		now = now.Add(statusBurst * statusPause)
	}
}
