package process

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/launcher/cgroup"
)

// unlimited is the smallest limit that means "no limit". The cgroup v1 limit is then the greatest number of whole
// pages, or near it.
const unlimited = math.MaxInt64 >> 1

// memoryGroup is the control group that counts the memory of this program and of the kernels that it starts.
type memoryGroup struct {
	dir    string // "": no group can be read
	events string // file with the number of OOM kills
	limit  string // file with the limit
}

// ownMemoryGroup finds the group of this program. Each call looks again, because a process may be moved.
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

// findMemoryGroup reads /proc/self/cgroup and /proc/self/mountinfo. A memory controller of version 1 takes precedence,
// because hybrid systems count memory there.
func findMemoryGroup(groups, mounts string) memoryGroup {
	for _, h := range []struct {
		controller string
		files      memoryGroup
	}{
		{"memory", memoryGroup{events: "memory.oom_control", limit: "memory.limit_in_bytes"}},
		{"", memoryGroup{events: "memory.events", limit: "memory.max"}}, // cgroup v2
	} {
		for _, dir := range cgroup.Folders(groups, mounts, h.controller) {
			if _, err := os.Stat(filepath.Join(dir, h.files.events)); err == nil {
				h.files.dir = dir
				return h.files
			}
		}
	}
	return memoryGroup{}
}

// countOOMKills returns how many processes of this control group were killed because memory ran out. The kernel is in
// the same group. -1 means that the number is unknown.
func countOOMKills() int64 {
	g := ownMemoryGroup()
	events, err := os.ReadFile(filepath.Join(g.dir, g.events))
	if g.dir == "" || err != nil {
		return -1
	}
	return parseOOMKills(string(events))
}

// excuseOOMKill accounts for the death of another process than the kernel's, which may have run out of memory.
// Otherwise that death could explain the kernel's own end later.
func (p *Process) excuseOOMKill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ranOutOfMemoryLocked() {
		p.oomKills++
	}
}

// ranOutOfMemoryLocked reports whether the group counts an OOM kill that is not accounted for.
func (p *Process) ranOutOfMemoryLocked() bool { return p.oomKills >= 0 && countOOMKills() > p.oomKills }

// memoryLimit returns the bytes that this control group may use; 0 if there is no limit or it cannot be read.
func memoryLimit() int64 {
	g := ownMemoryGroup()
	b, err := os.ReadFile(filepath.Join(g.dir, g.limit))
	if g.dir == "" || err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // "max" is not a number
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
