package supervisor

import (
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// Counts is what a supervisor has counted since it began. Nothing of it ever decreases while Since is the same.
type Counts struct {
	Since      time.Time `json:"since"`       // when it began; zero if it does not count
	ToKernel   Flows     `json:"to_kernel"`   // of clients
	FromKernel Flows     `json:"from_kernel"` // but for answers to the supervisor's own questions
	LogEvicted int64     `json:"log_evicted"` // messages that the log has let go
	LogLost    int64     `json:"log_lost"`    // messages of which a client was told that it has missed them
}

// Flows are messages and their bytes by channel, in the order of CountedChannels.
type Flows [4][2]int64

// CountedChannels are the channels that Counts tells apart.
var CountedChannels = [len(Flows{})]string{"shell", "control", "stdin", "iopub"}

// flows counts what passes on each channel. It may be used concurrently.
type flows [len(Flows{})]struct{ messages, bytes atomic.Int64 }

func (f *flows) add(c wire.Channel, bytes int) {
	f[c-wire.Shell].messages.Add(1)
	f[c-wire.Shell].bytes.Add(int64(bytes))
}

func (f *flows) read() (now Flows) {
	for i := range f {
		now[i] = [2]int64{f[i].messages.Load(), f[i].bytes.Load()}
	}
	return now
}

// Tally sums what supervisors have counted since a moment, whichever of them come and go. It is not for concurrent use.
type Tally struct {
	since time.Time
	total Counts
}

// NewTally begins to sum.
func NewTally(since time.Time) Tally { return Tally{since: since} }

// Add enters what a supervisor says. Before is what the supervisor of this kernel said last, zero if nothing was heard of it. What one
// has counted that began earlier than the tally, and is heard for the first time, belongs to the time before.
func (t *Tally) Add(before, now Counts) {
	if !before.Since.Equal(now.Since) {
		if before.Since.IsZero() && now.Since.Before(t.since) {
			return
		}
		before = Counts{} // another supervisor, which began at nothing
	}
	for i := range now.ToKernel {
		for j := range now.ToKernel[i] {
			t.total.ToKernel[i][j] += growth(before.ToKernel[i][j], now.ToKernel[i][j])
			t.total.FromKernel[i][j] += growth(before.FromKernel[i][j], now.FromKernel[i][j])
		}
	}
	t.total.LogEvicted += growth(before.LogEvicted, now.LogEvicted)
	t.total.LogLost += growth(before.LogLost, now.LogLost)
}

// growth is how much a count has grown. Supervisors stand beside code that nobody vouches for: one that says less than before has
// not made the sum smaller.
func growth(before, now int64) int64 { return max(0, now-before) }

// Total is the sum.
func (t *Tally) Total() Counts { return t.total }
