package goroutines_test

import (
	"testing"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

// TestWake: any number of calls leaves one value, and none of them blocks.
func TestWake(t *testing.T) {
	c := make(chan struct{}, 1)
	for range 3 {
		goroutines.Wake(c)
	}
	<-c
	if len(c) != 0 {
		t.Errorf("%d values are left", len(c))
	}
	goroutines.Wake(c)
	if len(c) != 1 {
		t.Error("a reader that looked before is not woken")
	}
}
