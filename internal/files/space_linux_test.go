package files

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

// TestSpace_Units: statfs counts in units of Frsize, which may differ from the block size for input and output. A
// reported size that overflows is bounded.
func TestSpace_Units(t *testing.T) {
	for name, c := range map[string]struct {
		st   syscall.Statfs_t
		want Space
	}{
		"the units differ": {
			syscall.Statfs_t{Bsize: 1 << 20, Frsize: 4 << 10, Bavail: 3, Blocks: 8},
			Space{Free: 12 << 10, Size: 32 << 10},
		},
		"an old kernel": {
			syscall.Statfs_t{Bsize: 4 << 10, Bavail: 3, Blocks: 8},
			Space{Free: 12 << 10, Size: 32 << 10},
		},
		"no unit": {
			syscall.Statfs_t{Bavail: 3, Blocks: 8},
			Space{},
		},
		"a size that overflows": {
			syscall.Statfs_t{Frsize: 4 << 10, Bavail: 1<<64 - 1, Blocks: 1 << 62},
			Space{Free: 1 << 60, Size: 1 << 60},
		},
		"tmpfs": {
			syscall.Statfs_t{Type: tmpfsMagic, Frsize: 1, Bavail: 1, Blocks: 2},
			Space{1, 2, true},
		},
		"ramfs": {
			syscall.Statfs_t{Type: ramfsMagic, Frsize: 1, Bavail: 1, Blocks: 2},
			Space{1, 2, true},
		},
	} {
		if got := spaceOf(&c.st); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestSpaceOf: a real file system has free space, and a folder that does not exist has none.
func TestSpaceOf(t *testing.T) {
	if s, err := SpaceOf(t.TempDir()); err != nil || s.Free <= 0 || s.Size < s.Free {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := SpaceOf("/no/such/folder"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
