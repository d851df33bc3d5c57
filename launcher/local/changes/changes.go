// Package changes tells a gateway what other programs have changed in the folder of all kernels, by inotify. So a list
// of kernels costs what has changed, and not a system call for each kernel. launcher/local enters the kernels that its
// memory has. Begin with Watcher.Known, which says whether memory has all of them, and Folder.Stamp.
//
// Linux queues an event before the system call that makes the change returns, in whichever process of this machine. A
// list that calls Known first therefore knows every earlier change. The package starts no goroutine: the queue is read
// by those who ask. An event that does not fit in the queue is replaced by an overflow event.
//
// Without inotify, or for folders without a watch, callers read folders and ask for the versions of files.
package changes

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Watcher watches the folder of all kernels, and the folders of the kernels that were entered. All methods may be
// called concurrently.
type Watcher struct {
	// Bound is how many folders of kernels are watched: other programs of this user need watches, too. It may be set
	// before the first Enter.
	Bound int

	// Fixed.
	dir   string
	notes string // name of the file in a kernel's folder whose changes count

	// Guarded by mu, which is the last that is locked.
	mu       sync.Mutex
	fd       int     // -1: changes are not reported
	folder   Version // of dir; only device and inode count
	all      int     // watch of dir
	entered  map[string]*Folder
	watched  map[int]*Folder
	buffer   [32 << 10]byte // for events
	complete bool           // memory has the kernels that the folder has, but for events in the queue
	version  uint64         // counts events that make complete false
}

// Folder is the folder of a kernel in memory. nil is one that is not watched.
type Folder struct {
	name  string
	watch int           // guarded by Watcher.mu; 0: none
	stamp atomic.Uint64 // 0: no watch
}

// Stamp returns a number that differs after each change of the folder's notes that a Watcher has read in the queue. It
// is 0 if changes are not reported.
func (f *Folder) Stamp() uint64 {
	if f == nil {
		return 0
	}
	return f.stamp.Load()
}

// What is watched. Notes are replaced by a rename. Files that grow cause no event.
const (
	watchAll = syscall.IN_ONLYDIR | syscall.IN_CREATE | syscall.IN_DELETE | syscall.IN_MOVED_FROM |
		syscall.IN_MOVED_TO | syscall.IN_MOVE_SELF | syscall.IN_ATTRIB
	watchKernel = syscall.IN_ONLYDIR | syscall.IN_CLOSE_WRITE | syscall.IN_DELETE | syscall.IN_MOVED_FROM |
		syscall.IN_MOVED_TO | syscall.IN_MOVE_SELF

	watchEnded = syscall.IN_IGNORED | syscall.IN_UNMOUNT | syscall.IN_MOVE_SELF
)

// Watch begins to watch the folder of all kernels, whose names begin with no dot. notes is the file in a kernel's
// folder whose changes count. With an error, the Watcher can be used, but reports no changes.
func Watch(dir, notes string) (*Watcher, error) {
	w := &Watcher{Bound: maxWatches(), dir: dir, notes: notes, entered: map[string]*Folder{}, watched: map[int]*Folder{}}
	var err error
	if w.fd, err = syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK); err != nil {
		w.fd = -1
		return w, os.NewSyscallError("inotify_init1", err)
	}
	if w.all, err = syscall.InotifyAddWatch(w.fd, dir, watchAll); err == nil {
		w.folder, err = version(dir, syscall.Stat)
	}
	if err != nil {
		w.Close()
		return w, os.NewSyscallError("inotify_add_watch", err)
	}
	return w, nil
}

// maxWatches returns half of the watches that Linux allows this user.
func maxWatches() int {
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_user_watches")
	if err != nil {
		return math.MaxInt
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return math.MaxInt
	}
	return n / 2
}

// Close ends all watches. From then on no changes are reported.
func (w *Watcher) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end()
}

// end does the work of Close. The lock is held.
func (w *Watcher) end() {
	if w.fd < 0 {
		return
	}
	_ = syscall.Close(w.fd) // nothing was written
	w.fd, w.complete = -1, false
	for _, f := range w.watched {
		f.watch = 0
		f.stamp.Store(0)
	}
	clear(w.watched)
}

// Enter says that memory has a kernel. It watches the kernel's folder, if it can.
func (w *Watcher) Enter(name string) *Folder {
	f := &Folder{name: name}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.entered[name] = f
	if w.fd < 0 || len(w.watched) >= w.Bound {
		return f
	}
	if n, err := syscall.InotifyAddWatch(w.fd, filepath.Join(w.dir, name), watchKernel); err == nil {
		f.watch = n
		f.stamp.Store(1)
		w.watched[n] = f
	}
	return f
}

// Leave says that memory has forgotten a kernel.
func (w *Watcher) Leave(f *Folder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.entered[f.name] == f {
		delete(w.entered, f.name)
	}
	w.unwatch(f)
}

// unwatch ends the watch of a folder. The lock is held.
func (w *Watcher) unwatch(f *Folder) {
	if f.watch == 0 {
		return
	}
	_, _ = syscall.InotifyRmWatch(w.fd, uint32(f.watch)) // it fails if the folder has been removed
	delete(w.watched, f.watch)
	f.watch = 0
	f.stamp.Store(0)
}

// Known reads the queue, and reports whether memory has all kernels of the folder.
func (w *Watcher) Known() bool {
	now, err := version(w.dir, syscall.Stat)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.read()
	return w.complete && err == nil && now.sameFile(w.folder)
}

// Begin reads the queue before all folders are read. Complete gets its result.
func (w *Watcher) Begin() (version uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.read()
	return w.version
}

// Complete says that since Begin all folders were read, and that memory has what was there.
func (w *Watcher) Complete(version uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.complete = w.complete || w.fd >= 0 && w.version == version
}

// read reads the queue. The lock is held.
func (w *Watcher) read() {
	for w.fd >= 0 {
		n, err := syscall.Read(w.fd, w.buffer[:])
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if n <= 0 || err != nil { // EAGAIN: the queue is empty
			return
		}
		w.enter(w.buffer[:n])
	}
}

// enter notes whole events. The wire layout is that of struct inotify_event in inotify(7). The lock is held.
func (w *Watcher) enter(events []byte) {
	for w.fd >= 0 && len(events) >= syscall.SizeofInotifyEvent {
		watch := int(int32(binary.NativeEndian.Uint32(events)))
		mask := binary.NativeEndian.Uint32(events[4:])
		end := syscall.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		name, _, _ := bytes.Cut(events[syscall.SizeofInotifyEvent:end], []byte{0})
		events = events[end:]
		switch {
		case mask&syscall.IN_Q_OVERFLOW != 0:
			w.changed()
			for _, f := range w.watched {
				f.stamp.Add(1)
			}
		case watch == w.all:
			w.enterAll(mask, string(name))
		default:
			w.enterKernel(w.watched[watch], mask, string(name))
		}
	}
}

// enterAll notes that a kernel's folder has appeared or has gone, unless memory knows it. The lock is held.
func (w *Watcher) enterAll(mask uint32, name string) {
	if mask&watchEnded != 0 {
		w.end() // another folder may have its path now
		return
	}
	if name == "" || strings.HasPrefix(name, ".") {
		return
	}
	// With IN_ATTRIB a warm kernel has got its owner: its folder becomes a kernel's.
	appeared := mask&(syscall.IN_CREATE|syscall.IN_MOVED_TO|syscall.IN_ATTRIB) != 0
	if appeared != (w.entered[name] != nil) {
		w.changed()
	}
}

// enterKernel notes that a kernel's notes have changed. f is nil if it has no watch any more. The lock is held.
func (w *Watcher) enterKernel(f *Folder, mask uint32, name string) {
	switch {
	case f == nil:
	case mask&watchEnded != 0:
		w.unwatch(f)
	case name == w.notes:
		f.stamp.Add(1)
	}
}

// changed makes Known report false until all folders were read again. The lock is held.
func (w *Watcher) changed() {
	w.version++
	w.complete = false
}
