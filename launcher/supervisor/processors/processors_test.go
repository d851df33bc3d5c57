package processors

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
)

// run runs a Second in a program that uses so many processors. The result stops it.
func run(t *testing.T, processors int) (s *Second, stop func()) {
	t.Helper()
	before := runtime.GOMAXPROCS(processors)
	ctx, cancel := context.WithCancel(t.Context())
	s = New()
	s.pause = 20 * time.Millisecond
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(func() {
		stop()
		runtime.GOMAXPROCS(before)
	})
	return s, stop
}

// uses waits until the program uses so many processors.
func uses(t *testing.T, want int) {
	t.Helper()
	poll.Until(t, "another number of processors", func() bool { return runtime.GOMAXPROCS(0) == want })
}

func TestSecond(t *testing.T) {
	if runtime.NumCPU() == 1 {
		t.Skip("the machine has one processor")
	}
	s, stop := run(t, 1)
	s.Passes(large - 1)
	s.Passes(huge)
	if len(s.passes) > 0 {
		t.Error("a small or a huge message counts")
	}
	for range 2 {
		s.Passes(large)
		uses(t, 2)
		uses(t, 1)
	}
	s.Passes(large)
	uses(t, 2)
	if stop(); runtime.GOMAXPROCS(0) != 1 {
		t.Errorf("%d processors after the end", runtime.GOMAXPROCS(0))
	}
}

// TestSecond_Chosen: a number that an operator has chosen stays.
func TestSecond_Chosen(t *testing.T) {
	s, stop := run(t, 3)
	s.Passes(large)
	if stop(); runtime.GOMAXPROCS(0) != 3 {
		t.Errorf("%d processors, chosen were 3", runtime.GOMAXPROCS(0))
	}
}
