package local

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// changes tells a launcher what has changed in the state directory, by inotify. So a list of kernels costs what has
// changed, and not a system call for each kernel. Launcher.mu guards it.
//
// Linux queues an event before the system call that makes the change returns, in whichever process of this machine.
// A list that reads the queue first therefore knows every earlier change. No goroutine reads the queue: it is read
// before a list and by maintain. An event that does not fit in the queue is replaced by an overflow event.
//
// Without inotify, or for kernels without a watch, a list reads folders and asks for the versions of files.
type changes struct {
	fd      int
	folder  fileVersion     // the folder of all kernels; only device and inode count
	all     int             // watch of that folder
	kernels map[int]*kernel // by watch
	bound   int             // of watches: other programs of this user need some too
	buffer  [32 << 10]byte  // for events
	known   bool            // memory has the kernels that the folder has, but for events in the queue
	version uint64          // counts events that make known false
}

// What is watched. Notes are replaced by a rename. Files that grow cause no event.
const (
	watchAll = syscall.IN_ONLYDIR | syscall.IN_CREATE | syscall.IN_DELETE | syscall.IN_MOVED_FROM |
		syscall.IN_MOVED_TO | syscall.IN_MOVE_SELF | syscall.IN_ATTRIB
	watchKernel = syscall.IN_ONLYDIR | syscall.IN_CLOSE_WRITE | syscall.IN_DELETE | syscall.IN_MOVED_FROM |
		syscall.IN_MOVED_TO | syscall.IN_MOVE_SELF

	watchEnded = syscall.IN_IGNORED | syscall.IN_UNMOUNT | syscall.IN_MOVE_SELF
)

// newChanges watches the folder of all kernels.
func newChanges(folder string) (*changes, error) {
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	c := &changes{fd: fd, kernels: map[int]*kernel{}, bound: maxWatches()}
	if c.all, err = syscall.InotifyAddWatch(fd, folder, watchAll); err == nil {
		c.folder, err = versionOf(folder)
	}
	if err != nil {
		_ = syscall.Close(fd) // nothing was written
		return nil, os.NewSyscallError("inotify_add_watch", err)
	}
	return c, nil
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

// openChanges begins to watch the state directory, before it is read.
func (l *Launcher) openChanges() {
	c, err := newChanges(l.layout.kernels())
	if err != nil {
		l.log.Warn("state directory cannot be watched; lists of many kernels are slow", logkey.Err, err)
		return
	}
	l.changes = c
}

// closeChangesLocked ends all watches.
func (l *Launcher) closeChangesLocked() {
	if l.changes == nil {
		return
	}
	_ = syscall.Close(l.changes.fd) // nothing was written
	for _, k := range l.changes.kernels {
		k.watch = 0
		l.notesChangedLocked(k)
	}
	l.changes = nil
}

// watchLocked begins to watch a kernel's folder. A kernel that cannot be watched has watch 0.
func (l *Launcher) watchLocked(k *kernel) {
	c := l.changes
	if c == nil || len(c.kernels) >= c.bound {
		return
	}
	w, err := syscall.InotifyAddWatch(c.fd, k.dir, watchKernel)
	if err != nil {
		return
	}
	k.watch = w
	c.kernels[w] = k
}

// unwatchLocked ends the watch of a kernel.
func (l *Launcher) unwatchLocked(k *kernel) {
	if k.watch == 0 {
		return
	}
	_, _ = syscall.InotifyRmWatch(l.changes.fd, uint32(k.watch)) // it fails if the folder has been removed
	l.unwatchedLocked(k)
}

func (l *Launcher) unwatchedLocked(k *kernel) {
	delete(l.changes.kernels, k.watch)
	k.watch = 0
	l.notesChangedLocked(k)
}

// readChangesLocked reads the queue.
func (l *Launcher) readChangesLocked() {
	for l.changes != nil {
		n, err := syscall.Read(l.changes.fd, l.changes.buffer[:])
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if n <= 0 || err != nil { // EAGAIN: the queue is empty
			return
		}
		l.enterChangesLocked(l.changes.buffer[:n])
	}
}

// enterChangesLocked reads whole events. The wire layout is that of struct inotify_event in inotify(7).
func (l *Launcher) enterChangesLocked(events []byte) {
	for l.changes != nil && len(events) >= syscall.SizeofInotifyEvent {
		watch := int(int32(binary.NativeEndian.Uint32(events)))
		mask := binary.NativeEndian.Uint32(events[4:])
		end := syscall.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		name, _, _ := bytes.Cut(events[syscall.SizeofInotifyEvent:end], []byte{0})
		events = events[end:]
		switch {
		case mask&syscall.IN_Q_OVERFLOW != 0:
			l.changes.changedLocked()
			for _, k := range l.changes.kernels {
				l.notesChangedLocked(k)
			}
		case watch == l.changes.all:
			l.enterFolderChangeLocked(mask, string(name))
		default:
			l.enterKernelChangeLocked(l.changes.kernels[watch], mask, string(name))
		}
	}
}

// enterFolderChangeLocked notes that a kernel's folder has appeared or has gone, unless memory knows it.
func (l *Launcher) enterFolderChangeLocked(mask uint32, name string) {
	if mask&watchEnded != 0 {
		l.closeChangesLocked() // another folder may have its path now
		return
	}
	if mask&syscall.IN_ATTRIB != 0 { // a warm kernel has got its owner: its folder becomes a kernel's
		if launcher.ValidID(name) && l.kernels.byID[name] == nil {
			l.changes.changedLocked()
		}
		return
	}
	appeared := mask&(syscall.IN_CREATE|syscall.IN_MOVED_TO) != 0
	if !isTemporary(name) && appeared != (l.kernels.byID[name] != nil) {
		l.changes.changedLocked()
	}
}

// enterKernelChangeLocked notes that a kernel's notes have changed. k may be nil: it has no watch any more.
func (l *Launcher) enterKernelChangeLocked(k *kernel, mask uint32, name string) {
	switch {
	case k == nil:
	case mask&syscall.IN_MOVE_SELF != 0:
		l.unwatchLocked(k)
	case mask&watchEnded != 0:
		l.unwatchedLocked(k)
	case name == notesFile:
		l.notesChangedLocked(k)
	}
}

// changedLocked makes the next list read the folder of all kernels.
func (c *changes) changedLocked() {
	c.version++
	c.known = false
}
