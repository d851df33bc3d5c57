package goroutines

import (
	"context"
	"time"
)

// Sleep returns nil after d, or at once if d is not positive and ctx has not ended. When ctx ends first, the error is
// ctx's cause.
func Sleep(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Within waits until done is closed, for at most the limit, and reports whether it is.
func Within(done <-chan struct{}, limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
