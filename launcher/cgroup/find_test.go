package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestFolders(t *testing.T) {
	const v1 = "30 1 0:1 %ROOT /v1 rw - cgroup cgroup rw,cpu,memory\n"
	const v2 = "31 1 0:2 %ROOT /v2 rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
	const user = "/user.slice/user-7.slice/user@7.service/app.slice/ekg.service"
	for _, tc := range []struct{ name, groups, mounts, root, controller, want string }{
		{"systemd", "0::" + user + "\n", v2, "/", "", "/v2" + user + " /v2"},
		{"hybrid", "4:cpu,memory:/a\n1:name=systemd:/b\n0::/c\n", v1 + v2, "/", "", "/v2/c /v2"},
		{"hybrid, version 1", "4:cpu,memory:/a\n1:name=systemd:/b\n0::/c\n", v1 + v2, "/", "memory", "/v1/a /v1"},
		{"the root", "0::/\n", v2, "/", "", "/v2"},
		{"the group itself is mounted", "0::/docker/x\n", v2, "/docker/x", "", "/v2"},
		{"a part of its path is mounted", "0::/docker/x/y\n", v2, "/docker/x", "", "/v2/y /v2"},
		{"outside the namespace", "0::/../../x\n", v2, "/", "", "/v2"},
		{"a name that begins the same", "0::/application\n", v2, "/app", "", "/v2"},
		{"a colon in the name", "0::/a:b\n", v2, "/", "", "/v2/a:b /v2"},
		{"two mounts", "0::/a\n", v2 + strings.ReplaceAll(v2, "/v2", "/other"), "/", "", "/v2/a /v2 /other/a /other"},
		{"version 1 only", "4:cpu,memory:/a\n", v1, "/", "", ""},
		{"version 2 is not mounted", "4:cpu,memory:/a\n0::/\n", v1, "/", "", ""},
		{"garbage", "x\n0:\n", "x - y\n\n", "/", "", ""},
	} {
		got := Folders(tc.groups, strings.ReplaceAll(tc.mounts, "%ROOT", tc.root), tc.controller)
		if want := strings.Fields(tc.want); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", tc.name, got, want)
		}
	}
}

func TestFind(t *testing.T) {
	self := strconv.Itoa(os.Getpid())
	// mounted makes a folder that is mounted in a test, with a group below it.
	mounted := func(t *testing.T, procs string) (dir, mounts string) {
		dir = t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "a"), 0o755); err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string]string{procsFile: "1\n", "a/" + procsFile: procs} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return dir, "31 1 0:2 / " + dir + " rw - cgroup2 cgroup2 rw\n"
	}
	fails := func(t *testing.T, groups, mounts, want string) {
		t.Helper()
		if _, err := find(groups, mounts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	t.Run("its own group", func(t *testing.T) {
		dir, mounts := mounted(t, "5\n"+self+"\n")
		got, err := find("0::/a\n", mounts)
		if err != nil || got != filepath.Join(dir, "a") {
			t.Errorf("got %q, %v", got, err)
		}
		if left, err := os.ReadDir(got); err != nil || len(left) != 1 {
			t.Errorf("left is %v, %v", left, err)
		}
	})
	t.Run("another one's group", func(t *testing.T) {
		_, mounts := mounted(t, "5\n"+self+"0\n")
		fails(t, "0::/a\n", mounts, "cannot be read")
	})
	t.Run("not mounted", func(t *testing.T) { fails(t, "0::/a\n", "", "cgroup v2 is not mounted") })
	t.Run("creation is refused", func(t *testing.T) {
		dir, mounts := mounted(t, self+"\n")
		if os.Getuid() != 0 {
			if err := os.Chmod(filepath.Join(dir, "a"), 0o555); err != nil {
				t.Fatal(err)
			}
			defer os.Chmod(filepath.Join(dir, "a"), 0o755) //nolint:errcheck // else the folder cannot be removed
			fails(t, "0::/a\n", mounts, "no group can be created")
			return
		}
		// Root may write everywhere but in proc, whose folders refuse new ones.
		if err := os.RemoveAll(filepath.Join(dir, "a")); err != nil {
			t.Fatal(err)
		}
		if err := creatable("/proc/self"); err == nil {
			t.Error("a group was created in /proc")
		}
	})
	t.Run("this machine", func(t *testing.T) {
		dir, err := Find()
		if err != nil {
			t.Skipf("this process may not create control groups: %v", err)
		}
		left, err := filepath.Glob(filepath.Join(dir, namePrefix+"probe*"))
		if err != nil || len(left) > 0 {
			t.Errorf("left is %v, %v", left, err)
		}
	})
}
