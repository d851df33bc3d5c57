package logs

import (
	"math/bits"
	"sort"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// The logs of all kernels share one total. First users share it, then the kernels of each user. What one does not need,
// the others get. So the smallest share is as large as it can be (max-min fairness).
const (
	leastShare   = 1 << 20  // bytes that each log gets, unless there are very many
	leastPart    = 16       // these bytes are at most 1/leastPart of the total
	firstGrowth  = 16 << 20 // bytes that a log may have next when it is nearly full
	growthFactor = 4        // or this many times what it holds
)

// Log is the message log of one kernel.
type Log struct {
	Owner string
	Used  int64 // bytes that it holds
	Limit int64 // bytes that it may hold at present; 0: not known
	Ended bool  // its kernel has ended, so it does not grow
}

// shareLogs returns how many bytes each log may hold. The sum is at most total, and no share exceeds most. A log that
// holds something keeps room for it, until that is more than a fair share. What is left over goes to the logs with the
// smallest shares.
func shareLogs(total, most int64, holders []Log) []int64 {
	if len(holders) == 0 {
		return nil
	}
	least := min(leastShare, most, total/leastPart/int64(len(holders)))
	owners := map[string][]int{}
	needs := make([]extent, len(holders))
	for i, h := range holders {
		owners[h.Owner] = append(owners[h.Owner], i)
		needs[i] = extent{least, max(least, h.need(most))}
	}
	shares := shareByOwner(total, owners, needs)
	for i, h := range holders {
		needs[i] = extent{shares[i], most}
		if h.Ended {
			needs[i].hi = shares[i]
		}
	}
	return shareByOwner(total, owners, needs)
}

// need returns the limit that the log needs in order not to be nearly full. If it is nearly full, that is a limit with
// which it can grow.
func (h *Log) need(most int64) int64 {
	need := roundUp(h.Used)/3*4 + 4
	if !h.Ended && h.Limit > 0 && api.LogNearlyFull(h.Used, h.Limit) {
		need = max(growthFactor*roundUp(h.Used), firstGrowth)
	}
	return min(need, most)
}

// roundUp returns n, rounded up to four significant bits, so that a small change of a log changes no limit.
func roundUp(n int64) int64 {
	step := int64(1) << max(0, bits.Len64(uint64(n))-4)
	return (n + step - 1) / step * step
}

// extent is the least and the most that one of many can get.
type extent struct{ lo, hi int64 }

// at returns what it gets when all are filled up to a level.
func (e extent) at(level int64) int64 { return max(e.lo, min(level, e.hi)) }

// shareByOwner shares total between owners, and what each of them gets between their parts. The sum of the least of all
// parts is at most total.
func shareByOwner(total int64, owners map[string][]int, parts []extent) []int64 {
	names := make([]string, 0, len(owners))
	sums := make([]extent, 0, len(owners))
	for name, list := range owners {
		var sum extent
		for _, i := range list {
			sum.lo += parts[i].lo
			sum.hi += parts[i].hi
		}
		names, sums = append(names, name), append(sums, sum)
	}
	shares := make([]int64, len(parts))
	whole := levelOf(total, sums)
	for n, name := range names {
		own := make([]extent, 0, len(owners[name]))
		for _, i := range owners[name] {
			own = append(own, parts[i])
		}
		level := levelOf(sums[n].at(whole), own)
		for _, i := range owners[name] {
			shares[i] = parts[i].at(level)
		}
	}
	return shares
}

// levelOf returns the highest level up to which all parts can be filled with total.
func levelOf(total int64, parts []extent) int64 {
	var highest int64
	for _, p := range parts {
		highest = max(highest, p.hi)
	}
	return int64(sort.Search(int(highest), func(level int) bool {
		var sum int64
		for _, p := range parts {
			sum += p.at(int64(level) + 1)
		}
		return sum > total
	}))
}
