package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// What is kept of kernels that are gone.
const (
	endedKept  = 10_000
	endedAge   = 7 * 24 * time.Hour
	leastShare = 1 << 20 // of a kernel's log, however many kernels there are
)

// Bounds for telling supervisors their share.
const (
	pushLimit    = 5 * time.Second
	pushParallel = 8
)

// tend is the launcher's housekeeping: it looks again at the whole state directory now and then, clears away if it
// holds the reaper's lock, and shares out log space when the number of kernels changes.
func (l *Launcher) tend() {
	tick := time.NewTicker(l.timing.tend)
	defer tick.Stop()
	l.tendOnce()
	for {
		select {
		case <-tick.C:
			l.tendOnce()
		case <-l.kick:
			l.pushShares()
		case <-l.ctx.Done():
			return
		}
	}
}

func (l *Launcher) tendOnce() {
	err := l.rescan(l.ctx)
	if err != nil && l.ctx.Err() == nil {
		l.log.Error("state directory cannot be read", "err", err)
	}
	l.takeReaper()
	if l.reaper != nil && err == nil { // what is not known to be needed is removed: so all must be known
		l.sweep()
	}
	l.pushShares()
}

// takeReaper tries to become the one launcher that clears away. Whoever is, stays it.
func (l *Launcher) takeReaper() {
	if l.reaper != nil {
		return
	}
	f, err := os.OpenFile(filepath.Join(l.layout.state, "reaper.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		l.log.Error("reaper's lock cannot be opened", "err", err)
		return
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close() //nolint:errcheck // nothing was written
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			l.log.Error("reaper's lock cannot be taken", "err", err)
		}
		return
	}
	l.reaper = f
}

// sweep removes what nobody needs any more. Dead kernels whose time is up have been removed by rescan.
func (l *Launcher) sweep() {
	for _, err := range []error{l.sweepHalfMade(), l.sweepEnded(), l.sweepRunDirs()} {
		if err != nil {
			l.log.Warn("state directory cannot be cleared", "err", err)
		}
	}
}

func isTemporary(name string) bool {
	return strings.HasPrefix(name, newPrefix) || strings.HasPrefix(name, oldPrefix)
}

// sweepHalfMade removes folders whose gateway died while it made or removed them.
func (l *Launcher) sweepHalfMade() error {
	entries, err := os.ReadDir(l.layout.kernels())
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if isTemporary(e.Name()) && l.age(e) > l.timing.halfMade {
			errs = append(errs, os.RemoveAll(filepath.Join(l.layout.kernels(), e.Name())))
		}
	}
	return errors.Join(errs...)
}

// age is how long ago an entry was changed; 0 if it has gone.
func (l *Launcher) age(e fs.DirEntry) time.Duration {
	st, err := e.Info()
	if err != nil {
		return 0
	}
	return l.timing.now().Sub(st.ModTime())
}

// sweepEnded keeps the tombstones to their age and number.
func (l *Launcher) sweepEnded() error {
	entries, err := os.ReadDir(l.layout.ended())
	if err != nil {
		return err
	}
	type stone struct {
		name string
		age  time.Duration
	}
	stones := make([]stone, 0, len(entries))
	for _, e := range entries {
		stones = append(stones, stone{e.Name(), l.age(e)})
	}
	slices.SortFunc(stones, func(a, b stone) int { return int(min(max(a.age-b.age, -1), 1)) })
	var errs []error
	for i, s := range stones {
		if i >= endedKept || s.age > endedAge {
			errs = append(errs, os.Remove(filepath.Join(l.layout.ended(), s.name)))
		}
	}
	return errors.Join(errs...)
}

// sweepRunDirs removes folders of sockets that no kernel of this state directory names.
func (l *Launcher) sweepRunDirs() error {
	entries, err := os.ReadDir(l.layout.runtime)
	if err != nil {
		return err
	}
	used := make(map[string]bool)
	for _, k := range l.known() {
		used[k.rec.RunDir] = true
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(l.layout.runtime, e.Name())
		if strings.HasPrefix(e.Name(), l.layout.mark) && !used[path] && l.age(e) > l.timing.halfMade {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// share is the bound of each kernel's log with so many more kernels than there are.
func (l *Launcher) share(more int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := more
	for _, k := range l.kernels {
		if k.lives() {
			n++
		}
	}
	return min(l.opts.LogLimit, max(leastShare, l.opts.LogTotal/max(n, 1)))
}

// countChanged has the log space shared out anew, soon.
func (l *Launcher) countChanged() {
	select {
	case l.kick <- struct{}{}:
	default: // it is going to happen anyway
	}
}

// pushShares tells every supervisor its share that has another. Only the reaper does: two gateways with different
// options would contradict each other for ever.
func (l *Launcher) pushShares() {
	if l.reaper == nil {
		return
	}
	share := l.share(0)
	places := make(chan struct{}, pushParallel)
	var pushing sync.WaitGroup
	for _, k := range l.known() {
		l.mu.Lock()
		due := k.streaming && k.lives() && k.pushed != share && k.status.State != string(launcher.Dead)
		l.mu.Unlock()
		if !due {
			continue
		}
		places <- struct{}{}
		pushing.Go(func() {
			defer func() { <-places }()
			l.pushShare(k, share)
		})
	}
	pushing.Wait()
}

func (l *Launcher) pushShare(k *kernel, share int64) {
	ctx, cancel := context.WithTimeout(l.ctx, pushLimit)
	defer cancel()
	if err := l.client(k).SetLimits(ctx, share); err != nil {
		l.log.Debug("supervisor was not told its share of log space", "kernel", k.id, "err", err)
		return // the next round tries again
	}
	l.mu.Lock()
	k.pushed = share
	l.mu.Unlock()
}
