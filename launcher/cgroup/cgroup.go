// Package cgroup gives a kernel a control group of its own, so that every process that the kernel has started can be
// killed. A process that leaves the session, or clears its environment, stays in the group. launcher/local chooses the
// folder of a kernel's Group, and the program that runs the kernel creates, uses and removes it. Begin with Group.
//
// It needs cgroup v2, also beside version 1, and the right to create groups; see cgroups(7). Only the kernel is in its
// group: supervisors and gateways stay outside, and survive the kill. No controller is switched on in the groups, so
// they limit nothing. The package starts no goroutines.
package cgroup

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// KillLimit bounds Kill.
const KillLimit = 2 * time.Second

// sweepAge is the least age of a group that Sweep removes. A group is empty for a moment before its kernel starts.
const sweepAge = time.Hour

// Pauses between two looks at a group whose processes were killed. They grow.
const (
	killPause     = time.Millisecond
	killPauseMost = 50 * time.Millisecond
)

// Files of a group.
const (
	procsFile  = "cgroup.procs"  // process ids; its writers may move processes
	eventsFile = "cgroup.events" // has the line "populated 1" while a process of the group or below lives
	killFile   = "cgroup.kill"   // "1" kills all processes of the group and below; since Linux 5.14
)

const namePrefix = "ekg-"

// Path returns a new path for the group of a kernel below the folder dir. Nothing is created. The name has a random
// part: two gateways may have kernels with the same id.
func Path(dir, kernelID string) string {
	return filepath.Join(dir, namePrefix+kernelID+"-"+strings.ToLower(rand.Text()[:8]))
}

// Sweep removes groups below the folder dir: those that Path has named, that are older than sweepAge and that have no
// process. Such groups remain if a kernel's state was removed by hand. The group of a dead kernel may be removed too.
func Sweep(dir string) error {
	before := time.Now().Add(-sweepAge)
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() || !strings.HasPrefix(e.Name(), namePrefix) || info.ModTime().After(before) {
			continue // it may have been removed since
		}
		err = (&Group{filepath.Join(dir, e.Name())}).Remove()
		if err != nil && !errors.Is(err, syscall.EBUSY) { // busy: a process is in it
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Group is the control group of one kernel. A nil Group stands for no group. Its methods may be called concurrently.
type Group struct{ dir string }

// At returns the group with this path, which Path has made for the kernel. The group need not exist. The path "" is no
// group. Any other path is an error, so that no other group is killed by mistake.
func At(path, kernelID string) (*Group, error) {
	if path == "" {
		return nil, nil
	}
	if kernelID == "" || !filepath.IsAbs(path) || filepath.Clean(path) != path ||
		!strings.HasPrefix(filepath.Base(path), namePrefix+kernelID+"-") {
		return nil, fmt.Errorf("%q is not the control group of kernel %q", path, kernelID)
	}
	return &Group{path}, nil
}

// Open creates the group and returns its folder, for syscall.SysProcAttr.CgroupFD. A group that exists is replaced, and
// is an error if a process is in it: Linux kills what is cloned into a group whose processes were killed before (seen
// with 6.18). It does the same if the group of the cloning process was killed, so a caller has to check for that.
func (g *Group) Open() (*os.File, error) {
	if g == nil {
		return nil, fs.ErrNotExist
	}
	if err := g.Remove(); err != nil {
		return nil, err
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	return os.Open(g.dir)
}

// Holds reports whether a process is in the group or below it. The process may be a zombie.
func (g *Group) Holds(pid int) bool {
	if g == nil {
		return false
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	return err == nil && slices.Contains(strings.Split(pathIn(string(b), ""), "/"), filepath.Base(g.dir))
}

// Kill kills all processes of the group and of groups below it. It waits until they have ended, for KillLimit at most.
// They may be zombies then. It returns how many processes it found. The error is fs.ErrNotExist if there is no group.
func (g *Group) Kill() (int, error) {
	if g == nil {
		return 0, fs.ErrNotExist
	}
	found := 0
	deadline := time.Now().Add(KillLimit)
	for pause := killPause; ; pause = min(2*pause, killPauseMost) {
		populated, err := g.populated()
		if err != nil || !populated {
			return found, err
		}
		pids, err := g.members()
		found = max(found, len(pids))
		if time.Now().After(deadline) {
			return found, fmt.Errorf("%d processes of the control group %s do not end", len(pids), g.dir)
		}
		// A kernel may change its own group in ways that make this file useless.
		switch kerr := g.killAll(); {
		case kerr == nil:
		case err != nil:
			return found, errors.Join(kerr, err)
		default:
			g.killEach(pids)
		}
		time.Sleep(pause)
	}
}

// killAll kills the processes of the group and below at once, also those that are just being forked.
func (g *Group) killAll() error {
	f, err := os.OpenFile(filepath.Join(g.dir, killFile), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("1")
	return errors.Join(err, f.Close())
}

// killEach kills processes of the group one by one. A process that forks meanwhile has to be found in a later round.
func (g *Group) killEach(pids []int) {
	handles := make(map[int]*os.Process, len(pids)) // pidfds, where the system has them
	for _, pid := range pids {
		if h, err := os.FindProcess(pid); err == nil {
			handles[pid] = h
		}
	}
	// The number of a process that has ended since may be another's. A process that is still in the group is meant.
	present, _ := g.members()
	for pid, h := range handles {
		if slices.Contains(present, pid) {
			_ = h.Kill() // os.ErrProcessDone: it has ended since
		}
		_ = h.Release() // the handle is not used again
	}
}

// populated reports whether a process of the group or below it lives.
func (g *Group) populated() (bool, error) {
	b, err := os.ReadFile(filepath.Join(g.dir, eventsFile))
	if errors.Is(err, syscall.ENODEV) { // it was removed after it was opened
		return false, fs.ErrNotExist
	}
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(b)) {
		if strings.TrimSpace(line) == "populated 0" {
			return false, nil
		}
	}
	return true, nil
}

// members lists the processes of the group and of groups below it. It lists those that it can read after an error.
func (g *Group) members() ([]int, error) {
	var pids []int
	var errs []error
	for _, dir := range g.folders() {
		b, err := os.ReadFile(filepath.Join(dir, procsFile))
		if err != nil && !gone(err) {
			errs = append(errs, err)
		}
		for f := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 { // 0: a process that this one cannot see
				pids = append(pids, pid)
			}
		}
	}
	return pids, errors.Join(errs...)
}

// folders lists the folders of the group and of the groups that the kernel has created below it, from the top down.
func (g *Group) folders() []string {
	var dirs []string
	_ = filepath.WalkDir(g.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil // others may be removed meanwhile
	})
	return dirs
}

// gone reports whether an error says that a group was removed.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) }

// Remove removes the group, and those that the kernel has created below it, if no process is in them. Zombies do not
// matter. It is no error if the group does not exist.
func (g *Group) Remove() error {
	if g == nil {
		return nil
	}
	var errs []error
	for _, dir := range slices.Backward(g.folders()) {
		if err := syscall.Rmdir(dir); err != nil && !gone(err) {
			errs = append(errs, &fs.PathError{Op: "rmdir", Path: dir, Err: err})
		}
	}
	return errors.Join(errs...)
}
