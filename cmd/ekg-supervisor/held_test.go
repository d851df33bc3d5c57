package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHeldFiles(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()                                     //nolint:errcheck // nothing was written
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD, 100) // without FD_CLOEXEC
	if err != nil {
		t.Fatal(err)
	}
	var held heldFiles
	if err := held.Set(fmt.Sprintf("%d+1", fd)); err != nil || len(held) != 1 || int(held[0].Fd()) != fd {
		t.Fatalf("got %v, %v", held, err)
	}
	defer held[0].Close() //nolint:errcheck // nothing was written
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("other programs inherit it: %d, %v", flags, err)
	}
	for _, bad := range []string{"", "4", "2+1", "4+0", "4+129", "-4+1", "x+1", "100000+1"} {
		if err := new(heldFiles).Set(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
