package cgroup

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
)

// realGroup returns a new group of this machine's own, which is removed at the end of the test.
func realGroup(t *testing.T) *Group {
	t.Helper()
	dir, err := Find()
	if err != nil {
		t.Skipf("this process may not create control groups: %v", err)
	}
	id := uuid.NewString()
	g, err := At(Path(dir, id), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := g.Kill(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// startIn starts a shell in a group, with a session of its own. The test reaps it.
func startIn(t *testing.T, g *Group, script string) int {
	t.Helper()
	f, err := g.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(f.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // most often it has ended
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func waitUntil(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// escaped waits until a process has written its number, and returns the number.
func escaped(t *testing.T, file string) (pid int) {
	t.Helper()
	waitUntil(t, "the process writes its number", func() bool {
		b, _ := os.ReadFile(file)
		var err error
		pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil && strings.HasSuffix(string(b), "\n")
	})
	return pid
}

// TestGroup_Kill kills real processes: one with a session of its own and an empty environment, whose parents have
// ended, and one in a group that the kernel has created.
func TestGroup_Kill(t *testing.T) {
	for name, old := range map[string]bool{"at once": false, "one by one": true} {
		t.Run(name, func(t *testing.T) {
			g := realGroup(t)
			file := filepath.Join(t.TempDir(), "pid")
			leader := startIn(t, g, "env -i /usr/bin/setsid -f /bin/sh -c 'echo $$ >"+file+"; exec /bin/sleep 1000'\n"+
				"mkdir "+g.dir+"/below && (echo 0 >"+g.dir+"/below/cgroup.procs; exec sleep 1000)")
			pid := escaped(t, file)
			waitUntil(t, "all processes run", func() bool {
				b, _ := os.ReadFile(filepath.Join(g.dir, "below", procsFile))
				pids, err := g.members()
				return err == nil && len(pids) == 3 && len(b) > 0
			})
			if !g.Holds(leader) || !g.Holds(pid) || g.Holds(os.Getpid()) || g.Holds(1) {
				t.Error("it is not known who is in the group")
			}
			if env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ"); err != nil ||
				strings.Contains(string(env), "PATH") {
				t.Errorf("the environment is %q, %v", env, err)
			}
			if err := g.Remove(); err == nil {
				t.Error("a group with processes was removed")
			}
			if f, err := g.Open(); err == nil {
				_ = f.Close()
				t.Error("a group with processes was replaced")
			}
			if old { // as on a kernel before 5.14
				pids, err := g.members()
				if err != nil {
					t.Fatal(err)
				}
				g.killEach(pids)
				waitUntil(t, "no process lives", func() bool { p, err := g.populated(); return err == nil && !p })
			} else if n, err := g.Kill(); n != 3 || err != nil {
				t.Errorf("killed %d, %v", n, err)
			}
			if alive(leader) || alive(pid) {
				t.Error("a process lives")
			}
			if !g.Holds(leader) {
				t.Error("a zombie's group is not known")
			}
			if n, err := g.Kill(); n != 0 || err != nil {
				t.Errorf("a second kill: %d, %v", n, err)
			}
			// It is used again, and removed while a zombie is in it.
			again := startIn(t, g, "exec sleep 1000")
			if n, err := g.Kill(); n != 1 || err != nil || alive(again) {
				t.Errorf("killed %d, %v", n, err)
			}
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(g.dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the folder: %v", err)
			}
			if n, err := g.Kill(); n != 0 || !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("no group: %d, %v", n, err)
			}
			if err := g.Remove(); err != nil {
				t.Errorf("no group: %v", err)
			}
		})
	}
}

// fixture makes a folder with files as a group has them.
func fixture(t *testing.T, files map[string]string) *Group {
	t.Helper()
	g := &Group{filepath.Join(t.TempDir(), "ekg-x-1")}
	for name, content := range files {
		path := filepath.Join(g.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func TestGroup_KillFiles(t *testing.T) {
	sleeper := func(t *testing.T) *exec.Cmd {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it may have ended
		return cmd
	}
	t.Run("empty", func(t *testing.T) {
		g := fixture(t, map[string]string{eventsFile: "populated 0\nfrozen 0\n", procsFile: "", killFile: ""})
		if n, err := g.Kill(); n != 0 || err != nil {
			t.Errorf("killed %d, %v", n, err)
		}
		if b, err := os.ReadFile(filepath.Join(g.dir, killFile)); err != nil || len(b) > 0 {
			t.Errorf("%q was written, %v", b, err)
		}
	})
	t.Run("a process that does not end", func(t *testing.T) {
		g := fixture(t, map[string]string{eventsFile: "populated 1\nfrozen 0\n", procsFile: "77\n0\n", killFile: ""})
		if n, err := g.Kill(); n != 1 || err == nil || !strings.Contains(err.Error(), "1 processes of the control group") {
			t.Errorf("found %d, %v", n, err)
		}
		if b, err := os.ReadFile(filepath.Join(g.dir, killFile)); err != nil || !strings.HasPrefix(string(b), "1") {
			t.Errorf("%q was written, %v", b, err)
		}
	})
	t.Run("no kill file", func(t *testing.T) {
		upper, lower := sleeper(t), sleeper(t)
		g := fixture(t, map[string]string{eventsFile: "populated 1\nfrozen 0\n",
			procsFile: strconv.Itoa(upper.Process.Pid) + "\n", "below/" + procsFile: strconv.Itoa(lower.Process.Pid) + "\n"})
		over := make(chan error, 1)
		go func() {
			_, _ = upper.Process.Wait()
			_, _ = lower.Process.Wait()
			over <- os.WriteFile(filepath.Join(g.dir, eventsFile), []byte("populated 0\n"), 0o644)
		}()
		if n, err := g.Kill(); n != 2 || err != nil {
			t.Errorf("killed %d, %v", n, err)
		}
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	t.Run("neither kill file nor list", func(t *testing.T) { // as in a threaded group
		g := fixture(t, map[string]string{eventsFile: "populated 1\n", procsFile + "/unreadable": ""})
		began := time.Now()
		if _, err := g.Kill(); err == nil || errors.Is(err, fs.ErrNotExist) && !strings.Contains(err.Error(), procsFile) {
			t.Errorf("the error is %v", err)
		}
		if time.Since(began) >= KillLimit {
			t.Error("it waits")
		}
	})
	t.Run("no group", func(t *testing.T) {
		for _, g := range []*Group{nil, {filepath.Join(t.TempDir(), "x")}} {
			if n, err := g.Kill(); n != 0 || !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("killed %d, %v", n, err)
			}
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
			if g.Holds(os.Getpid()) {
				t.Error("it holds a process")
			}
		}
	})
}

// TestSweep removes an old group without processes, and no other.
func TestSweep(t *testing.T) {
	used, empty := realGroup(t), realGroup(t)
	pid := startIn(t, used, "exec sleep 1000")
	below := filepath.Join(empty.dir, "below")
	foreign := filepath.Join(filepath.Dir(empty.dir), "test"+filepath.Base(empty.dir))
	for _, dir := range []string{empty.dir, below, foreign} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	defer os.Remove(foreign) //nolint:errcheck // checked below
	exist := func() (found []bool) {
		for _, dir := range []string{used.dir, foreign, empty.dir} {
			_, err := os.Stat(dir)
			found = append(found, err == nil)
		}
		return found
	}
	if err := Sweep(filepath.Dir(empty.dir)); err != nil || !slices.Equal(exist(), []bool{true, true, true}) {
		t.Errorf("new groups: %v, %v", exist(), err)
	}
	// Other tests have new groups in the same folder.
	then := time.Now().Add(-sweepAge).Add(-time.Second)
	for _, dir := range []string{used.dir, foreign, empty.dir} {
		if err := os.Chtimes(dir, then, then); err != nil {
			t.Fatal(err)
		}
	}
	if err := Sweep(filepath.Dir(empty.dir)); err != nil || !slices.Equal(exist(), []bool{true, true, false}) {
		t.Errorf("old groups: %v, %v", exist(), err)
	}
	if !alive(pid) {
		t.Error("a process was killed")
	}
	if err := Sweep(filepath.Join(t.TempDir(), "x")); err == nil {
		t.Error("a missing folder is no error")
	}
}

func TestAt(t *testing.T) {
	id := uuid.NewString()
	path := Path("/sys/fs/cgroup/a", id)
	if g, err := At(path, id); err != nil || g.dir != path {
		t.Errorf("got %v, %v", g, err)
	}
	if again := Path("/sys/fs/cgroup/a", id); again == path {
		t.Error("two paths are equal")
	}
	if g, err := At("", id); g != nil || err != nil {
		t.Errorf("no path: %v, %v", g, err)
	}
	for _, bad := range []string{"/", "/sys/fs/cgroup/system.slice", path + "/..", path + "/", path[1:],
		Path("/sys/fs/cgroup/a", uuid.NewString()), filepath.Join(path, "x")} {
		if g, err := At(bad, id); g != nil || err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if g, err := At("/a/ekg--x", ""); g != nil || err == nil {
		t.Error("a group without a kernel was accepted")
	}
}
