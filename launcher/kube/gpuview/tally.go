package gpuview

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
)

// Tally counts for how long kernels have held GPUs, and for how long these have computed. The zero value can be used.
// All methods may be called concurrently, those for one kernel by one goroutine at a time.
type Tally struct {
	mu      sync.Mutex // the last that is locked
	seconds map[launcher.GPULabels]float64
	busy    map[launcher.GPULabels]float64 // as seconds: those in which they computed
}

// Counted is what a Tally has counted of a kernel.
type Counted struct {
	until     time.Time     // the time for which its pod has held GPUs is counted up to this moment
	busy      time.Duration // of its GPUUse.Busy
	busyKnown bool
}

// Hold adds the time for which a kernel's pod has held GPUs, from the last call up to until. Time before opened, when
// this gateway began, is not counted.
func (t *Tally) Hold(c *Counted, of launcher.GPULabels, pod *corev1.Pod, opened, until time.Time) {
	if c.until.IsZero() {
		c.until = opened
		if taken := podspec.TakenAt(pod); taken.After(opened) {
			c.until = taken // until then it was warm
		}
	}
	if held := podstatus.GPUSeconds(pod, c.until, until); held > 0 {
		t.add(&t.seconds, of, held)
	}
	if until.After(c.until) { // a clock may go back: no time counts twice
		c.until = until
	}
}

// Use adds the time in which a kernel's GPUs have computed since the last call. busy is that time since the kernel
// began. The time before this gateway began is not counted, as for the time for which they were held.
func (t *Tally) Use(c *Counted, of launcher.GPULabels, pod *corev1.Pod, opened time.Time, busy time.Duration) {
	if !c.busyKnown && pod.CreationTimestamp.Time.Before(opened.Truncate(time.Second)) {
		c.busy = busy
	}
	if busy < c.busy {
		c.busy = 0 // it was started again
	}
	if grown := busy - c.busy; grown > 0 {
		t.add(&t.busy, of, grown.Seconds()*podspec.GPUs(pod).Float())
	}
	c.busy, c.busyKnown = busy, true
}

func (t *Tally) add(to *map[launcher.GPULabels]float64, of launcher.GPULabels, seconds float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if *to == nil {
		*to = map[launcher.GPULabels]float64{}
	}
	(*to)[of] += seconds
}

// Measure adds the numbers to the data for metrics.
func (t *Tally) Measure(m *launcher.Measures) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.GPUSeconds, m.GPUBusy = maps.Clone(t.seconds), maps.Clone(t.busy)
}
