package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// notesCache is the last notes.json that was read. Every change creates a new file, so the file's identity and times
// tell whether the cache is valid. Launcher.mu guards it.
type notesCache struct {
	file    fileVersion // zero if the file did not exist
	notes   launcher.Notes
	current bool   // no event in the launcher's changes says otherwise: the cache is valid without a look at the file
	changes uint64 // counts the events
}

// notesChangedLocked makes the next reader look at the file.
func (l *Launcher) notesChangedLocked(k *kernel) {
	k.notes.changes++
	k.notes.current = false
}

// fileVersion tells a file from one that has replaced it.
type fileVersion struct {
	device, inode uint64
	modified      syscall.Timespec
	size          int64
}

// sameFile reports whether two versions have the same identity.
func (v fileVersion) sameFile(other fileVersion) bool {
	return v.device == other.device && v.inode == other.inode
}

// versionOf returns the version of the file at path. It is cheaper than os.Stat: a list asks for thousands of files.
func versionOf(path string) (fileVersion, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return fileVersion{}, err // an Errno is compared with fs.ErrNotExist without memory of its own
	}
	return fileVersion{uint64(st.Dev), st.Ino, st.Mtim, st.Size}, nil
}

// readNotes returns the kernel's notes. It reads the file only if the cache is not valid. The caller may modify the
// result.
func (l *Launcher) readNotes(k *kernel) (launcher.Notes, error) {
	l.mu.Lock()
	cache := k.notes
	l.mu.Unlock()
	now, err := versionOf(k.dir + "/" + notesFile)
	notes := cache.notes
	switch {
	case errors.Is(err, fs.ErrNotExist):
		now, notes = fileVersion{}, launcher.Notes{}
	case err != nil:
		return launcher.Notes{}, err
	case now != cache.file:
		if notes, err = l.parseNotes(k); err != nil {
			return launcher.Notes{}, err
		}
	}
	// If the file is replaced after this Stat, the next Stat finds another version. Lists learn of it by an event, which
	// is counted already, or still in the queue.
	l.mu.Lock()
	k.notes.current = k.watch != 0 && k.notes.changes == cache.changes
	k.notes.file, k.notes.notes = now, notes
	l.mu.Unlock()
	return notes.Clone(), nil
}

// parseNotes reads the file. Notes that cannot be parsed are dropped; the kernel stays. It may have been shared.
func (l *Launcher) parseNotes(k *kernel) (launcher.Notes, error) {
	var notes launcher.Notes
	b, err := os.ReadFile(l.layout.file(k.id, notesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return notes, nil
	}
	if err != nil {
		return notes, err
	}
	if err := json.Unmarshal(b, &notes); err != nil {
		l.log.Error("notes of a kernel cannot be read", logkey.Kernel, k.id, logkey.Err, err)
		return launcher.Notes{SharedToUse: true}, nil
	}
	return notes, nil
}

// UpdateNotes replaces the kernel's notes under a lock that all gateways take.
func (l *Launcher) UpdateNotes(ctx context.Context, id string,
	change func(launcher.Notes) (launcher.Notes, error)) (launcher.Notes, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Notes{}, err
	}
	lock, err := flock.Wait(ctx, l.layout.file(k.id, notesLock)) // the folder's may be held until a supervisor has started
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			l.reconcile(k)
			err = l.layout.goneError(id)
		}
		return launcher.Notes{}, err
	}
	defer flock.Unlock(lock)
	before, err := l.parseNotes(k)
	if err != nil {
		return launcher.Notes{}, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	after, err := change(before)
	if err != nil {
		return launcher.Notes{}, err
	}
	if err := writeJSON(l.layout.file(k.id, notesFile), after); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return launcher.Notes{}, l.layout.goneError(id)
		}
		return launcher.Notes{}, fmt.Errorf("notes: %w", err)
	}
	l.mu.Lock()
	k.supervisor.ChangedLocked()
	l.mu.Unlock()
	return after, nil
}
