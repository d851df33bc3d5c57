package flock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestWait: one holder at a time has the lock of a file, however many wait. Who gives up gets the error of its context.
func TestWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var holders sync.WaitGroup
	var n, inside atomic.Int64
	for range 8 {
		holders.Go(func() {
			f, err := Wait(t.Context(), path)
			if err != nil {
				t.Error(err)
				return
			}
			defer Unlock(f)
			if inside.Add(1) != 1 {
				t.Error("two have the lock")
			}
			n.Add(1)
			inside.Add(-1)
		})
	}
	holders.Wait()
	f, err := Try(path)
	if err != nil || n.Load() != 8 {
		t.Fatalf("%d holders, %v", n.Load(), err)
	}
	defer Unlock(f)
	if _, err := Try(path); !errors.Is(err, ErrBusy) {
		t.Errorf("a lock that is held: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := Wait(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	if _, err := Wait(t.Context(), filepath.Join(t.TempDir(), "gone", "lock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a folder that is not there: %v", err)
	}
}

// TestFolder: a folder is locked by one holder, and a removed one by none.
func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "k")
	if _, err := Folder(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := Folder(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := WaitFolder(ctx, dir); !errors.Is(err, ErrBusy) {
		t.Errorf("a folder that is locked: %v", err)
	}
	Unlock(f)
	if f, err = WaitFolder(ctx, dir); err != nil {
		t.Fatal(err)
	}
	Unlock(f)
}

// TestHeld: whether a lock is held, for itself or shared.
func TestHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	check := func(what string, any, alone bool) {
		t.Helper()
		got1, err1 := Held(path, false)
		got2, err2 := Held(path, true)
		if got1 != any || got2 != alone || err1 != nil || err2 != nil {
			t.Errorf("%s: held %v, alone %v, %v, %v", what, got1, got2, err1, err2)
		}
	}
	check("no file", false, false)
	f, err := Try(path)
	if err != nil {
		t.Fatal(err)
	}
	check("one holder", true, true)
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	check("shared", true, false)
	Unlock(f)
	check("released", false, false)
}

// TestTry_Removed: a file that has lost its name before it is locked is not locked, also if another one has the name.
func TestTry_Removed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	for _, another := range []bool{false, true} {
		f, err := os.Create(path)
		if err == nil {
			err = os.Remove(path)
		}
		if err == nil && another {
			err = os.WriteFile(path, nil, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := try(f); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("another %t: %v", another, err)
		}
	}
}

// TestTry_Unusable: what a hostile program of this user has put in a lock's place is not locked, and does not keep the
// lock from being taken.
func TestTry_Unusable(t *testing.T) {
	for name, with := range map[string]func(path string) error{
		"a folder":         func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) },
		"a FIFO":           func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a link to a file": func(path string) error { return os.Symlink("/proc/self/stat", path) },
		"a link to itself": func(path string) error { return os.Symlink(path, path) },
		"a socket":         func(path string) error { return syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0) },
		"no rights":        func(path string) error { return os.WriteFile(path, nil, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "lock")
			asUser(t, dir)
			if err := with(path); err != nil {
				t.Fatal(err)
			}
			if held, err := Held(path, true); held || err != nil {
				t.Errorf("held: %t, %v", held, err)
			}
			f, err := Try(path)
			if err != nil {
				t.Fatal(err)
			}
			defer Unlock(f)
			if held, err := Held(path, true); !held || err != nil {
				t.Errorf("once it is locked: held %t, %v", held, err)
			}
		})
	}
}

// asUser makes this test's thread, if it is root's, look at files as another user, who gets a folder. The thread ends
// with the test.
func asUser(t *testing.T, dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		return
	}
	const nobody = 65534
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, nobody, -1); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	if _, _, err := syscall.RawSyscall(syscall.SYS_SETFSUID, nobody, 0, 0); err != 0 {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, 0, 0, 0) })
}
