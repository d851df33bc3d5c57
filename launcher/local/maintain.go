package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Bounds of stored endings.
const (
	endedKept = 10_000
	endedAge  = 7 * 24 * time.Hour
)

// maintain rescans the state directory at intervals, and cleans up while it holds the reaper's lock. It shares out the
// space for logs when kernels, their logs or the free space of the disk have changed.
func (l *Launcher) maintain() {
	rounds := l.timing.rounds
	if rounds == nil {
		tick := time.NewTicker(l.timing.maintenance)
		defer tick.Stop()
		rounds = tick.C
	}
	l.maintainOnce()
	var collected <-chan time.Time // not nil: changes are being collected
	for {
		select {
		case <-rounds:
			l.maintainOnce()
		case <-l.logs.recounts:
			l.pushLogBounds()
		case <-l.logs.soon:
			if collected == nil {
				collected = time.After(l.timing.pushPause)
			}
		case <-collected:
			collected = nil
			l.pushLogBounds()
		case <-l.ctx.Done():
			return
		}
	}
}

func (l *Launcher) maintainOnce() {
	// A warm kernel that is taken meanwhile is in what is read first. One that was taken before is found by rescan.
	warm, err := l.warm.entries()
	err = errors.Join(l.rescan(l.ctx), err)
	if err != nil && l.ctx.Err() == nil {
		l.log.Error("state directory cannot be read", logkey.Err, err)
	}
	l.takeReaper()
	if l.reaper != nil && err == nil { // sweep removes what no known kernel needs, so all must be known
		l.sweep(warm)
		l.strays.look()
	}
	l.logs.measure()
	l.pushLogBounds()
	if l.opts.UpgradeIdle && l.reaper != nil {
		l.upgrades.begin()
	}
}

// pushLogBounds sends supervisors the bounds of their logs, if this launcher is the one that does so.
func (l *Launcher) pushLogBounds() {
	if l.reaper != nil {
		l.logs.push(l.ctx)
	}
}

// takeReaper tries to become the one launcher that cleans up. The lock is kept until Close.
func (l *Launcher) takeReaper() {
	if l.reaper != nil {
		return
	}
	f, err := flock.Try(filepath.Join(l.layout.state, reaperLock))
	if err != nil {
		if !errors.Is(err, flock.ErrBusy) {
			l.log.Error("reaper's lock cannot be taken", logkey.Err, err)
		}
		return
	}
	l.reaper = f
}

// sweep removes files that are no longer needed. rescan has removed the dead kernels whose time is over. warm was read
// before that.
func (l *Launcher) sweep(warm []warmEntry) {
	dirs, err := os.ReadDir(l.layout.runtime) // before the kernels that use them
	used := make(map[string]bool)
	for _, k := range l.snapshot() {
		used[k.rec.RunDir] = true
	}
	for _, w := range warm {
		used[w.RunDir] = true
	}
	now, old := l.timing.now(), l.timing.halfMade
	for _, err := range []error{l.layout.sweepHalfMade(now, old), l.layout.sweepEnded(now), err,
		l.layout.sweepRunDirs(dirs, used, now, old)} {
		if err != nil {
			l.log.Warn("state directory cannot be cleared", logkey.Err, err)
		}
	}
}

func isTemporary(name string) bool {
	return strings.HasPrefix(name, newPrefix) || strings.HasPrefix(name, oldPrefix)
}

// sweepHalfMade removes folders that a gateway was creating or removing when it died: old ones.
func (l layout) sweepHalfMade(now time.Time, old time.Duration) error {
	entries, err := os.ReadDir(l.kernels())
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if isTemporary(e.Name()) && age(e, now) > old {
			errs = append(errs, os.RemoveAll(filepath.Join(l.kernels(), e.Name())))
		}
	}
	return errors.Join(errs...)
}

// age returns the time since an entry was changed; 0 if the entry has gone.
func age(e fs.DirEntry, now time.Time) time.Duration {
	st, err := e.Info()
	if err != nil {
		return 0
	}
	return now.Sub(st.ModTime())
}

// sweepEnded bounds the stored endings by age and number.
func (l layout) sweepEnded(now time.Time) error {
	entries, err := os.ReadDir(l.ended())
	if err != nil {
		return err
	}
	type stone struct {
		name string
		age  time.Duration
	}
	stones := make([]stone, 0, len(entries))
	for _, e := range entries {
		stones = append(stones, stone{e.Name(), age(e, now)})
	}
	slices.SortFunc(stones, func(a, b stone) int { return int(min(max(a.age-b.age, -1), 1)) })
	var errs []error
	for i, s := range stones {
		if i >= endedKept || s.age > endedAge {
			errs = append(errs, os.Remove(filepath.Join(l.ended(), s.name)))
		}
	}
	return errors.Join(errs...)
}

// sweepRunDirs removes old folders of sockets that no kernel of this state directory uses.
func (l layout) sweepRunDirs(dirs []fs.DirEntry, used map[string]bool, now time.Time, old time.Duration) error {
	var errs []error
	for _, e := range dirs {
		path := filepath.Join(l.runtime, e.Name())
		if strings.HasPrefix(e.Name(), l.mark) && !used[path] && age(e, now) > old {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}
