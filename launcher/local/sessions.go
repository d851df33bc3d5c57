package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// sessionCache is sessions.json as it was read last. Every change makes another file, so the file's identity and times
// tell whether it is still the same.
type sessionCache struct {
	file os.FileInfo // nil: there was none
	list []launcher.Session
}

// readSessions returns the kernel's sessions, reading the file only if it is another one than before. The slice is the
// caller's.
func (l *Launcher) readSessions(k *kernel) ([]launcher.Session, error) {
	l.mu.Lock()
	cache := k.sessions
	l.mu.Unlock()
	path := l.layout.file(k.id, sessionsFile)
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if c := cache.file; c != nil && os.SameFile(c, st) && c.ModTime().Equal(st.ModTime()) && c.Size() == st.Size() {
		return slices.Clone(cache.list), nil
	}
	list, err := l.parseSessions(k)
	if err != nil {
		return nil, err
	}
	// If another replaced the file between Stat and reading, the next Stat sees another identity.
	l.mu.Lock()
	k.sessions = sessionCache{st, list}
	l.mu.Unlock()
	return slices.Clone(list), nil
}

// parseSessions reads the file. One that cannot be understood costs its kernel the sessions, not its life.
func (l *Launcher) parseSessions(k *kernel) ([]launcher.Session, error) {
	var list []launcher.Session
	b, err := os.ReadFile(l.layout.file(k.id, sessionsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &list); err != nil {
		l.log.Error("sessions of a kernel cannot be read", "kernel", k.id, "err", err)
		return nil, nil
	}
	return list, nil
}

// UpdateSessions replaces the kernel's sessions. No other gateway changes them in between.
func (l *Launcher) UpdateSessions(ctx context.Context, id string, change func([]launcher.Session) ([]launcher.Session, error)) ([]launcher.Session, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return nil, err
	}
	lock, err := l.lockSessions(ctx, k)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			l.settle(k)
			return nil, l.layout.goneError(id)
		}
		return nil, err
	}
	defer unlock(lock)
	before, err := l.parseSessions(k)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	after, err := change(slices.Clone(before))
	if err != nil {
		return nil, err
	}
	if after == nil {
		after = []launcher.Session{}
	}
	if err := writeJSON(l.layout.file(k.id, sessionsFile), after); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, l.layout.goneError(id)
		}
		return nil, fmt.Errorf("sessions: %w", err)
	}
	l.mu.Lock()
	k.touch()
	l.mu.Unlock()
	return slices.Clone(after), nil
}

// lockSessions takes the lock under which sessions are changed: one of its own, since the folder's may be held for as
// long as a supervisor takes to start. The error is fs.ErrNotExist if the kernel has gone.
func (l *Launcher) lockSessions(ctx context.Context, k *kernel) (*os.File, error) {
	path := l.layout.file(k.id, sessionsLock)
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
			return nil, fmt.Errorf("lock sessions: %w", err)
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}
