package supervisor

import (
	"context"
	"runtime/debug"
	"time"
)

const (
	largePayload = 8 << 20          // bytes from which a message is worth a garbage collection of its own
	memoryPause  = 10 * time.Second // after the last such message
)

// noteSizeLocked notes that a message passes through memory.
func (s *Supervisor) noteSizeLocked(bytes int) {
	if bytes >= largePayload {
		poke(s.largePassed)
	}
}

// returnMemory gives memory back to the operating system some time after large messages have passed. Go would keep most
// of it for minutes, and a machine has many supervisors.
func (s *Supervisor) returnMemory(ctx context.Context) {
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.largePassed:
			due = time.After(memoryPause)
		case <-due:
			due = nil
			debug.FreeOSMemory()
		}
	}
}
