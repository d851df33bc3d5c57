// Package flock locks files and folders by flock(2), among the gateways and supervisors of one machine. The system
// releases a lock when the last process has ended that has the open file. A lock does not signal its release, so what
// waits for one tries again at growing intervals. A file or folder that was removed between its opening and its locking
// does not exist for this package. The package starts no goroutine.
package flock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

// ErrBusy says that another program holds a lock.
var ErrBusy = errors.New("another program holds the lock")

// Pauses between two attempts.
const (
	filePause, maxFilePause     = time.Millisecond, 20 * time.Millisecond
	folderPause, maxFolderPause = 5 * time.Millisecond, 200 * time.Millisecond
)

// noWait makes an open(2) that follows no link, and that does not wait for the other end of a FIFO.
const noWait = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// Try creates a file, if need be, and locks it. The error is ErrBusy if another program has the lock, and
// fs.ErrNotExist if the file's folder has gone. What has the name and cannot be locked gets another name.
func Try(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|noWait, 0o600)
	if files.Refused(err) || errors.Is(err, syscall.EISDIR) {
		if err = clearName(path); err == nil {
			f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|noWait, 0o600)
		}
	}
	if err != nil {
		return nil, err
	}
	return try(f)
}

// clearName renames what has a lock's name and is not a file: a hostile program of this user has made it. A file gets
// its rights back.
func clearName(path string) error {
	at, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // another program has cleared the name
		return nil
	case err != nil:
		return err
	case at.Mode().IsRegular():
		return os.Chmod(path, 0o600)
	}
	return os.Rename(path, path+".aside."+strconv.FormatInt(time.Now().UnixNano(), 36))
}

// try locks an open file or folder that still has its name, or closes it.
func try(f *os.File) (*os.File, error) {
	err := Take(f, syscall.LOCK_EX)
	if err == nil {
		err = named(f)
	}
	if err != nil {
		Unlock(f)
		return nil, err
	}
	return f, nil
}

// Take locks an open file; how is syscall.LOCK_EX or LOCK_SH. The error is ErrBusy if another program has the lock.
func Take(f *os.File, how int) error {
	err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		return ErrBusy
	}
	return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
}

// named returns fs.ErrNotExist if an open file's name is that of no file, or of another one.
func named(f *os.File) error {
	ours, err := f.Stat()
	if err != nil {
		return err
	}
	present, err := os.Lstat(f.Name())
	if err == nil && !os.SameFile(ours, present) {
		err = fs.ErrNotExist
	}
	return err
}

// Wait is Try, but waits until no other program has the lock. The error may be that of ctx.
func Wait(ctx context.Context, path string) (*os.File, error) {
	for pause := filePause; ; pause = min(2*pause, maxFilePause) {
		f, err := Try(path)
		if !errors.Is(err, ErrBusy) {
			return f, err
		}
		if err := goroutines.Sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// Folder locks a folder that exists. The error is ErrBusy, or fs.ErrNotExist if the folder has been removed.
func Folder(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|noWait, 0)
	if err != nil {
		return nil, err
	}
	return try(f)
}

// WaitFolder is Folder, but waits while another program has the lock. The error is ErrBusy when ctx ends.
func WaitFolder(ctx context.Context, dir string) (*os.File, error) {
	for pause := folderPause; ; pause = min(2*pause, maxFolderPause) {
		f, err := Folder(dir)
		if !errors.Is(err, ErrBusy) || goroutines.Sleep(ctx, pause) != nil {
			return f, err
		}
	}
}

// Unlock releases a lock. Closing the file is not enough while a process that is being started has a copy of it.
func Unlock(f *os.File) {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	_ = f.Close() // nothing was written
}

// Held reports whether any program has the lock of a file; with alone, whether one has it for itself. A file that does
// not exist, or that cannot be a lock, is not locked. The caller makes sure that no other program takes the lock at
// this moment, and fails.
func Held(path string, alone bool) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|noWait, 0)
	if errors.Is(err, fs.ErrNotExist) || files.Refused(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	how := syscall.LOCK_EX
	if alone {
		how = syscall.LOCK_SH
	}
	err = Take(f, how)
	Unlock(f)
	if errors.Is(err, ErrBusy) {
		return true, nil
	}
	return false, err
}
