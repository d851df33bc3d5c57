package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// settled is how old a folder's last change must be, so that another one gets another time. Clocks of file systems have
// steps of milliseconds; one of a network counts seconds.
const settled = 2 * time.Second

// Folder is a folder of JSON files that are placed and replaced as WriteJSON does. It reads a file again only if the
// file has changed. Concurrent calls are allowed.
type Folder[T any] struct {
	dir string

	mu      sync.Mutex
	entries []Entry[T]
	changed time.Time // of the folder when it was read last; zero: it may have changed without another time
}

// Entry is a file of a Folder.
type Entry[T any] struct {
	Name  string // of the file
	Value T
	Err   error // as of ReadJSON: Value says nothing
	info  os.FileInfo
}

// NewFolder returns a folder. It reads nothing yet.
func NewFolder[T any](dir string) *Folder[T] { return &Folder[T]{dir: dir} }

// Read returns the files, by their names. The slice must not be changed. Files with an error are read again each time.
// A file that disappears meanwhile is left out.
func (f *Folder[T]) Read() ([]Entry[T], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	began := time.Now()
	folder, err := os.Stat(f.dir)
	if err != nil {
		return nil, err
	}
	if !f.changed.IsZero() && folder.ModTime().Equal(f.changed) {
		return f.entries, nil
	}
	names, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	all, sure := make([]Entry[T], 0, len(names)), began.Sub(folder.ModTime()) > settled
	for _, n := range names {
		e := Entry[T]{Name: n.Name()}
		if e.info, e.Err = n.Info(); e.Err == nil {
			i, there := slices.BinarySearchFunc(f.entries, e.Name, Entry[T].compare)
			if old := f.entries; there && old[i].Err == nil && same(old[i].info, e.info) {
				e = old[i]
			} else {
				e.Err = ReadJSON(filepath.Join(f.dir, e.Name), &e.Value)
			}
		}
		if errors.Is(e.Err, fs.ErrNotExist) {
			continue
		}
		sure = sure && e.Err == nil
		all = append(all, e)
	}
	f.entries, f.changed = all, time.Time{}
	if sure {
		f.changed = folder.ModTime()
	}
	return all, nil
}

func (e Entry[T]) compare(name string) int { return strings.Compare(e.Name, name) }

// same reports whether a file is the one that was read: each replaced file has another inode.
func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}
