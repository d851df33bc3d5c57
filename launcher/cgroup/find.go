package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Find returns the folder of this process's own control group, if this process may create groups in it and start
// processes there. The error says why not, in one sentence. For the check, Find creates a group and removes it.
func Find() (string, error) {
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	return find(string(groups), string(mounts))
}

// find does the work of Find, with the content of its files.
func find(groups, mounts string) (string, error) {
	dirs := Folders(groups, mounts, "")
	if len(dirs) == 0 {
		return "", errors.New("cgroup v2 is not mounted")
	}
	self := strconv.Itoa(os.Getpid())
	for _, dir := range dirs {
		b, err := os.ReadFile(filepath.Join(dir, procsFile))
		if err != nil || !slices.Contains(strings.Fields(string(b)), self) {
			continue // in a container the path may be the host's
		}
		return dir, creatable(dir)
	}
	return "", errors.New("the control group of this process cannot be read")
}

// creatable says why this process may not create groups in a group, or start processes in them.
func creatable(dir string) error {
	// The right to move processes out of the common group is needed too; see CLONE_INTO_CGROUP in clone(2).
	if err := unix.Access(filepath.Join(dir, procsFile), unix.W_OK); err != nil {
		return fmt.Errorf("processes may not be moved between groups in %s: %w", dir, err)
	}
	probe := &Group{Path(dir, "probe")}
	f, err := probe.Open()
	if err != nil {
		return fmt.Errorf("no group can be created: %w", err)
	}
	_ = f.Close() // nothing was written
	return probe.Remove()
}

// Folders returns where the group of a process may be, the most likely first: the group in the hierarchy of a
// controller of version 1, or in cgroup v2 if controller is "". groups and mounts are the content of the process's
// files cgroup and mountinfo in /proc; see cgroups(7) and proc_pid_mountinfo(5). In a container, the group itself is
// often mounted, while the path in the first file is the host's. So a caller has to check the folders.
func Folders(groups, mounts, controller string) []string {
	path := pathIn(groups, controller)
	if path == "" {
		return nil
	}
	var dirs []string
	for line := range strings.Lines(mounts) {
		root, at, ok := mountOf(line, controller)
		if !ok {
			continue
		}
		below, inside := strings.CutPrefix(path, strings.TrimSuffix(root, "/"))
		if inside && strings.HasPrefix(below, "/") && !strings.Contains(below, "/..") { // else it is not below this mount
			dirs = append(dirs, filepath.Join(at, below))
		}
		if !slices.Contains(dirs, at) {
			dirs = append(dirs, at)
		}
	}
	return dirs
}

// pathIn returns the path of a process's group from its file cgroup; "" if the hierarchy is not there.
func pathIn(groups, controller string) string {
	for line := range strings.Lines(groups) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (controller == "" && f[0] == "0" && f[1] == "" ||
			controller != "" && slices.Contains(strings.Split(f[1], ","), controller)) {
			return f[2]
		}
	}
	return ""
}

// mountOf reads one line of mountinfo: where the hierarchy is mounted, and which of its groups.
func mountOf(line, controller string) (root, at string, ok bool) {
	left, right, cut := strings.Cut(line, " - ")
	f, fs := strings.Fields(left), strings.Fields(right)
	switch {
	case !cut || len(f) < 5 || len(fs) < 3:
		return "", "", false
	case controller == "":
		ok = fs[0] == "cgroup2"
	default:
		ok = fs[0] == "cgroup" && slices.Contains(strings.Split(fs[2], ","), controller)
	}
	return f[3], f[4], ok
}
