package api

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The sum of what supervisors count never decreases, and is all that they have counted since the sum began, whichever
// come and go.
func TestTally(t *testing.T) {
	began := time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		tally := NewTally(began)
		heard, now := map[int]Counts{}, map[int]Counts{}
		for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
			kernel := rapid.IntRange(0, 3).Draw(t, "kernel")
			at := began.Add(time.Duration(step+1) * time.Second)
			switch rapid.SampledFrom([]string{"old", "new", "count", "count", "count", "say", "say"}).Draw(t, "what") {
			case "old": // one that was there before
				if _, ok := now[kernel]; !ok {
					c := Counts{Since: began.Add(-time.Hour), LogLost: 1000}
					c.Wakes.Waits.Buckets[2], c.Wakes.Restores.Sum = 1000, 1000
					now[kernel] = c
				}
			case "new": // a supervisor after another, or none
				now[kernel] = Counts{Since: at}
			case "count":
				if c, ok := now[kernel]; ok {
					n := int64(rapid.IntRange(0, 10).Draw(t, "n"))
					c.LogLost += n
					c.ToKernel[3][1] += n
					c.Wakes.Waits.Buckets[2] += n
					c.Wakes.Restores.Sum += time.Duration(n)
					now[kernel] = c
				}
			case "say":
				c, ok := now[kernel]
				if !ok {
					continue
				}
				before := tally.Total()
				tally.Add(heard[kernel], c)
				grown := tally.Total().LogLost - before.LogLost
				waits := tally.Total().Wakes.Waits.Buckets[2] - before.Wakes.Waits.Buckets[2]
				took := tally.Total().Wakes.Restores.Sum - before.Wakes.Restores.Sum
				if waits != grown || int64(took) != grown {
					t.Fatalf("%d lost messages were added, %d waits, and %d of restores", grown, waits, took)
				}
				expected := c.LogLost - heard[kernel].LogLost
				switch {
				case heard[kernel].Since.IsZero() && c.Since.Before(began):
					expected = 0
				case !heard[kernel].Since.Equal(c.Since):
					expected = c.LogLost
				}
				if grown != expected || grown < 0 {
					t.Fatalf("after %+v, %+v added %d, want %d", heard[kernel], c, grown, expected)
				}
				heard[kernel] = c
			}
		}
	})
}

// A supervisor that says less than before, or that began when another one did, does not make the sum smaller.
func TestTally_DecreasingCounts(t *testing.T) {
	tally := NewTally(time.Time{})
	at := time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC)
	said := []Counts{{Since: at, LogEvicted: 5}, {Since: at, LogEvicted: 2}, {Since: at, LogEvicted: -1 << 60},
		{Since: at, LogEvicted: -1<<60 + 3}}
	last, sum := Counts{}, int64(0)
	for _, c := range said {
		tally.Add(last, c)
		if tally.Total().LogEvicted < sum {
			t.Errorf("after %d: the sum fell from %d to %d", c.LogEvicted, sum, tally.Total().LogEvicted)
		}
		last, sum = c, tally.Total().LogEvicted
	}
}
