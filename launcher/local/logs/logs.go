// Package logs shares a bound of the message logs of all kernels of a machine. First users share it, then the kernels
// of each user. launcher/local says which logs there are, and sends supervisors the limits. Bounds that the operator
// does not set follow the free space of the disk. Begin with Shares. The package starts no goroutine.
package logs

import (
	"sync"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Bounds of logs whose operator sets none. They follow the free space of the disk.
const (
	leastTotal   = 1 << 30 // bytes of all logs, on any disk
	totalPart    = 4       // otherwise all logs may have 1/totalPart of what is free or already theirs
	mostLimit    = 4 << 30 // bytes of one log, on any disk
	limitPart    = 4       // otherwise a log may have 1/limitPart of the total, but at least api.LeastLogLimit
	diskKeepFree = 5       // percent of the disk; see api.Config.LogKeepFree
)

// nearPart: a limit that changes by less than 1/nearPart is sent only if the total requires it.
const nearPart = 8

// Shares are the limits of all logs. All methods may be called concurrently.
type Shares struct {
	total, limit int64 // fixed; that the operator has set; 0: none

	mu     sync.Mutex // the last that is locked
	bounds bounds
	next   nextLogs
}

// NewShares returns the shares of a total, of which no log gets more than a limit. 0: it follows the free space of the
// disk. Measure must be called first.
func NewShares(total, limit int64) *Shares { return &Shares{total: total, limit: limit} }

// Measure adapts the bounds to the free space of the disk. A negative free means that the logs are on no disk.
func (s *Shares) Measure(free int64, all []Log) {
	used := int64(0)
	for i := range all {
		used += all[i].Used
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bounds, s.next = s.boundsFor(free, used), nextLogs{}
}

// Start returns the limit of the log of a kernel that is about to start, and api.Config.LogKeepFree. all returns the
// other logs. It is called only if there is no room that was left for the next starts.
func (s *Shares) Start(owner string, all func() []Log) (limit int64, keepFree int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit = s.next.take(); limit == 0 {
		logs := append(all(), Log{Owner: owner})
		shares := shareLogs(sharedNow(s.bounds.total, len(logs)), s.bounds.most, logs)
		limit = max(1, shares[len(shares)-1])
	}
	return limit, s.bounds.keepFree
}

// Limits returns for each log a limit that its supervisor must be sent; 0: it keeps the one that it has. Small
// differences do not count, as long as all logs together stay within the total.
func (s *Shares) Limits(all []Log) []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	shares := shareLogs(sharedNow(s.bounds.total, len(all)), s.bounds.most, all)
	var sum int64
	for i := range all {
		if IsNear(all[i].Limit, shares[i]) {
			sum += all[i].Limit
		} else {
			sum += shares[i]
		}
	}
	s.next = nextAfter(s.bounds, len(all), sum)
	limits := make([]int64, len(all))
	for i := range all {
		if was, share := all[i].Limit, max(1, shares[i]); was != share && (sum > s.bounds.total || !IsNear(was, share)) {
			limits[i] = share
		}
	}
	return limits
}

// manyLogs is a number of logs. Beside so many, or more, a start does not share the total out again.
const manyLogs = 64

// nextLogs are the logs of the next starts, while there are many. sharedNow leaves room for them. Each gets the same
// part of it, so that all logs together stay within the total. What is fair between users is sent soon after the start.
type nextLogs struct {
	left int64 // starts for which there is room
	part int64 // bytes for each
}

// nextAfter returns the logs of the next starts when the limits of n logs together are sum bytes.
func nextAfter(b bounds, n int, sum int64) nextLogs {
	places := roundUp(int64(n))
	part := min(b.total/max(1, places), b.most)
	if n < manyLogs || part == 0 {
		return nextLogs{}
	}
	return nextLogs{left: max(0, min(places-int64(n), (b.total-sum)/part)), part: part}
}

// take returns the limit of the next log; 0: there is no room.
func (n *nextLogs) take() int64 {
	if n.left == 0 {
		return 0
	}
	n.left--
	return n.part
}

// bounds are the bounds of logs at present.
type bounds struct {
	total    int64 // bytes of all logs
	most     int64 // bytes of one log
	keepFree int   // api.Config.LogKeepFree
}

// boundsFor returns the bounds on a disk with free bytes, while logs hold used bytes. A negative free means that the
// logs are on no disk.
func (s *Shares) boundsFor(free, used int64) bounds {
	b := bounds{total: s.total, most: s.limit}
	if b.total == 0 {
		b.total = max(leastTotal, s.limit)
		if free >= 0 {
			b.total = max(b.total, (free+used)/totalPart)
		}
	}
	if b.most == 0 {
		b.most = api.LeastLogLimit
		if free >= 0 {
			b.most = max(b.most, min(mostLimit, b.total/limitPart))
			b.keepFree = diskKeepFree
		}
	}
	b.most = min(b.most, b.total)
	return b
}

// sharedNow returns the part of the total that n logs share. The rest is for the next starts: without it, each of
// thousands of supervisors is sent a new limit after each start. The rest is at most an eighth. For up to 16 logs,
// there is none.
func sharedNow(total int64, n int) int64 {
	return total / max(1, roundUp(int64(n))) * int64(n)
}

// IsNear reports whether two bounds are the same for practical purposes.
func IsNear(a, b int64) bool { return max(a, b)-min(a, b) < max(a, b)/nearPart }

// IsUrgent reports whether the change of a status asks for new limits at once: a log that is nearly full needs more.
func IsUrgent(before, now *api.Status) bool {
	return (before.State == api.Dead) != (now.State == api.Dead) ||
		api.LogNearlyFull(before.LogBytes, before.LogLimit) != api.LogNearlyFull(now.LogBytes, now.LogLimit)
}

// HasChanged reports whether the limits depend on the change of a log's size.
func HasChanged(before, now *api.Status) bool {
	return roundUp(before.LogBytes) != roundUp(now.LogBytes)
}
