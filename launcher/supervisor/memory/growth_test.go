package memory

import (
	"context"
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
)

func TestPercentOf(t *testing.T) {
	for live, want := range map[uint64]int{0: 100, growthMost: 100, 2 * growthMost: 50, 1 << 40: percentLeast} {
		if got := percentOf(live); got != want {
			t.Errorf("a heap of %d bytes may grow by %d percent, want %d", live, got, want)
		}
	}
}

// TestLimitGrowth: garbage is collected more often while the heap is large, and as by default afterwards.
func TestLimitGrowth(t *testing.T) {
	percent := func(want uint64) {
		t.Helper()
		now := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		poll.Until(t, "another percentage", func() bool {
			runtime.GC()
			metrics.Read(now)
			return now[0].Value.Uint64() == want
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { LimitGrowth(ctx) })
	large := make([]byte, 8*growthMost)
	percent(percentLeast)
	runtime.KeepAlive(large)
	large = nil
	percent(percentMost)
	large = make([]byte, 8*growthMost)
	percent(percentLeast)
	cancel()
	running.Wait()
	percent(percentMost)
	runtime.KeepAlive(large)
	t.Setenv("GOGC", "70")
	LimitGrowth(t.Context()) // returns at once
}
