package files_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
)

// TestJSON: a value is read as it was written, and the error of a broken file names it.
func TestJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var got map[string]int
	if err := files.ReadJSON(path, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := files.WriteJSON(path, map[string]int{"a": 1}); err != nil {
		t.Fatal(err)
	}
	if err := files.ReadJSON(path, &got); err != nil || len(got) != 1 || got["a"] != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if err := files.Write(path, []byte("{")); err != nil {
		t.Fatal(err)
	}
	if err := files.ReadJSON(path, &got); err == nil || !strings.HasPrefix(err.Error(), path+": ") {
		t.Errorf("a broken file: %v", err)
	}
}

// TestRead: what is in place of a file never hangs its reader, and is never taken for the file.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, size int) error { return os.WriteFile(at(name), make([]byte, size), 0o600) }
	listener, err := net.Listen("unix", at("socket"))
	for _, err := range []error{err, write("whole", 10), write("empty", 0), write("large", 11),
		os.Mkdir(at("folder"), 0o700), syscall.Mkfifo(at("fifo"), 0o600),
		os.Symlink("whole", at("link")), os.Symlink("/dev/zero", at("zero"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	defer listener.Close() //nolint:errcheck // nothing depends on it
	for name, want := range map[string]error{
		"whole": nil, "empty": nil, "none": fs.ErrNotExist, "large": files.ErrUnusable, "folder": files.ErrUnusable,
		"fifo": files.ErrUnusable, "link": files.ErrUnusable, "zero": files.ErrUnusable, "socket": files.ErrUnusable,
	} {
		b, err := files.Read(at(name), 10)
		if !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), at(name)) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if name == "whole" && len(b) != 10 {
			t.Errorf("%s: %d bytes", name, len(b))
		}
		if err := files.ReadJSON(at(name), new(any)); want != nil && name != "large" && !errors.Is(err, want) {
			t.Errorf("%s as JSON: %v, want %v", name, err, want)
		}
	}
	if b, err := files.Read("/proc/self/stat", 1<<10); err != nil || len(b) == 0 { // its size is 0
		t.Errorf("a file of unknown size: %q, %v", b, err)
	}
	if _, err := files.Read("/proc/self/stat", 10); !errors.Is(err, files.ErrUnusable) {
		t.Errorf("a larger file of unknown size: %v", err)
	}
}
