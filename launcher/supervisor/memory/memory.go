// Package memory keeps a supervisor's memory small, since a machine has many supervisors. It returns memory to the
// operating system after large messages, of which Go would keep most for minutes. Package supervisor notes them in a
// Returner. LimitGrowth bounds the garbage of a large heap. The package starts no goroutine; the callers of Run and
// LimitGrowth provide them.
package memory

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

const (
	largePayload = 8 << 20          // bytes from which a message is worth a garbage collection of its own
	collectEvery = 64 << 20         // bytes of such messages after which garbage is collected at once
	pause        = 10 * time.Second // after the last such message
)

// Returner returns the memory of large messages to the system. Its methods may be called concurrently.
type Returner struct {
	passed chan struct{} // capacity 1: a large message was in memory
	bytes  atomic.Int64  // of large messages since the last collection
}

// New returns a Returner that does nothing until Run.
func New() *Returner { return &Returner{passed: make(chan struct{}, 1)} }

// Passes notes that a message of so many bytes passes through memory.
func (r *Returner) Passes(bytes int) {
	if bytes < largePayload {
		return
	}
	r.bytes.Add(int64(bytes))
	goroutines.Wake(r.passed)
}

// Run gives memory back some time after large messages have passed, until ctx ends.
func (r *Returner) Run(ctx context.Context) {
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.passed:
			due = time.After(pause)
			if r.bytes.Load() >= collectEvery {
				// A stream of large messages would have memory for as many again. A collection takes about a millisecond.
				r.bytes.Store(0)
				runtime.GC()
			}
		case <-due:
			due = nil
			debug.FreeOSMemory()
		}
	}
}
