package kernelspecs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// How soon a change is seen. None of these is an option: nobody can tell them apart.
const (
	settle    = 100 * time.Millisecond // from the first event to the reading, so that a copied directory is read once
	pollBlind = time.Second            // between readings where some directory cannot be watched
	pollSure  = 10 * time.Second       // between readings otherwise: mends what a lost event has hidden
)

// place is a directory to watch.
type place struct {
	dir   string
	child string // the only entry whose events count; "" if all do
}

// interest is what counts in a watched directory.
type interest struct {
	all      bool
	children []string // unless all
}

// watchable are the file systems whose changes all pass through this machine's kernel, by their magic number. Of
// others, as NFS or FUSE, inotify tells only what this machine does itself.
var watchable = []int64{
	0xEF53,     // ext
	0x58465342, // xfs
	0x9123683E, // btrfs
	0x01021994, // tmpfs
	0x858458F6, // ramfs
	0x794C7630, // overlay
	0x2FC12FC1, // zfs
	0xF2F52010, // f2fs
	0x73717368, // squashfs
	0xCA451A4E, // bcachefs
}

// watch re-reads the directories after events and, at a pace that depends on how far events can be trusted, without
// any. It runs until Close.
func (f *Finder) watch() {
	defer close(f.done)
	// Without a watcher these stay nil and never deliver.
	var events <-chan fsnotify.Event
	var failures <-chan error
	if f.watcher != nil {
		events, failures = f.watcher.Events, f.watcher.Errors
	}
	poll := time.NewTimer(f.pollInterval())
	defer poll.Stop()
	// Not postponed by further events: a directory that is written all the time is read all the same.
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
				f.log.Warn("watching kernelspecs", "err", err)
			}
		case <-settled:
		case <-poll.C:
		}
		settled = nil
		f.reread()
		poll.Reset(f.pollInterval())
	}
}

// pollInterval returns how long to trust events.
func (f *Finder) pollInterval() time.Duration {
	if f.watcher == nil || f.blind {
		return f.poll
	}
	return pollSure
}

// counts reports whether an event can have changed a spec. Where a directory is still waited for, the one above it is
// watched, which may be a busy one as the user's home.
func (f *Finder) counts(ev fsnotify.Event) bool {
	if _, ok := f.watched[ev.Name]; ok {
		return true
	}
	in, ok := f.watched[filepath.Dir(ev.Name)]
	return ok && (in.all || slices.Contains(in.children, filepath.Base(ev.Name)))
}

// watchDirs makes the watcher watch these places and no others. It reports whether a directory is watched now that was
// not before.
func (f *Finder) watchDirs(places []place) bool {
	if f.watcher == nil {
		return false
	}
	f.blind = false
	wanted := map[string]interest{}
	for _, p := range places {
		// A link is followed here, as the watcher would do: when it is turned elsewhere, as Kubernetes does to publish
		// a ConfigMap, the new directory has to be watched under a name of its own.
		dir, err := filepath.EvalSymlinks(p.dir)
		if err != nil {
			f.blind = true // it has just gone: look again soon
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
				f.log.Debug("directory is no longer watched", "dir", dir, "err", err) // mostly because it is gone
			}
		}
	}
	fresh := false
	for dir := range wanted {
		// Known ones are added too, which costs nothing: a directory may have been replaced under its name.
		if err := f.watcher.Add(dir); err != nil {
			if !f.blind {
				f.log.Debug("directory cannot be watched", "dir", dir, "err", err)
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

// reliable reports whether inotify tells all changes of a directory.
func reliable(dir string) bool {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return false
	}
	return slices.Contains(watchable, int64(uint32(st.Type)))
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
