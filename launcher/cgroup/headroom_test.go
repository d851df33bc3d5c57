package cgroup

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// The tightest group above the process decides, and files that can be dropped are free.
func TestGroupsHeadroom(t *testing.T) {
	for name, v := range map[string]struct {
		groups, mount string
		files         []map[string]string // of the groups a, a/b, a/b/c
		want          int64
	}{
		"v2, own group": {"0::/a/b/c\n", "cgroup2 none rw", []map[string]string{
			{"memory.max": "max\n", "memory.current": "900\n"},
			{"memory.max": "1000\n", "memory.current": "500\n", "memory.stat": "inactive_file 100\n"},
			{"memory.max": "400\n", "memory.current": "100\n", "memory.stat": "anon 1\ninactive_file 50\n"}}, 350},
		"v2, a group above": {"0::/a/b/c\n", "cgroup2 none rw", []map[string]string{
			{"memory.max": "1000\n", "memory.current": "950\n", "memory.stat": "inactive_file 20\n"},
			{"memory.max": "max\n", "memory.current": "900\n"}, {"memory.max": "max\n", "memory.current": "100\n"}}, 70},
		"v1": {"4:memory:/a/b/c\n", "cgroup none rw,memory", []map[string]string{
			{"memory.limit_in_bytes": "1000", "memory.usage_in_bytes": "800", "memory.stat": "total_inactive_file 10\n"},
			{"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "700"},
			{"memory.limit_in_bytes": "300", "memory.usage_in_bytes": "400"}}, 0},
		"no limit": {"0::/a/b/c\n", "cgroup2 none rw", []map[string]string{{"memory.max": "max\n", "memory.current": "1\n"},
			{"memory.max": "max\n", "memory.current": "1\n"}, {"memory.max": "max\n", "memory.current": "1\n"}},
			math.MaxInt64},
	} {
		root := t.TempDir()
		dir := root
		for i, files := range v.files {
			dir = filepath.Join(dir, string(rune('a'+i)))
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			for file, text := range files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := groupsHeadroom(v.groups, "1 2 0:3 / "+root+" rw - "+v.mount+"\n"); got != v.want {
			t.Errorf("%s: got %d, want %d", name, got, v.want)
		}
	}
}

// This process can use memory, and not more than the machine has.
func TestHeadroom(t *testing.T) {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	total, _ := field(string(info), "MemTotal:")
	if got, err := Headroom(os.Getpid()); err != nil || got < 1<<20 || got > total<<10 {
		t.Errorf("got %d of %d, %v", got, total<<10, err)
	}
	if _, err := Headroom(1 << 30); err == nil {
		t.Error("a process that does not exist has headroom")
	}
}
