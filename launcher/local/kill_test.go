package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/cgroup"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
)

// TestControlGroup: a process that has a session of its own and an empty environment ends with its kernel, also if
// another supervisor has adopted the kernel or the parent was killed. No group is left.
func TestControlGroup(t *testing.T) {
	dir, err := cgroup.Find()
	if err != nil {
		t.Skipf("this process may not create control groups: %v", err)
	}
	p := newPlace(t)
	p.change = func(o *Options, _ *timing) { o.ControlGroups = dir }
	l := p.launcher()
	hidden := filepath.Join(t.TempDir(), "hidden")
	spec := kernelspecs.Spec{Name: "hidden", InterruptMode: "signal", Argv: []string{"sh", "-c",
		"env -i /usr/bin/setsid -f /bin/sh -c 'echo $$ >>" + hidden + "; exec /bin/sleep 1000'\n" +
			`exec "$0" kernel -f "$1"`, os.Args[0], "{connection_file}"}}
	lives := func(n int) int { // the nth process that was hidden
		pid := 0
		eventually(t, "the kernel has hidden a process", func() bool {
			b, _ := os.ReadFile(hidden) // it may not exist yet
			lines := strings.Fields(string(b))
			if len(lines) == n && strings.HasSuffix(string(b), "\n") {
				pid, _ = strconv.Atoi(lines[n-1]) // the shell wrote it
			}
			return pid > 0
		})
		return pid
	}
	alive := func(pid int) bool {
		found, ok := proctree.Find(pid)
		return ok && found.Alive()
	}
	folders := func() []string {
		found, err := filepath.Glob(filepath.Join(dir, "ekg-"+id(1)+"-*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	groups := func() int { return len(folders()) }
	if _, _, err := l.Start(t.Context(), launcher.Request{ID: id(1), Owner: "ann", Spec: spec}); err != nil {
		t.Fatal(err)
	}
	first := lives(1)
	wait(t, l, 1, "idle", isIdle)
	pids, g := processesOf(t, p, 1), l.processes.group(id(1))
	if !g.Holds(pids.Kernel) || !g.Holds(first) || g.Holds(pids.Parent) || g.Holds(pids.Supervisor) || groups() != 1 {
		t.Error("the group does not hold the kernel's processes alone")
	}

	earlier := folders()[0]

	// The parent is killed: the gateway ends what the kernel has left, and removes the group.
	if err := syscall.Kill(pids.Parent, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait(t, l, 1, "dead", isDead)
	if alive(first) || groups() != 0 {
		t.Errorf("after the parent's end the process lives: %t; %d groups", alive(first), groups())
	}

	// An earlier group that could not be removed is removed before its name is forgotten.
	if err := os.Mkdir(earlier, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Revive(t.Context(), id(1)); err != nil {
		t.Fatal(err)
	}
	second := lives(2)
	wait(t, l, 1, "idle", isIdle)
	before := processesOf(t, p, 1).Supervisor
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another supervisor has adopted the kernel", func() bool {
		now := processesOf(t, p, 1).Supervisor
		return now != 0 && now != before
	})
	wait(t, l, 1, "idle", isIdle)
	if !alive(second) || groups() != 1 {
		t.Errorf("after adoption the process lives: %t; %d groups", alive(second), groups())
	}
	if err := l.Stop(t.Context(), id(1), "enough"); err != nil {
		t.Fatal(err)
	}
	if alive(second) || groups() != 0 {
		t.Errorf("after the stop the process lives: %t; %d groups", alive(second), groups())
	}
	if _, err := os.Stat(l.layout.kernel(id(1))); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the folder stays")
	}
}
