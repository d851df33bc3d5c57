// Package poll waits in tests for conditions that another goroutine or process brings about, and that no channel
// announces.
package poll

import (
	"testing"
	"time"
)

const (
	pause = 5 * time.Millisecond // between two looks
	limit = 60 * time.Second     // long enough for a loaded machine
)

// Until returns when cond returns true. It fails the test with what after a minute. It must be called from the test's
// own goroutine, which also calls cond.
func Until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	over := time.After(limit)
	for !cond() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("never happened: %s", what)
		}
	}
}
