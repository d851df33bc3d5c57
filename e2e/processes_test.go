//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/cgroup"
)

// This file finds the processes of a gateway and of its kernels in the process table.

// process is an entry of the process table.
type process struct {
	pid     int
	cmdline string
	environ string
}

// processes returns the living processes that match.
func processes(t *testing.T, match func(process) bool) []process {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		read := func(file string) string {
			b, _ := os.ReadFile(filepath.Join("/proc", e.Name(), file)) // the process may end during the loop
			return strings.ReplaceAll(string(b), "\x00", " ")
		}
		p := process{pid: pid, cmdline: read("cmdline"), environ: read("environ")}
		if p.cmdline != "" && match(p) { // a zombie has no command line
			found = append(found, p)
		}
	}
	return found
}

// supervisorOf returns the process id of the kernel's supervisor.
func (g *gateway) supervisorOf(id string) int { return g.oneProcess(id, "ekg-supervisor --config ") }

// parentOf returns the process id of the parent of the kernel's supervisor.
func (g *gateway) parentOf(id string) int { return g.oneProcess(id, "ekg-supervisor parent ") }

// oneProcess returns the only process with a kernel's id and this text on its command line.
func (g *gateway) oneProcess(id, text string) int {
	g.t.Helper()
	found := processes(g.t, func(p process) bool {
		return strings.Contains(p.cmdline, text) && strings.Contains(p.cmdline, id)
	})
	if len(found) != 1 {
		g.t.Fatalf("kernel %s has %d processes with %q: %v", id, len(found), text, found)
	}
	return found[0].pid
}

// kernelProcesses returns the kernel's process and its children.
func (g *gateway) kernelProcesses(id string) []process {
	return processes(g.t, ofKernel(id))
}

// ofKernel matches the kernel's process and its children.
func ofKernel(id string) func(process) bool {
	return func(p process) bool { return strings.Contains(p.environ, "EKG_KERNEL_ID="+id) }
}

// noneLeft waits until no process matches.
func noneLeft(t *testing.T, limit time.Duration, what string, match func(process) bool) {
	t.Helper()
	eventually(t, limit, what, func() error {
		if left := processes(t, match); len(left) > 0 {
			return fmt.Errorf("%d processes are left, such as %v", len(left), left[0])
		}
		return nil
	})
}

// noProcesses waits until no process of the kernel is left.
func (g *gateway) noProcesses(id string) {
	g.t.Helper()
	noneLeft(g.t, 10*time.Second, "the end of kernel "+id, ofKernel(id))
}

// zombiesOf counts the ended children that a process has not reaped.
func zombiesOf(t *testing.T, parent int) int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range stats {
		b, _ := os.ReadFile(f) // the process may end during the loop
		_, rest, _ := strings.Cut(string(b), ") ")
		if strings.HasPrefix(rest, fmt.Sprintf("Z %d ", parent)) {
			n++
		}
	}
	return n
}

// removeGroups ends what is left in the control groups of a state directory's kernels, and removes the groups.
func removeGroups(t *testing.T, state string) {
	t.Helper()
	configs, err := filepath.Glob(filepath.Join(state, "kernels", "*", "supervisor.json"))
	if err != nil {
		t.Error(err)
	}
	for _, path := range configs {
		var config struct {
			Group string `json:"control_group"`
		}
		b, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(b, &config)
		}
		var group *cgroup.Group
		if err == nil {
			group, err = cgroup.At(config.Group, filepath.Base(filepath.Dir(path)))
		}
		if err == nil {
			_, err = group.Kill()
		}
		if err == nil {
			err = group.Remove()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("control group of a kernel: %v", err)
		}
	}
}
