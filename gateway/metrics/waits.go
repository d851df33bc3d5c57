package metrics

import (
	"slices"
	"sync"
	"time"
)

// Bounds of the history of waits.
const (
	waitsKept   = 21 // the newest, of each flavor
	waitsNeeded = 3  // fewer say nothing
)

// waits are the newest waits for GPUs of each flavor.
type waits struct {
	mu  sync.Mutex
	all map[string][]time.Duration
}

func (w *waits) add(flavor string, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[string][]time.Duration{}
	}
	list := append(w.all[flavor], took)
	w.all[flavor] = list[max(0, len(list)-waitsKept):]
}

// UsualGPUWait returns the median of the newest waits for a flavor that this gateway has seen. It returns false if it
// has seen too few.
func (m *Metrics) UsualGPUWait(flavor string) (time.Duration, bool) {
	m.waits.mu.Lock()
	defer m.waits.mu.Unlock()
	list := slices.Sorted(slices.Values(m.waits.all[m.flavorLabel(flavor)]))
	if len(list) < waitsNeeded {
		return 0, false
	}
	return list[len(list)/2], true
}
