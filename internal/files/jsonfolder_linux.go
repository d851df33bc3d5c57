package files

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// settled is how old a folder's last change must be, so that another one gets another time. Clocks of file systems have
// steps of milliseconds; one of a network counts seconds.
const settled = 2 * time.Second

// Folder is a folder of JSON files that are placed and replaced as WriteJSON does. It reads a file again only if the
// file has changed, and knows the files of each owner. inotify tells it what programs of this machine have changed. So
// a read costs what has changed and what it returns. Without inotify it costs a look at each file after a change.
// Concurrent calls are allowed.
type Folder[T any] struct {
	// Fixed.
	dir   string
	owner func(*T) string

	mu      sync.Mutex
	entries map[string]*Entry[T]       // by name
	owned   map[string]map[string]bool // names by owner; files with an error are in broken
	broken  map[string]bool            // names
	all     []*Entry[T]                // entries by their names; nil: they have changed
	changed time.Time                  // of the folder when all were read; zero: it may have changed without another time
	blind   bool                       // without inotify: the folder is closed, or a test wants it
	queue   int                        // of inotify; -1: there is none
	buffer  [16 << 10]byte             // for its events
}

// Entry is a file of a Folder.
type Entry[T any] struct {
	Name  string // of the file
	Value T
	Err   error // as of ReadJSON: Value says nothing
	info  os.FileInfo
}

// NewFolder returns a folder whose files have owners. It reads nothing yet. Close must be called.
func NewFolder[T any](dir string, owner func(*T) string) *Folder[T] {
	return &Folder[T]{dir: dir, owner: owner, queue: -1, entries: map[string]*Entry[T]{},
		owned: map[string]map[string]bool{}, broken: map[string]bool{}}
}

// Close ends what inotify holds. Later reads do without it.
func (f *Folder[T]) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blind = true
	f.unwatch()
}

// Read returns an owner's files and those with an error, by their names; all files for "". Slice and entries must not
// be changed. Files with an error are read again each time. A file that disappears meanwhile is left out.
func (f *Folder[T]) Read(owner string) ([]*Entry[T], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.refresh(); err != nil {
		return nil, err
	}
	if owner == "" {
		if f.all == nil {
			f.all = slices.SortedFunc(maps.Values(f.entries), byName)
		}
		return f.all, nil
	}
	all := make([]*Entry[T], 0, len(f.owned[owner])+len(f.broken))
	for _, names := range []map[string]bool{f.owned[owner], f.broken} {
		for name := range names {
			all = append(all, f.entries[name])
		}
	}
	slices.SortFunc(all, byName)
	return all, nil
}

// refresh reads what has changed.
func (f *Folder[T]) refresh() error {
	if names, ok := f.events(); ok {
		maps.Copy(names, f.broken)
		for name := range names {
			f.look(name)
		}
		return nil
	}
	f.watch() // before the read, so it misses nothing
	began := time.Now()
	folder, err := os.Stat(f.dir)
	if err != nil {
		return err
	}
	if f.queue < 0 && !f.changed.IsZero() && folder.ModTime().Equal(f.changed) && len(f.broken) == 0 {
		return nil
	}
	files, err := os.ReadDir(f.dir)
	if err != nil {
		f.unwatch()
		return err
	}
	there := make(map[string]bool, len(files))
	for _, file := range files {
		there[file.Name()] = true
		f.look(file.Name())
	}
	for name := range f.entries {
		if !there[name] {
			f.put(name, nil)
		}
	}
	f.changed = time.Time{}
	if began.Sub(folder.ModTime()) > settled {
		f.changed = folder.ModTime()
	}
	return nil
}

// look reads a file if it has changed.
func (f *Folder[T]) look(name string) {
	path, old := filepath.Join(f.dir, name), f.entries[name]
	e := &Entry[T]{Name: name}
	if e.info, e.Err = os.Lstat(path); e.Err == nil {
		if old != nil && old.Err == nil && same(old.info, e.info) {
			return
		}
		e.Err = ReadJSON(path, &e.Value)
	}
	if errors.Is(e.Err, fs.ErrNotExist) {
		e = nil
	}
	f.put(name, e)
}

// put replaces an entry; nil removes it.
func (f *Folder[T]) put(name string, e *Entry[T]) {
	if old := f.entries[name]; old != nil && old.Err == nil {
		of := f.owner(&old.Value)
		if delete(f.owned[of], name); len(f.owned[of]) == 0 {
			delete(f.owned, of)
		}
	}
	delete(f.entries, name)
	delete(f.broken, name)
	f.all = nil
	switch {
	case e == nil:
		return
	case e.Err != nil:
		f.broken[name] = true
	default:
		of := f.owner(&e.Value)
		if f.owned[of] == nil {
			f.owned[of] = map[string]bool{}
		}
		f.owned[of][name] = true
	}
	f.entries[name] = e
}

func byName[T any](a, b *Entry[T]) int { return strings.Compare(a.Name, b.Name) }

// same reports whether a file is the one that was read: each replaced file has another inode.
func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// What is watched of a folder, and what ends a watch.
const (
	watchFiles = syscall.IN_ONLYDIR | syscall.IN_CREATE | syscall.IN_CLOSE_WRITE | syscall.IN_DELETE |
		syscall.IN_MOVED_FROM | syscall.IN_MOVED_TO | syscall.IN_MOVE_SELF
	watchEnds = syscall.IN_IGNORED | syscall.IN_UNMOUNT | syscall.IN_MOVE_SELF | syscall.IN_Q_OVERFLOW
)

// watch begins to watch the folder, if it can.
func (f *Folder[T]) watch() {
	f.unwatch()
	if f.blind {
		return
	}
	queue, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return
	}
	if _, err := syscall.InotifyAddWatch(queue, f.dir, watchFiles); err != nil {
		_ = syscall.Close(queue) // nothing was written
		return
	}
	f.queue = queue
}

func (f *Folder[T]) unwatch() {
	if f.queue >= 0 {
		_ = syscall.Close(f.queue) // nothing was written
		f.queue = -1
	}
}

// events returns the names of files that may have changed since the last call. ok is false if that is not known. Linux
// queues an event before the call that makes the change returns, so those of earlier changes are there.
func (f *Folder[T]) events() (names map[string]bool, ok bool) {
	names = map[string]bool{}
	for f.queue >= 0 {
		n, err := syscall.Read(f.queue, f.buffer[:])
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			return names, true
		case err != nil || n <= 0:
			return nil, false
		}
		for b := f.buffer[:n]; len(b) >= syscall.SizeofInotifyEvent; {
			mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
			if mask&watchEnds != 0 {
				return nil, false
			}
			name := b[syscall.SizeofInotifyEvent : syscall.SizeofInotifyEvent+size]
			names[string(bytes.TrimRight(name, "\x00"))] = true
			b = b[syscall.SizeofInotifyEvent+size:]
		}
	}
	return nil, false
}
