package changes

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// watched returns a Watcher of a folder, for which all folders have been read once.
func watched(t *testing.T) (w *Watcher, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "kernels")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := Watch(dir, "notes")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	if w.Known() {
		t.Error("memory has all before the first read")
	}
	w.Complete(w.Begin())
	return w, dir
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// appear makes a folder as gateways do, by a rename.
func appear(t *testing.T, dir, name string) {
	t.Helper()
	must(t, os.Mkdir(filepath.Join(dir, ".new-"+name), 0o700),
		os.Rename(filepath.Join(dir, ".new-"+name), filepath.Join(dir, name)))
}

// TestWatcher_Known: memory has all kernels until a folder appears or goes that it does not know of, and again after
// the next read. A read during which something has changed does not count.
func TestWatcher_Known(t *testing.T) {
	w, dir := watched(t)
	known := func(after string, want bool) {
		t.Helper()
		if got := w.Known(); got != want {
			t.Errorf("after %s memory has all: %v", after, got)
		}
	}
	known("the first read", true)
	appear(t, dir, "own")
	own := w.Enter("own")
	known("an own start", true)
	must(t, os.Mkdir(filepath.Join(dir, ".new-x"), 0o700))
	known("a temporary folder", true)
	appear(t, dir, "other")
	known("the start of another gateway", false)
	version := w.Begin()
	w.Enter("other")
	w.Complete(version)
	known("a read", true)
	version = w.Begin()
	must(t, os.Remove(filepath.Join(dir, "other")))
	known("an end", false)
	w.Complete(version)
	known("a read that began before", false)
	w.Complete(w.Begin())
	must(t, os.Chmod(filepath.Join(dir, "own"), 0o700))
	known("a change of a kernel that is known", true)
	must(t, os.Remove(filepath.Join(dir, "own")))
	w.Leave(own)
	known("an own end", true)
	appear(t, dir, "warm")
	w.Complete(w.Begin())
	must(t, os.Chmod(filepath.Join(dir, "warm"), 0o700))
	known("a warm kernel has got its owner", false)
	w.Complete(w.Begin())
	must(t, os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700))
	known("another folder has its place", false)
	w.Complete(w.Begin())
	known("a read of a folder that is not watched", false)
}

// TestFolder_Stamp: the stamp of a folder changes with its notes, and with nothing else. A folder that is not watched
// has none.
func TestFolder_Stamp(t *testing.T) {
	w, dir := watched(t)
	appear(t, dir, "a")
	appear(t, dir, "b")
	w.Bound = 1
	a, b := w.Enter("a"), w.Enter("b")
	var none *Folder
	if a.Stamp() == 0 || b.Stamp() != 0 || none.Stamp() != 0 {
		t.Errorf("stamps are %d, %d and %d", a.Stamp(), b.Stamp(), none.Stamp())
	}
	change := func(name string) bool {
		t.Helper()
		before := a.Stamp()
		must(t, os.WriteFile(filepath.Join(dir, "a", "new"), nil, 0o600),
			os.Rename(filepath.Join(dir, "a", "new"), filepath.Join(dir, "a", name)))
		w.Known()
		return a.Stamp() != before
	}
	if !change("notes") || change("other") || !change("notes") {
		t.Error("the stamp does not follow the notes")
	}
	w.Leave(a)
	if a.Stamp() != 0 || change("notes") {
		t.Error("a folder that was left has a stamp")
	}
	b = w.Enter("b")
	if b.Stamp() == 0 {
		t.Error("the watch of a folder that was left is not free")
	}
	must(t, os.Rename(filepath.Join(dir, "b"), filepath.Join(dir, "c")))
	w.Known()
	if b.Stamp() != 0 {
		t.Error("a folder that was renamed has a stamp")
	}
	w.Close()
	if f := w.Enter("a"); f.Stamp() != 0 || w.Known() {
		t.Error("a closed Watcher reports changes")
	}
}

// TestWatch_NoFolder: a Watcher that can watch nothing says so, and reports no changes.
func TestWatch_NoFolder(t *testing.T) {
	w, err := Watch(filepath.Join(t.TempDir(), "none"), "notes")
	if err == nil {
		t.Error("no error")
	}
	w.Complete(w.Begin())
	if f := w.Enter("a"); f.Stamp() != 0 || w.Known() {
		t.Error("it reports changes")
	}
	w.Leave(w.Enter("b"))
}
