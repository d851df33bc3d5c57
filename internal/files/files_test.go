package files_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
)

// names lists a folder, so that a temporary file that was left there shows.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := []string{}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	for _, content := range []string{"first, which is longer", "second"} {
		if err := files.Write(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Errorf("it holds %q (%v), want %q", got, err, content)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
		t.Errorf("its mode is %v (%v)", st.Mode(), err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"a.json"}) {
		t.Errorf("the folder holds %q", got)
	}
	if err := files.Write(filepath.Join(dir, "none", "a.json"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without its folder: %v", err)
	}
}

func TestReplace_KeepsTheOldFileAfterAnError(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := files.Write(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	want := errors.New("no more to copy")
	err := files.Replace(path, func(f *os.File) error {
		if _, err := f.WriteString("half of the ne"); err != nil {
			return err
		}
		return want
	})
	if err != want {
		t.Errorf("the error is %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("it holds %q (%v)", got, err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"a"}) {
		t.Errorf("the folder holds %q", got)
	}
}

func TestReplace_KeepsTheModeThatFillSets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	if err := files.Replace(path, func(f *os.File) error { return f.Chmod(0o755) }); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o755 {
		t.Errorf("its mode is %v (%v)", st.Mode(), err)
	}
}

// Several writers: each reader sees one of their contents whole, and one of several creators wins.
func TestCreate_HasOneWinner(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = files.Create(path, []byte{byte('0' + i)}) })
	}
	wg.Wait()
	won := -1
	for i, err := range errs {
		switch {
		case err == nil && won >= 0:
			t.Errorf("%d and %d have both made it", won, i)
		case err == nil:
			won = i
		case !errors.Is(err, fs.ErrExist):
			t.Errorf("%d: %v", i, err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || won < 0 || string(got) != string(rune('0'+won)) {
		t.Errorf("%d has won, and it holds %q (%v)", won, got, err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"a"}) {
		t.Errorf("the folder holds %q", got)
	}
}
