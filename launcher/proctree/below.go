package proctree

import (
	"bytes"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Below returns the processes that this program has started, those that they have started, and so on. Orphans among
// them belong to it, because they become children of this program. It costs as much as there are such processes, and
// List as much as there are processes on the machine.
//
// Where orphans do not become children of this program (AdoptOrphans was not called), or where the system does not list
// children, Below returns the same as List.
func Below() []Process {
	if !adoptsOrphans() {
		return List()
	}
	self := os.Getpid()
	seen := map[int]bool{self: true}
	var all []Process
	for next := []int{self}; ; {
		children, ok := childrenOf(next[0])
		if !ok && next[0] == self {
			return List()
		}
		for _, pid := range children {
			if p, ok := Find(pid); ok && !seen[pid] {
				seen[pid] = true
				all, next = append(all, p), append(next, pid)
			}
		}
		switch {
		case len(next) > 1:
			next = next[1:]
		case next[0] == self:
			return all
		default:
			next[0] = self // again: a process that has ended meanwhile has left its children to this program
		}
	}
}

// adoptsOrphans reports whether orphans below this program become its children.
func adoptsOrphans() bool {
	var on int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&on)), 0, 0, 0) //nolint:gosec // see prctl(2)
	return os.Getpid() == 1 || err == nil && on != 0
}

// childrenOf returns the ids of a process's children, zombies included. It returns false if they are not known: the
// process has ended, or the system does not list them (CONFIG_PROC_CHILDREN). See proc_pid_task_tid_children(5). The
// list is complete unless the process reaps a child meanwhile.
func childrenOf(pid int) (children []int, ok bool) {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task"
	dir, err := os.Open(tasks)
	if err != nil {
		return nil, false
	}
	threads, _ := dir.Readdirnames(-1) // the names read before an error are good
	_ = dir.Close()                    // it was only read
	for _, thread := range threads {
		b, err := os.ReadFile(tasks + "/" + thread + "/children")
		if err != nil {
			continue // the thread has ended
		}
		ok = true
		for _, field := range bytes.Fields(b) {
			if child, err := strconv.Atoi(string(field)); err == nil {
				children = append(children, child)
			}
		}
	}
	return children, ok
}
