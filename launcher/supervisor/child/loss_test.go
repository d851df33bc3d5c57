package child

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

// TestProcess_LateReason: the kubelet of a busy node reports seconds later how a container has ended. The kernel's end
// has that reason all the same, also if the next container's child was faster.
func TestProcess_LateReason(t *testing.T) {
	const text = "the kernel's container was killed by signal 9"
	for name, c := range map[string]struct {
		place  process.Place
		report time.Duration // after the loss; 0: never
		next   bool          // another child connects before
		after  time.Duration // when the process has ended
		reason string
	}{
		"after seven seconds":         {process.InContainer, 7 * time.Second, false, 7 * time.Second, text},
		"after the next child's call": {process.InContainer, 7 * time.Second, true, 7 * time.Second, text},
		"never":                       {process.InContainer, 0, false, ReasonLimit, ""},
		"not in a cluster":            {process.OnMachine, 0, false, ReturnLimit, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c0 := NewContainer(ContainerOptions{Place: c.place, Log: slog.New(slog.DiscardHandler)})
				p := c0.Adopt(&Kernel{Life: "one", PID: 1}) // no child is connected: it is lost from the start
				began := time.Now()
				if c.next && !c0.install(&link{}, 1, nil) {
					t.Fatal("the next child was refused")
				}
				if c.report > 0 {
					time.AfterFunc(c.report, func() { c0.SetEndReason(text) })
				}
				e := p.Exit()
				if took := time.Since(began); !e.Lost || e.LostReason != c.reason || took != c.after {
					t.Errorf("after %v: %+v", took, e)
				}
			})
		})
	}
}

// TestContainer_AwaitNoReason: the end of a pod that is stopped does not wait for the kubelet's report, whether its
// kernel was lost before or is lost then.
func TestContainer_AwaitNoReason(t *testing.T) {
	for name, before := range map[string]bool{"lost before": true, "lost then": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := NewContainer(ContainerOptions{Place: process.InContainer, Log: slog.New(slog.DiscardHandler)})
				p := newProcess(c, "one")
				c.proc = p
				lose := func() {
					c.mu.Lock()
					defer c.mu.Unlock()
					p.loseLocked()
				}
				if before {
					lose()
					time.Sleep(ReturnLimit + time.Second) // virtual time
				}
				began := time.Now()
				c.AwaitNoReason()
				if !before {
					lose()
				}
				if e, took := p.Exit(), time.Since(began); !e.Lost || took != ReturnLimit {
					t.Errorf("after %v: %+v", took, e)
				}
			})
		})
	}
}
