package local

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestBadEntries(t *testing.T) {
	p := newPlace(t)
	l := p.open()
	p.start(l, 1, "fine")
	_ = l.Close()
	kernels := filepath.Join(p.state, "kernels")
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(kernels, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(id(2)+"/kernel.json", "{half")
	write(id(3)+"/other", "")
	write(id(4)+"/kernel.json", `{"id":"`+id(5)+`"}`)
	write(id(6)+"/kernel.json", `{"id":"`+id(6)+`"}`)
	write(id(7), "a file")
	write("not-an-id/kernel.json", "{}")
	write(".new-1/kernel.json", "{}")
	write(id(1)+"/notes.json", "{half")
	old := time.Now().Add(-time.Hour)
	write(".old-2/kernel.json", "{}")
	if err := os.Chtimes(filepath.Join(kernels, ".old-2"), old, old); err != nil {
		t.Fatal(err)
	}
	l = p.launcher()
	all, err := l.Kernels(t.Context())
	if err != nil || len(all) != 1 || all[0].ID != id(1) || len(all[0].Sessions) != 0 ||
		!all[0].SharedToUse { // its notes may have said so
		t.Errorf("listed: %+v, %v", all, err)
	}
	aside, err := os.ReadDir(filepath.Join(p.state, "aside"))
	if err != nil || len(aside) != 6 {
		t.Errorf("set aside: %v, %v", aside, err)
	}
	if n := strings.Count(p.log.String(), "set aside"); n != 6 {
		t.Errorf("logged %d times", n)
	}
	// Another gateway is working on this entry. It is unknown whether the kernel exists, so the entry stays.
	var held *os.File
	eventually(t, "the entry is there, and the launcher does not look at it", func() bool {
		write(id(8)+"/other", "")
		held, err = flock.Folder(filepath.Join(kernels, id(8)))
		return err == nil
	})
	if _, err := l.Kernel(t.Context(), id(8)); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("a folder that is being worked on: %v", err)
	}
	flock.Unlock(held)
	if _, err := l.Kernel(t.Context(), id(8)); err != launcher.ErrNotFound {
		t.Errorf("a bad one: %v", err)
	}
	eventually(t, "what was half removed is removed, what may be in the making is not", func() bool {
		left, err := os.ReadDir(kernels)
		return err == nil && len(left) == 2
	})
	if err := os.RemoveAll(filepath.Join(kernels, ".new-1")); err != nil {
		t.Fatal(err)
	}
}

func TestGoneError(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	write := func(content string) {
		if err := os.WriteFile(l.layout.endingFile(id(1)), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.Marshal(api.Ending{KernelID: id(1), Reason: "r", At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	write(string(b))
	var gone *launcher.GoneError
	if _, err := l.Kernel(t.Context(), id(1)); !errors.As(err, &gone) || gone.Reason != "r" || gone.Owner != "" {
		t.Errorf("a record of an earlier version: %+v, %v", gone, err)
	}
	b, err = json.Marshal(storedEnding{api.Ending{KernelID: id(1), Reason: "r", At: time.Now()}, "fake", "ann", "", 0})
	if err != nil {
		t.Fatal(err)
	}
	write(string(b))
	for _, l := range []*Launcher{l, p.launcher()} {
		if _, err := l.Kernel(t.Context(), id(1)); !errors.As(err, &gone) || gone.Reason != "r" || gone.Owner != "ann" {
			t.Errorf("got %+v, %v", gone, err)
		}
	}
	write("{half")
	if _, err := l.Kernel(t.Context(), id(1)); err != launcher.ErrNotFound {
		t.Errorf("a broken record of an end: %v", err)
	}
	if _, err := l.Kernel(t.Context(), "../"+id(1)); err != launcher.ErrNotFound {
		t.Errorf("no id: %v", err)
	}
	// A record that cannot be read does not prove that the kernel is gone.
	if err := os.RemoveAll(l.layout.kernels()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Kernels(t.Context()); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("without a folder: %v", err)
	}
	if err := os.Mkdir(l.layout.kernels(), 0o700); err != nil {
		t.Fatal(err)
	}
}

// The launcher refuses the default folder of its sockets if another user has made it.
func TestOpen_RuntimeDirOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give a file to another user")
	}
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("XDG_RUNTIME_DIR", "")
	target := t.TempDir()
	link := filepath.Join(os.TempDir(), "ekg-0")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(link, 54321, 54321); err != nil {
		t.Fatal(err)
	}
	_, err := newLayout(filepath.Join(t.TempDir(), "state"), "", slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "RuntimeDir: "+link+" is a symbolic link of another user") {
		t.Errorf("got %v", err)
	}
}
