package local

import (
	"context"
	"log/slog"
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

// logBounds shares the bounds of logs out, and sends them to supervisors.
type logBounds struct {
	*logs.Shares

	// Fixed.
	dir      string        // of the kernels, on whose disk the logs are
	recounts chan struct{} // capacity 1: kernels or the sizes of their logs have changed
	soon     chan struct{} // capacity 1: the same, but not urgent
	log      *slog.Logger
	lock     sync.Locker // Launcher.mu
	kernels  *registry   // guarded by lock
}

func newLogBounds(l *Launcher) *logBounds {
	return &logBounds{Shares: logs.NewShares(l.opts.LogTotal, l.opts.LogLimit), dir: l.layout.kernels(),
		recounts: make(chan struct{}, 1), soon: make(chan struct{}, 1), log: l.log, lock: &l.mu, kernels: &l.kernels}
}

// measure adapts the bounds to the free space.
func (b *logBounds) measure() {
	free := freeSpace(b.dir) // without the lock, since a disk may hang
	b.lock.Lock()
	defer b.lock.Unlock()
	_, all := b.kernels.logs()
	b.Measure(free, all)
}

// logs returns the kernels that have a log or will have one, and their logs.
func (r *registry) logs() (kernels []*kernel, all []logs.Log) {
	kernels, all = make([]*kernel, 0, len(r.ordered)), make([]logs.Log, 0, len(r.ordered)+1)
	for _, k := range r.ordered {
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

// set sets the bounds of the log of a supervisor that is about to be started.
func (b *logBounds) set(cfg *api.Config) {
	b.lock.Lock()
	defer b.lock.Unlock()
	cfg.LogLimit, cfg.LogKeepFree = b.Start(cfg.Owner, func() []logs.Log {
		_, all := b.kernels.logs()
		return all
	})
}

// recount makes maintain calculate and send the logs' bounds again.
func (b *logBounds) recount() {
	goroutines.Wake(b.recounts)
}

// recountSoon is recount for a kernel that was started, and for a log that is larger or smaller and has room. Each
// start changes the shares of all kernels, so the limits of many starts are sent together. A kernel has its own share
// from its start on.
func (b *logBounds) recountSoon() {
	goroutines.Wake(b.soon)
}

// newLimit is a bound that a supervisor must be sent.
type newLimit struct {
	kernel *kernel
	bytes  int64
}

// newLimits returns the bounds that differ from those that supervisors have: those that make logs smaller, and the
// others.
func (b *logBounds) newLimits() (smaller, larger []newLimit) {
	b.lock.Lock()
	defer b.lock.Unlock()
	kernels, all := b.kernels.logs()
	for i, limit := range b.Limits(all) {
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

// push sends supervisors the bounds of their logs. Only the reaper does this: two gateways with different options would
// undo each other's settings.
func (b *logBounds) push(ctx context.Context) {
	smaller, larger := b.newLimits()
	b.pushAll(ctx, smaller) // first, so that all logs together stay within the total
	b.pushAll(ctx, larger)
}

func (b *logBounds) pushAll(ctx context.Context, list []newLimit) {
	places := make(chan struct{}, pushParallel)
	var pushing sync.WaitGroup
	for _, n := range list {
		places <- struct{}{}
		pushing.Go(func() {
			defer func() { <-places }()
			b.pushOne(ctx, n)
		})
	}
	pushing.Wait()
}

func (b *logBounds) pushOne(ctx context.Context, n newLimit) {
	ctx, cancel := context.WithTimeout(ctx, pushLimit)
	defer cancel()
	if err := n.kernel.client().SetLimits(ctx, n.bytes); err != nil {
		b.log.Debug("limit of a kernel's log could not be sent", logkey.Kernel, n.kernel.id, logkey.Err, err)
		return // the next call tries again
	}
	b.lock.Lock()
	n.kernel.pushedLimit = n.bytes
	b.lock.Unlock()
}
