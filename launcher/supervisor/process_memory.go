package supervisor

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// unlimited is what cgroup v1 shows of a group without a limit: the greatest number of whole pages, or near it.
const unlimited = math.MaxInt64 >> 1

// memoryGroup is the control group that counts this process's memory, and that of a kernel which it starts.
type memoryGroup struct {
	dir    string // "": there is none that can be read
	events string // file that counts victims
	limit  string // file with the bound
}

// ownMemoryGroup finds the group of this process. It is looked for anew each time: a process may be moved.
func ownMemoryGroup() memoryGroup {
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return memoryGroup{}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return memoryGroup{}
	}
	return findMemoryGroup(string(groups), string(mounts))
}

// findMemoryGroup reads /proc/self/cgroup and /proc/self/mountinfo; see cgroups(7) and proc_pid_mountinfo(5). Where the
// memory controller is one of version 1, as it is on hybrid systems too, that one counts. In a container the group itself
// is often what is mounted, while the path that is named is the host's.
func findMemoryGroup(groups, mounts string) memoryGroup {
	path, v1 := "", false
	for line := range strings.Lines(groups) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(f) != 3:
		case slices.Contains(strings.Split(f[1], ","), "memory"):
			path, v1 = f[2], true
		case f[0] == "0" && !v1:
			path = f[2]
		}
	}
	g := memoryGroup{events: "memory.events", limit: "memory.max"}
	if v1 {
		g = memoryGroup{events: "memory.oom_control", limit: "memory.limit_in_bytes"}
	}
	for line := range strings.Lines(mounts) {
		root, at, ok := memoryMount(line, v1)
		if !ok {
			continue
		}
		below, inside := strings.CutPrefix(path, strings.TrimSuffix(root, "/"))
		if !inside || below != "" && below[0] != '/' {
			below = ""
		}
		for _, dir := range []string{filepath.Join(at, below), at} {
			if _, err := os.Stat(filepath.Join(dir, g.events)); err == nil {
				g.dir = dir
				return g
			}
		}
	}
	return memoryGroup{}
}

// memoryMount reads one line of mountinfo: where the hierarchy of the memory controller is mounted, and which group of it.
func memoryMount(line string, v1 bool) (root, at string, ok bool) {
	left, right, cut := strings.Cut(line, " - ")
	f, fs := strings.Fields(left), strings.Fields(right)
	if !cut || len(f) < 5 || len(fs) < 3 {
		return "", "", false
	}
	if v1 && (fs[0] != "cgroup" || !slices.Contains(strings.Split(fs[2], ","), "memory")) || !v1 && fs[0] != "cgroup2" {
		return "", "", false
	}
	return f[3], f[4], true
}

// countOOMKills returns how many processes of this control group, which the kernel shares, have been killed for want of
// memory; -1 where that cannot be told.
func countOOMKills() int64 {
	g := ownMemoryGroup()
	if g.dir == "" {
		return -1
	}
	events, err := os.ReadFile(filepath.Join(g.dir, g.events))
	if err != nil {
		return -1
	}
	return parseOOMKills(string(events))
}

// forgiveOOM notes that a process which is not the kernel's was killed, perhaps for want of memory: that the kernel is killed later has
// nothing to do with it.
func (p *process) forgiveOOM() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ranOutOfMemory() {
		p.oomKills++
	}
}

// ranOutOfMemory reports whether a process was killed for want of memory that is not accounted for. p.mu is held.
func (p *process) ranOutOfMemory() bool { return p.oomKills >= 0 && countOOMKills() > p.oomKills }

// memoryLimit returns the bytes that this control group may use; 0 where there is no bound or none can be read.
func memoryLimit() int64 {
	g := ownMemoryGroup()
	if g.dir == "" {
		return 0
	}
	b, err := os.ReadFile(filepath.Join(g.dir, g.limit))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // "max" is no number
	if err != nil || n >= unlimited {
		return 0
	}
	return n
}

// parseOOMKills reads the content of a memory.events or memory.oom_control file.
func parseOOMKills(events string) int64 {
	for line := range strings.Lines(events) {
		if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}
