package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// notesCache is notes.json as it was read last. Every change makes another file, so the file's identity and times
// tell whether it is still the same.
type notesCache struct {
	file  os.FileInfo // nil: there was none
	notes launcher.Notes
}

// readNotes returns the kernel's notes, reading the file only if it is another one than before. They are the caller's.
func (l *Launcher) readNotes(k *kernel) (launcher.Notes, error) {
	l.mu.Lock()
	cache := k.notes
	l.mu.Unlock()
	path := l.layout.file(k.id, notesFile)
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return launcher.Notes{}, nil
	}
	if err != nil {
		return launcher.Notes{}, err
	}
	if c := cache.file; c != nil && os.SameFile(c, st) && c.ModTime().Equal(st.ModTime()) && c.Size() == st.Size() {
		return cache.notes.Clone(), nil
	}
	notes, err := l.parseNotes(k)
	if err != nil {
		return launcher.Notes{}, err
	}
	// If another replaced the file between Stat and reading, the next Stat sees another identity.
	l.mu.Lock()
	k.notes = notesCache{st, notes}
	l.mu.Unlock()
	return notes.Clone(), nil
}

// parseNotes reads the file. One that cannot be understood costs its kernel the notes, not its life.
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
		l.log.Error("notes of a kernel cannot be read", "kernel", k.id, "err", err)
		return launcher.Notes{}, nil
	}
	return notes, nil
}

// UpdateNotes replaces the kernel's notes. No other gateway changes them in between.
func (l *Launcher) UpdateNotes(ctx context.Context, id string, change func(launcher.Notes) (launcher.Notes, error)) (launcher.Notes, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Notes{}, err
	}
	lock, err := l.lockNotes(ctx, k)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			l.settle(k)
			err = l.layout.goneError(id)
		}
		return launcher.Notes{}, err
	}
	defer unlock(lock)
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
	k.touch()
	l.mu.Unlock()
	return after, nil
}

// lockNotes takes the lock under which notes are changed: one of its own, since the folder's may be held for as
// long as a supervisor takes to start. The error is fs.ErrNotExist if the kernel has gone.
func (l *Launcher) lockNotes(ctx context.Context, k *kernel) (*os.File, error) {
	path := l.layout.file(k.id, notesLock)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		f.Close() //nolint:errcheck // nothing was written
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock notes: %w", err)
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}
