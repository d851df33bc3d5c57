package local

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/children"
)

// TestFullDisk: on a full disk, a start and a record fail by that name and leave nothing. With space, both succeed.
func TestFullDisk(t *testing.T) {
	p := newPlace(t)
	if err := os.MkdirAll(p.state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("none", p.state, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Skipf("no file system can be mounted: %v", err)
	}
	t.Cleanup(func() {
		p.clear()
		if err := syscall.Unmount(p.state, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	l := p.launcher()
	filler := filepath.Join(p.state, "filler")
	err := os.WriteFile(filler, make([]byte, 2<<20), 0o600)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk does not get full: %v", err)
	}
	_, _, err = l.Start(t.Context(), launcher.Request{ID: id(1), Owner: "ann", Spec: fakeSpec("fine")})
	if !launcher.DiskFull(err) {
		t.Errorf("a start: %v", err)
	}
	record := launcher.Record{Kind: "a", ID: "b", Data: make([]byte, 100)}
	if _, err := l.CreateRecord(t.Context(), record); !launcher.DiskFull(err) || !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("a record: %v", err)
	}
	if all, err := l.Kernels(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("kernels: %+v, %v", all, err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	p.start(l, 1, "fine")
	if _, err := l.CreateRecord(t.Context(), record); err != nil {
		t.Errorf("a record, with space: %v", err)
	}
}

// TestAwaitReady_DiskFull: a supervisor without space or quota says so in its line. A start fails by that name.
func TestAwaitReady_DiskFull(t *testing.T) {
	ps := processes{ready: time.Minute, now: time.Now}
	for _, why := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EACCES} {
		ready, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_, err = writer.WriteString("write /x: " + why.Error() + "\n")
		if err = errors.Join(err, writer.Close()); err != nil {
			t.Fatal(err)
		}
		err = ps.awaitReady(t.Context(), &children.Child{PID: 1}, ready)
		if launcher.DiskFull(err) != (why != syscall.EACCES) {
			t.Errorf("%v: %v", why, err)
		}
		_ = ready.Close() // it was only read
	}
}
