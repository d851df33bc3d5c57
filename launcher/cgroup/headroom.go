package cgroup

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// memoryFiles are the files of a group's memory, by version. See "Memory" in the kernel's cgroup-v2.rst, and
// cgroup-v1/memory.rst.
var memoryFiles = []struct{ controller, limit, usage, inactive string }{
	{"memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "},
	{"", "memory.max", "memory.current", "inactive_file "},
}

// Headroom returns how many bytes a process can still use: the least of what its control group and each group above it
// have left, and of the machine's available memory. Files that the system can drop count as free. In a container the
// groups above its own cannot be seen.
func Headroom(pid int) (int64, error) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	groups, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if err != nil {
		return 0, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return 0, err
	}
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	available, ok := field(string(info), "MemAvailable:")
	if !ok {
		return 0, errors.New("the machine does not tell its available memory")
	}
	return min(available<<10, groupsHeadroom(string(groups), string(mounts))), nil
}

// groupsHeadroom returns what the groups of a process have left; see Folders for its arguments.
func groupsHeadroom(groups, mounts string) int64 {
	for _, files := range memoryFiles {
		for _, dir := range Folders(groups, mounts, files.controller) {
			if _, err := os.Stat(filepath.Join(dir, files.usage)); err != nil {
				continue
			}
			left := int64(math.MaxInt64)
			for ; ; dir = filepath.Dir(dir) {
				limit, err := number(filepath.Join(dir, files.limit))
				if os.IsNotExist(err) {
					return left // the root has no limit
				}
				usage, uerr := number(filepath.Join(dir, files.usage))
				if err != nil || uerr != nil {
					continue // "max"
				}
				if stat, err := os.ReadFile(filepath.Join(dir, "memory.stat")); err == nil {
					inactive, _ := field(string(stat), files.inactive) // without it all use counts
					usage -= inactive
				}
				left = min(left, max(0, limit-usage))
			}
		}
	}
	return math.MaxInt64
}

// number reads a file with one number.
func number(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// field returns the number behind a name at the beginning of a line.
func field(text, name string) (int64, bool) {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
