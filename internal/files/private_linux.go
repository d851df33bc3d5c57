package files

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// MakePrivate creates a folder that only this user can enter, or checks an existing one. Another user may have created
// an entry of that name first, for example in a temp folder. The error names the folder and says what is wrong.
//
// A symbolic link is followed if it belongs to this user or to root. A folder that others could write into is accepted
// only while it is empty, as the root of a mounted volume is: others may have put something into it before.
func MakePrivate(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	real, err := ownLink(dir)
	if err != nil {
		return err
	}
	// Not followed, so that no link replaces the folder that was looked at.
	f, err := os.OpenFile(real, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP):
		return fmt.Errorf("%s is not a folder", dir)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s cannot be opened: it belongs to another user, or its mode is wrong", dir)
	case err != nil:
		return err
	}
	defer func() { _ = f.Close() }() // nothing was written
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if uid, own := owner(st); !own {
		return fmt.Errorf("%s belongs to another user, with the id %d", dir, uid)
	}
	mode := st.Mode().Perm()
	if mode&0o077 == 0 {
		return nil
	}
	if err := f.Chmod(0o700); err != nil {
		return err
	}
	if mode&0o002 == 0 {
		return nil
	}
	if _, err := f.Readdirnames(1); !errors.Is(err, io.EOF) {
		_ = f.Chmod(mode) // the next start refuses the folder again
		return fmt.Errorf("%s has the mode %04o, so other users could write into it, and it is not empty", dir, mode)
	}
	return nil
}

// ownLink returns the path that a folder's path leads to. It is the same path unless that is a symbolic link.
func ownLink(dir string) (string, error) {
	st, err := os.Lstat(dir)
	if err != nil || st.Mode()&os.ModeSymlink == 0 {
		return dir, err
	}
	if uid, own := owner(st); !own && uid != 0 {
		return "", fmt.Errorf("%s is a symbolic link of another user, with the id %d", dir, uid)
	}
	return filepath.EvalSymlinks(dir)
}

// owner returns the owner of a file, and whether it is this user.
func owner(st os.FileInfo) (uid int, own bool) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return -1, false
	}
	return int(sys.Uid), int(sys.Uid) == os.Getuid()
}
