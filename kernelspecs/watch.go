package kernelspecs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Times that decide how soon a change is noticed.
const (
	settle    = 100 * time.Millisecond // from the first event to the reading, so that a copied directory is read once
	pollBlind = time.Second            // between readings if a directory cannot be watched
	pollSure  = 10 * time.Second       // between readings otherwise, in case an event was lost
)

// place is a directory to watch.
type place struct {
	dir   string
	child string // the only entry whose events count; "" if all do
}

// interest says which entries of a watched directory count.
type interest struct {
	all      bool
	children []string // unless all
}

// watch reads the directories again after events, and also without events, at an interval that depends on whether
// events are reliable. It runs until Close.
func (f *Finder) watch() {
	defer close(f.done)
	// Without a watcher these stay nil and deliver nothing.
	var events <-chan fsnotify.Event
	var failures <-chan error
	if f.watcher != nil {
		events, failures = f.watcher.Events, f.watcher.Errors
	}
	poll := time.NewTimer(f.pollInterval())
	defer poll.Stop()
	// Further events do not postpone it. Otherwise a directory that is written to all the time would never be read.
	var settled <-chan time.Time
	for {
		select {
		case <-f.closing:
			return
		case ev := <-events:
			if settled == nil && f.counts(ev) {
				settled = time.After(settle)
			}
			continue
		case err := <-failures:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				f.log.Warn("watching kernelspecs", logkey.Err, err)
			}
		case <-settled:
		case <-poll.C:
		}
		settled = nil
		f.reread()
		poll.Reset(f.pollInterval())
	}
}

// pollInterval returns for how long the Finder relies on events alone.
func (f *Finder) pollInterval() time.Duration {
	if f.watcher == nil || f.blind {
		return f.poll
	}
	return pollSure
}

// counts reports whether an event can have changed a spec. The parent of a directory that does not exist yet is
// watched, and may be a busy directory such as the user's home.
func (f *Finder) counts(ev fsnotify.Event) bool {
	if _, ok := f.watched[ev.Name]; ok {
		return true
	}
	in, ok := f.watched[filepath.Dir(ev.Name)]
	return ok && (in.all || slices.Contains(in.children, filepath.Base(ev.Name)))
}

// watchDirs makes the watcher watch exactly these places. It reports whether a new directory is watched.
func (f *Finder) watchDirs(places []place) bool {
	if f.watcher == nil {
		return false
	}
	f.blind = false
	wanted := map[string]interest{}
	for _, p := range places {
		// Symlinks are resolved here and not by the watcher. Kubernetes changes a link to publish a ConfigMap. Then the new
		// directory needs a watch under its own name.
		dir, err := filepath.EvalSymlinks(p.dir)
		if err != nil {
			f.blind = true // it was just removed: read again soon
			continue
		}
		in := wanted[dir]
		if p.child == "" {
			in.all = true
		} else {
			in.children = append(in.children, p.child)
		}
		wanted[dir] = in
	}
	for dir := range f.watched {
		if _, ok := wanted[dir]; !ok {
			if err := f.watcher.Remove(dir); err != nil {
				f.log.Debug("directory is no longer watched", logkey.Dir, dir, logkey.Err, err) // mostly because it was removed
			}
		}
	}
	fresh := false
	for dir := range wanted {
		// Watched directories are added again, which costs nothing: one may have been replaced under its name.
		if err := f.watcher.Add(dir); err != nil {
			if !f.blind {
				f.log.Debug("directory cannot be watched", logkey.Dir, dir, logkey.Err, err)
			}
			f.blind = true
			delete(wanted, dir)
			continue
		}
		if _, ok := f.watched[dir]; !ok {
			fresh = true
		}
		f.blind = f.blind || !reliable(dir)
	}
	f.watched = wanted
	return fresh
}

// waitFor returns the place at which dir will appear: the nearest directory above it that exists.
func waitFor(dir string) place {
	for {
		parent := filepath.Dir(dir)
		if info, err := os.Stat(parent); parent == dir || err == nil && info.IsDir() {
			return place{dir: parent, child: filepath.Base(dir)}
		}
		dir = parent
	}
}
