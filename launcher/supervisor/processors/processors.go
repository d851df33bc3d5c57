// Package processors lets a supervisor, which uses one processor, use a Second one while large messages pass. With one,
// a large message is received, verified, written to the log and sent to clients one step after the other. With two, the
// steps of several messages overlap. Small messages would cost more processor time, and so would very large ones, which
// are seldom several at a time. The package starts no goroutine; the caller of Run provides one.
package processors

import (
	"context"
	"runtime"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

const (
	large = 256 << 10              // bytes of the smallest large message
	huge  = 8 << 20                // bytes of the smallest message that is too large
	pause = 500 * time.Millisecond // after the last one, at most twice that
)

// Second decides whether the program uses a second processor. Its methods may be called concurrently.
type Second struct {
	passes chan struct{} // capacity 1: a large message passes
	pause  time.Duration // the constant, but for tests
}

// New returns a Second that does nothing until Run.
func New() *Second { return &Second{passes: make(chan struct{}, 1), pause: pause} }

// Passes notes that a part of a message begins to arrive, with its size in bytes. It may be called concurrently.
func (s *Second) Passes(bytes int) {
	if bytes >= large && bytes < huge {
		goroutines.Wake(s.passes)
	}
}

// Run changes the number of processors until ctx ends. It changes nothing if the program uses another number than one.
func (s *Second) Run(ctx context.Context) {
	if runtime.GOMAXPROCS(0) != 1 || runtime.NumCPU() == 1 {
		return
	}
	tick := time.NewTicker(s.pause)
	defer tick.Stop()
	defer runtime.GOMAXPROCS(1)
	for {
		tick.Stop() // an idle supervisor does not wake up
		runtime.GOMAXPROCS(1)
		select {
		case <-ctx.Done():
			return
		case <-s.passes:
		}
		runtime.GOMAXPROCS(2)
		tick.Reset(s.pause)
		for passed := true; passed; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			select {
			case <-s.passes:
			default:
				passed = false
			}
		}
	}
}
