package local

import (
	"context"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
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

// Bounds for sending supervisors their limit.
const (
	pushLimit    = 5 * time.Second
	pushParallel = 8
	pushChange   = 8 // a limit that changes by less than 1/pushChange is sent only if the total requires it
)

// manyLogs is a number of logs. Beside so many, or more, a start does not share the total out again.
const manyLogs = 64

// nextLogs are the logs of the next starts, while there are many. sharedNow leaves room for them. Each gets the same
// part of it, so that all logs together stay within the total. What is fair between users is sent soon after the start.
type nextLogs struct {
	left int64 // starts for which there is room
	part int64 // bytes for each
}

// nextAfter returns the logs of the next starts when the limits of n logs together are sum bytes.
func nextAfter(bounds logBounds, n int, sum int64) nextLogs {
	places := roundUp(int64(n))
	part := min(bounds.total/max(1, places), bounds.most)
	if n < manyLogs || part == 0 {
		return nextLogs{}
	}
	return nextLogs{left: max(0, min(places-int64(n), (bounds.total-sum)/part)), part: part}
}

// take returns the limit of the next log; 0: there is no room.
func (n *nextLogs) take() int64 {
	if n.left == 0 {
		return 0
	}
	n.left--
	return n.part
}

// logBounds are the bounds of logs at present.
type logBounds struct {
	total    int64 // bytes of all logs
	most     int64 // bytes of one log
	keepFree int   // api.Config.LogKeepFree
}

// logBoundsFor returns the bounds on a disk with free bytes, while logs hold used bytes. A negative free means that the
// logs are on no disk.
func (o *Options) logBoundsFor(free, used int64) logBounds {
	b := logBounds{total: o.LogTotal, most: o.LogLimit}
	if b.total == 0 {
		b.total = max(leastTotal, o.LogLimit)
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

// freeSpace returns how many bytes this user may write to a folder's disk; -1: it is not on a disk, or not known.
func freeSpace(dir string) int64 {
	space, err := files.SpaceOf(dir)
	if err != nil || space.InMemory {
		return -1
	}
	return space.Free
}

// measureDisk adapts the bounds of logs to the free space.
func (l *Launcher) measureDisk() {
	free := freeSpace(l.layout.kernels()) // without the lock, since a disk may hang
	l.mu.Lock()
	defer l.mu.Unlock()
	_, holders := l.logHoldersLocked()
	used := int64(0)
	for _, h := range holders {
		used += h.used
	}
	l.logs, l.nextLogs = l.opts.logBoundsFor(free, used), nextLogs{}
}

// logHoldersLocked returns the kernels that have a log or will have one, and their logs.
func (l *Launcher) logHoldersLocked() (kernels []*kernel, holders []logHolder) {
	kernels, holders = make([]*kernel, 0, len(l.kernels.ordered)), make([]logHolder, 0, len(l.kernels.ordered)+1)
	for _, k := range l.kernels.ordered {
		if !k.livesLocked() && (k.gone != nil || !k.supervisor.Streaming) {
			continue // its log vanished with its supervisor
		}
		kernels = append(kernels, k)
		holders = append(holders, logHolder{
			owner: k.rec.Owner,
			used:  k.supervisor.Status.LogBytes,
			limit: k.pushedLimit,
			ended: !k.livesLocked() || k.supervisor.SaysLocked(api.Dead),
		})
	}
	return kernels, holders
}

// setLogBounds sets the bounds of the log of a supervisor that is about to be started.
func (l *Launcher) setLogBounds(cfg *api.Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	cfg.LogKeepFree = l.logs.keepFree
	if cfg.LogLimit = l.nextLogs.take(); cfg.LogLimit > 0 {
		return
	}
	_, holders := l.logHoldersLocked()
	holders = append(holders, logHolder{owner: cfg.Owner})
	shares := shareLogs(sharedNow(l.logs.total, len(holders)), l.logs.most, holders)
	cfg.LogLimit = max(1, shares[len(shares)-1])
}

// recount makes maintain calculate and send the logs' bounds again.
func (l *Launcher) recount() {
	goroutines.Wake(l.recounts)
}

// logUrgent reports whether the change of a status asks for new bounds at once: a log that is nearly full needs more.
func logUrgent(before, now *api.Status) bool {
	return (before.State == api.Dead) != (now.State == api.Dead) ||
		api.LogNearlyFull(before.LogBytes, before.LogLimit) != api.LogNearlyFull(now.LogBytes, now.LogLimit)
}

// logChanged reports whether the logs' bounds depend on the change of a log's size.
func logChanged(before, now *api.Status) bool {
	return roundUp(before.LogBytes) != roundUp(now.LogBytes)
}

// recountSoon is recount for a kernel that was started, and for a log that is larger or smaller and has room. Each
// start changes the shares of all kernels, so the limits of many starts are sent together. A kernel has its own share
// from its start on.
func (l *Launcher) recountSoon() {
	goroutines.Wake(l.recountsSoon)
}

// sharedNow returns the part of the total that n logs share. The rest is for the next starts: without it, each of
// thousands of supervisors is sent a new limit after each start. The rest is at most an eighth. For up to 16 logs,
// there is none.
func sharedNow(total int64, n int) int64 {
	return total / max(1, roundUp(int64(n))) * int64(n)
}

// newLimit is a bound that a supervisor must be sent.
type newLimit struct {
	kernel *kernel
	bytes  int64
}

// newLimits returns the bounds that differ from those that supervisors have: those that make logs smaller, and the
// others. Small differences do not count, as long as all logs together stay within the total.
func (l *Launcher) newLimits() (smaller, larger []newLimit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kernels, holders := l.logHoldersLocked()
	shares := shareLogs(sharedNow(l.logs.total, len(holders)), l.logs.most, holders)
	var sum int64
	for i, h := range holders {
		if isNear(h.limit, shares[i]) {
			sum += h.limit
		} else {
			sum += shares[i]
		}
	}
	l.nextLogs = nextAfter(l.logs, len(holders), sum)
	for i, k := range kernels {
		was, share := holders[i].limit, max(1, shares[i])
		switch {
		case !k.supervisor.Streaming || was == share || sum <= l.logs.total && isNear(was, share):
		case share < was:
			smaller = append(smaller, newLimit{k, share})
		default:
			larger = append(larger, newLimit{k, share})
		}
	}
	return smaller, larger
}

// isNear reports whether two bounds are the same for practical purposes.
func isNear(a, b int64) bool { return max(a, b)-min(a, b) < max(a, b)/pushChange }

// pushShares sends supervisors the bounds of their logs. Only the reaper does this: two gateways with different options
// would undo each other's settings.
func (l *Launcher) pushShares() {
	if l.reaper == nil {
		return
	}
	smaller, larger := l.newLimits()
	l.pushLimits(smaller) // first, so that all logs together stay within the total
	l.pushLimits(larger)
}

func (l *Launcher) pushLimits(list []newLimit) {
	places := make(chan struct{}, pushParallel)
	var pushing sync.WaitGroup
	for _, n := range list {
		places <- struct{}{}
		pushing.Go(func() {
			defer func() { <-places }()
			l.pushLimit(n)
		})
	}
	pushing.Wait()
}

func (l *Launcher) pushLimit(n newLimit) {
	ctx, cancel := context.WithTimeout(l.ctx, pushLimit)
	defer cancel()
	if err := l.client(n.kernel).SetLimits(ctx, n.bytes); err != nil {
		l.log.Debug("limit of a kernel's log could not be sent", logkey.Kernel, n.kernel.id, logkey.Err, err)
		return // the next call tries again
	}
	l.mu.Lock()
	n.kernel.pushedLimit = n.bytes
	l.mu.Unlock()
}
