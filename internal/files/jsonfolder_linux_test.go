package files

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// TestFolder: files that are placed, replaced and removed are seen at once, also within one step of the clock. A file
// that did not change is not read again.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, v int) {
		t.Helper()
		if err := WriteJSON(filepath.Join(dir, name), v); err != nil {
			t.Fatal(err)
		}
	}
	f := NewFolder[int](dir)
	want := func(values ...int) {
		t.Helper()
		all, err := f.Read()
		if err != nil || len(all) != len(values) {
			t.Fatalf("got %v, %v, want %v", all, err, values)
		}
		for i, e := range all {
			if e.Err != nil || e.Value != values[i] {
				t.Errorf("got %v, want %v", all, values)
			}
		}
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
	if err := os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	want(19)

	// A folder whose last change is old is not read at all. Its next change is seen.
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(dir, old, old); err != nil {
		t.Fatal(err)
	}
	want(19)
	if f.changed.IsZero() {
		t.Error("the folder is read again, though its last change is old")
	}
	write("a", 3)
	want(3, 19)

	if err := os.WriteFile(filepath.Join(dir, "c"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := f.Read()
	if err != nil || len(all) != 3 || !errors.Is(all[2].Err, ErrUnusable) {
		t.Errorf("got %v, %v", all, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "c"), []byte("4"), 0o600); err != nil { // in place
		t.Fatal(err)
	}
	want(3, 19, 4)
	if _, err := NewFolder[int](filepath.Join(dir, "none")).Read(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

// BenchmarkFolder reads a folder that does not change, and one whose last change is young.
func BenchmarkFolder(b *testing.B) {
	for _, files := range []int{100, 1000, 10_000} {
		dir := b.TempDir()
		for i := range files {
			if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), []byte("1"), 0o600); err != nil {
				b.Fatal(err)
			}
		}
		for name, changed := range map[string]time.Duration{"settled": -time.Hour, "young": 0, "all": 0} {
			b.Run(name+"/"+strconv.Itoa(files), func(b *testing.B) {
				at := time.Now().Add(changed)
				if err := os.Chtimes(dir, at, at); err != nil {
					b.Fatal(err)
				}
				f := NewFolder[int](dir)
				for b.Loop() {
					if name == "all" {
						f = NewFolder[int](dir)
					}
					if all, err := f.Read(); err != nil || len(all) != files {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
