package files

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// parity is the owner of numbers.
func parity(n *int) string { return []string{"even", "odd"}[*n%2] }

// TestFolder: files that are placed, replaced and removed are seen at once, also within one step of the clock. A file
// that did not change is not read again.
func TestFolder(t *testing.T) {
	for name, blind := range map[string]bool{"inotify": false, "without": true} {
		t.Run(name, func(t *testing.T) { testFolder(t, blind) })
	}
}

func testFolder(t *testing.T, blind bool) {
	dir := filepath.Join(t.TempDir(), "files")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name string, v int) {
		t.Helper()
		if err := WriteJSON(filepath.Join(dir, name), v); err != nil {
			t.Fatal(err)
		}
	}
	f := NewFolder(dir, parity)
	defer f.Close()
	f.blind = blind
	wantOf := func(owner string, values ...int) {
		t.Helper()
		all, err := f.Read(owner)
		if err != nil || len(all) != len(values) {
			t.Fatalf("got %v, %v, want %v", all, err, values)
		}
		for i, e := range all {
			if e.Err != nil || e.Value != values[i] {
				t.Errorf("got %v, want %v", all, values)
			}
		}
	}
	want := func(values ...int) {
		t.Helper()
		wantOf("", values...)
	}
	want()
	write("b", 1)
	want(1)
	write("a", 2)
	want(2, 1)
	for i := range 20 {
		write("b", i)
		want(2, i)
	}
	wantOf("odd", 19)
	wantOf("even", 2)
	write("a", 1)
	wantOf("odd", 1, 19)
	wantOf("even")
	if err := os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	want(19)
	wantOf("odd", 19)

	// A folder whose last change is old is not read at all. Its next change is seen.
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(dir, old, old); err != nil {
		t.Fatal(err)
	}
	want(19)
	if f.changed.IsZero() && blind {
		t.Error("the folder is read again, though its last change is old")
	}
	write("a", 3)
	want(3, 19)

	if err := os.WriteFile(filepath.Join(dir, "c"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, owner := range []string{"", "odd"} {
		all, err := f.Read(owner)
		if err != nil || len(all) != 3 || !errors.Is(all[2].Err, ErrUnusable) {
			t.Errorf("got %v, %v", all, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "c"), []byte("4"), 0o600); err != nil { // in place
		t.Fatal(err)
	}
	want(3, 19, 4)
	if err := os.Rename(dir, dir+"-before"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write("d", 6)
	want(6)
	f.Close()
	write("d", 8)
	want(8)
	if f.queue >= 0 {
		t.Error("a closed folder is watched")
	}
}

// TestFolder_Many: more changes than inotify's queue has room for.
func TestFolder_Many(t *testing.T) {
	dir := t.TempDir()
	f := NewFolder(dir, parity)
	defer f.Close()
	if _, err := f.Read(""); err != nil {
		t.Fatal(err)
	}
	for i := range 5000 { // of four events each
		if err := WriteJSON(filepath.Join(dir, strconv.Itoa(i)), i); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := f.Read("odd"); err != nil || len(all) != 2500 {
		t.Errorf("%d files are known, %v", len(all), err)
	}
}

// BenchmarkFolder reads one owner's file beside those of others: in a folder that does not change, in one whose last
// change is young, after another owner's file was replaced, which is a part of the time, and for the first time.
func BenchmarkFolder(b *testing.B) {
	for _, files := range []int{100, 1000, 10_000} {
		dir := b.TempDir()
		for i := range files + 1 {
			if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), []byte(strconv.Itoa(min(2*i, 2)+1)), 0o600); err != nil {
				b.Fatal(err)
			}
		}
		owner := func(n *int) string { return strconv.Itoa(*n) }
		for name, changed := range map[string]time.Duration{"settled": -time.Hour, "young": 0, "replaced": 0, "first": 0} {
			b.Run(name+"/"+strconv.Itoa(files), func(b *testing.B) {
				at := time.Now().Add(changed)
				if err := os.Chtimes(dir, at, at); err != nil {
					b.Fatal(err)
				}
				f := NewFolder(dir, owner)
				if _, err := f.Read("1"); err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					switch name {
					case "first":
						f.Close()
						f = NewFolder(dir, owner)
					case "replaced":
						if err := WriteJSON(filepath.Join(dir, "7"), 3); err != nil {
							b.Fatal(err)
						}
					}
					if all, err := f.Read("1"); err != nil || len(all) != 1 {
						b.Fatal(all, err)
					}
				}
				f.Close()
			})
		}
	}
}
