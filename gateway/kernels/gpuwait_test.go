package kernels

import (
	"testing"
	"time"
)

func TestShortTime(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "1 second", 1200 * time.Millisecond: "1 second", 90 * time.Second: "90 seconds", 150 * time.Second: "3 minutes",
	} {
		if got := shortTime(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
