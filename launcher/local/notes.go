package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/changes"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// notesCache is the last notes.json that was read. Every change creates a new file, so the file's identity and times
// tell whether the cache is valid. Launcher.mu guards it.
type notesCache struct {
	file  changes.Version // zero if the file did not exist
	notes launcher.Notes
	stamp uint64 // of the kernel's folder before the read
}

// notesKnownLocked reports whether the notes in memory are valid without a look at the file.
func (k *kernel) notesKnownLocked() bool {
	return k.notes.stamp != 0 && k.notes.stamp == k.folder.Stamp()
}

// readNotes returns the kernel's notes. It reads the file only if the cache is not valid. The caller may modify the
// result.
func (l *Launcher) readNotes(k *kernel) (launcher.Notes, error) {
	l.mu.Lock()
	cache, stamp := k.notes, k.folder.Stamp()
	l.mu.Unlock()
	now, err := changes.VersionOf(k.dir + "/" + notesFile)
	notes := cache.notes
	switch {
	case errors.Is(err, fs.ErrNotExist):
		now, notes = changes.Version{}, launcher.Notes{}
	case err != nil:
		return launcher.Notes{}, err
	case now != cache.file:
		if notes, err = k.parseNotes(l.log); err != nil {
			return launcher.Notes{}, err
		}
	}
	// If the file is replaced after this Stat, the next Stat finds another version. Lists learn of it by an event, which
	// has changed the stamp already, or is still in the queue.
	l.mu.Lock()
	k.notes = notesCache{now, notes, stamp}
	l.mu.Unlock()
	return notes.Clone(), nil
}

// parseNotes reads the file. Notes that cannot be parsed are dropped; the kernel stays. It may have been shared.
func (k *kernel) parseNotes(log *slog.Logger) (launcher.Notes, error) {
	var notes launcher.Notes
	err := files.ReadJSON(filepath.Join(k.dir, notesFile), &notes)
	if errors.Is(err, fs.ErrNotExist) {
		return notes, nil
	}
	if errors.Is(err, files.ErrUnusable) {
		log.Error("notes of a kernel cannot be read", logkey.Kernel, k.id, logkey.Err, err)
		return launcher.Notes{SharedToUse: true}, nil
	}
	return notes, err
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
	before, err := k.parseNotes(l.log)
	if err != nil {
		return launcher.Notes{}, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	after, err := change(before)
	if err != nil {
		return launcher.Notes{}, err
	}
	if err := files.WriteJSON(l.layout.file(k.id, notesFile), after); err != nil {
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
