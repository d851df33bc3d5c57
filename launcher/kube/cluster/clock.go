package cluster

import (
	"net/http"
	"sync/atomic"
	"time"
)

// clusterClock knows by how much this machine's clock differs from the API server's. Without it, a gateway whose clock
// is minutes ahead takes a pod that was created a second ago for an old one. The header Date of each answer has the API
// server's time (RFC 9110, 6.6.1), in whole seconds. The zero value takes this machine's clock to be right.
type clusterClock struct{ ahead atomic.Int64 } // of this machine's clock, in nanoseconds

// answered learns from an answer that has arrived just now. asked is when its request was sent. The difference changes
// only as far as the answer proves it wrong.
func (c *clusterClock) answered(date string, asked, now time.Time) {
	at, err := http.ParseTime(date)
	if err != nil {
		return // a proxy may drop the header
	}
	// Date was cut to seconds, at some time between asked and now.
	earliest, latest := now.Sub(at.Add(time.Second+now.Sub(asked))), now.Sub(at)
	known := time.Duration(c.ahead.Load())
	if ahead := min(max(known, earliest), latest); ahead != known {
		c.ahead.Store(int64(ahead))
	}
}

// Time converts a time of this machine to the API server's clock. Such a time is compared with times that the cluster
// or other gateways have written. It may go back when the difference between the clocks becomes known: the time for
// which something lasts in this process is measured by this machine's clock instead.
func (c *Cluster) Time(at time.Time) time.Time {
	return at.Add(-time.Duration(c.requests.clock.ahead.Load()))
}

// Answered learns the API server's time from the header Date of an answer that has arrived now. asked is when its
// request was sent. Each client does it by itself.
func (c *Cluster) Answered(date string, asked, now time.Time) {
	c.requests.clock.answered(date, asked, now)
}
