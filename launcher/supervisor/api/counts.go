package api

import "time"

// Counts are a supervisor's counters. They never decrease while Since is the same.
type Counts struct {
	Since      time.Time `json:"since"`            // when counting started; zero: the supervisor does not count
	ToKernel   Flows     `json:"to_kernel"`        // sent by clients
	FromKernel Flows     `json:"from_kernel"`      // without answers to the supervisor's own requests
	LogEvicted int64     `json:"log_evicted"`      // messages that the log evicted
	LogLost    int64     `json:"log_lost"`         // evicted messages that a client missed, as a notice said
	Failed     int64     `json:"failed,omitempty"` // 1: the kernel's last supervisor ended unexpectedly
	Wakes      Wakes     `json:"wakes,omitzero"`
}

// Flows are messages and their bytes by channel, in the order of CountedChannels.
type Flows [4][2]int64

// CountedChannels are the channels that Counts tells apart.
var CountedChannels = [len(Flows{})]string{"shell", "control", "stdin", "iopub"}

// Tally sums the Counts of many supervisors, including those that have ended. It must not be used concurrently.
type Tally struct {
	since time.Time
	total Counts
}

// NewTally returns a sum that starts at since.
func NewTally(since time.Time) Tally { return Tally{since: since} }

// Add adds the growth from before to now. Before is the last Counts of the same kernel's supervisor, zero if there were
// none. The first Counts of a supervisor that started before the tally are ignored: they belong to the time before.
func (t *Tally) Add(before, now Counts) {
	if !before.Since.Equal(now.Since) {
		if before.Since.IsZero() && now.Since.Before(t.since) {
			return
		}
		before = Counts{} // another supervisor, whose counters started at 0
	}
	for i := range now.ToKernel {
		for j := range now.ToKernel[i] {
			t.total.ToKernel[i][j] += growth(before.ToKernel[i][j], now.ToKernel[i][j])
			t.total.FromKernel[i][j] += growth(before.FromKernel[i][j], now.FromKernel[i][j])
		}
	}
	t.total.LogEvicted += growth(before.LogEvicted, now.LogEvicted)
	t.total.LogLost += growth(before.LogLost, now.LogLost)
	t.total.Failed += growth(before.Failed, now.Failed)
	t.total.Wakes.Waits.grow(&before.Wakes.Waits, &now.Wakes.Waits)
	t.total.Wakes.Restores.grow(&before.Wakes.Restores, &now.Wakes.Restores)
}

// growth returns how much a counter grew. A decrease counts as 0: a supervisor stands beside untrusted code and must
// not make a sum smaller.
func growth(before, now int64) int64 { return max(0, now-before) }

// Total returns the sum.
func (t *Tally) Total() Counts { return t.total }
