package local

import (
	"context"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/logs"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Bounds for sending supervisors their limit.
const (
	pushLimit    = 5 * time.Second
	pushParallel = 8
)

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
	_, all := l.logsLocked()
	l.logs.Measure(free, all)
}

// logsLocked returns the kernels that have a log or will have one, and their logs.
func (l *Launcher) logsLocked() (kernels []*kernel, all []logs.Log) {
	kernels, all = make([]*kernel, 0, len(l.kernels.ordered)), make([]logs.Log, 0, len(l.kernels.ordered)+1)
	for _, k := range l.kernels.ordered {
		if !k.livesLocked() && (k.gone != nil || !k.supervisor.Streaming) {
			continue // its log vanished with its supervisor
		}
		kernels = append(kernels, k)
		all = append(all, logs.Log{
			Owner: k.rec.Owner,
			Used:  k.supervisor.Status.LogBytes,
			Limit: k.pushedLimit,
			Ended: !k.livesLocked() || k.supervisor.SaysLocked(api.Dead),
		})
	}
	return kernels, all
}

// setLogBounds sets the bounds of the log of a supervisor that is about to be started.
func (l *Launcher) setLogBounds(cfg *api.Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	cfg.LogLimit, cfg.LogKeepFree = l.logs.Start(cfg.Owner, func() []logs.Log {
		_, all := l.logsLocked()
		return all
	})
}

// recount makes maintain calculate and send the logs' bounds again.
func (l *Launcher) recount() {
	goroutines.Wake(l.recounts)
}

// recountSoon is recount for a kernel that was started, and for a log that is larger or smaller and has room. Each
// start changes the shares of all kernels, so the limits of many starts are sent together. A kernel has its own share
// from its start on.
func (l *Launcher) recountSoon() {
	goroutines.Wake(l.recountsSoon)
}

// newLimit is a bound that a supervisor must be sent.
type newLimit struct {
	kernel *kernel
	bytes  int64
}

// newLimits returns the bounds that differ from those that supervisors have: those that make logs smaller, and the
// others.
func (l *Launcher) newLimits() (smaller, larger []newLimit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kernels, all := l.logsLocked()
	for i, limit := range l.logs.Limits(all) {
		switch k := kernels[i]; {
		case limit == 0 || !k.supervisor.Streaming:
		case limit < all[i].Limit:
			smaller = append(smaller, newLimit{k, limit})
		default:
			larger = append(larger, newLimit{k, limit})
		}
	}
	return smaller, larger
}

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
	if err := n.kernel.client().SetLimits(ctx, n.bytes); err != nil {
		l.log.Debug("limit of a kernel's log could not be sent", logkey.Kernel, n.kernel.id, logkey.Err, err)
		return // the next call tries again
	}
	l.mu.Lock()
	n.kernel.pushedLimit = n.bytes
	l.mu.Unlock()
}
