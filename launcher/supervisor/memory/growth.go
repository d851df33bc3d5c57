package memory

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

// Go collects garbage when the heap has twice the size that it had after the last collection. A flood that keeps 60 MB
// in a supervisor would take 120 MB.
const (
	growthMost   = 24 << 20 // bytes by which the heap grows until garbage is collected, if percentLeast allows that
	percentLeast = 25       // so that a large heap does not cost too many collections
	percentMost  = 100      // Go's default
)

// LimitGrowth lets the program collect garbage more often while its heap is large, until ctx ends. It changes nothing
// if the environment has GOGC. Several calls at once agree with each other.
func LimitGrowth(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	defer debug.SetGCPercent(percentMost)
	heap := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/gogc:percent"}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-collected():
		}
		metrics.Read(heap)
		percent := percentOf(heap[0].Value.Uint64())
		if uint64(percent) != heap[1].Value.Uint64() {
			debug.SetGCPercent(percent)
		}
	}
}

// percentOf returns by how many percent a heap with so many bytes in use may grow until garbage is collected.
func percentOf(live uint64) int {
	return int(max(percentLeast, min(percentMost, growthMost*100/max(live, 1))))
}

// collected returns a channel that is ready when garbage was collected.
func collected() <-chan struct{} {
	ready := make(chan struct{}, 1)
	runtime.AddCleanup(new([64]byte), func(ready chan struct{}) { goroutines.Wake(ready) }, ready)
	return ready
}
