package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseOOMKills(t *testing.T) {
	if got := parseOOMKills("low 0\noom 3\noom_kill 2\noom_group_kill 0\n"); got != 2 {
		t.Errorf("got %d", got)
	}
	if got := parseOOMKills("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"); got != 4 {
		t.Errorf("cgroup v1: got %d", got)
	}
	for n, want := range map[int64]string{512 << 20: "512 MiB", 1536 << 20: "1.5 GiB", 2 << 30: "2 GiB",
		100_000_000: "95.4 MiB", 4096: "4 KiB", 100: "100 bytes"} {
		if got := binarySize(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
	if got := parseOOMKills("low 0\n"); got != -1 {
		t.Errorf("without the line: %d", got)
	}
}

func TestFindMemoryGroup(t *testing.T) {
	dir := t.TempDir()
	file := func(path, content string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file("v1/memory.oom_control", "")
	file("v1/kubepods/pod/memory.oom_control", "")
	file("v2/memory.events", "")
	file("v2/app/memory.events", "")
	const v1 = "30 1 0:1 %ROOT %DIR/v1 rw - cgroup cgroup rw,memory\n"
	const v2 = "31 1 0:2 %ROOT %DIR/v2 rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
	for _, tc := range []struct{ name, groups, mounts, root, want string }{
		{"v1 on the host", "4:cpu:/x\n5:memory:/kubepods/pod\n0::/\n", v1, "/", "v1/kubepods/pod"},
		{"v1, the group itself is mounted", "5:memory:/kubepods/pod\n", v1, "/kubepods/pod", "v1"},
		{"v1, the path is the host's", "5:memory:/kubepods/other\n", v1, "/", "v1"},
		{"v1 hybrid", "5:memory:/kubepods/pod\n0::/app\n", v2 + v1, "/", "v1/kubepods/pod"},
		{"v2 with a namespace", "0::/\n", v2, "/", "v2"},
		{"v2 on the host", "0::/app\n", v2, "/", "v2/app"},
		{"v2, outside the namespace", "0::/../../x\n", v2, "/", "v2"},
		{"v2, a name that begins the same", "0::/application\n", v2, "/app", "v2"},
		{"nothing mounted", "0::/\n", v1, "/", ""},
		{"garbage", "x\n", "x - y\n\n", "/", ""},
	} {
		mounts := strings.NewReplacer("%ROOT", tc.root, "%DIR", dir).Replace(tc.mounts)
		want := ""
		if tc.want != "" {
			want = filepath.Join(dir, tc.want)
		}
		if got := findMemoryGroup(tc.groups, mounts).dir; got != want {
			t.Errorf("%s: got %q, want %q", tc.name, got, want)
		}
	}
}
