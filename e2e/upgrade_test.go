//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// previous builds the programs of the previous commit and returns their folder. It skips the test in a shallow clone.
func previous(t *testing.T, in installed) string {
	t.Helper()
	commit, err := exec.Command("git", "-C", in.repository, "rev-parse", "--verify", "HEAD~1^{commit}").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = errors.New(strings.TrimSpace(string(exit.Stderr)))
		}
		t.Skipf("the previous commit is missing, as in a shallow clone: %v", err)
	}
	source, bin, tar := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "source.tar")
	for _, command := range [][]string{
		{"git", "-C", in.repository, "archive", "--output", tar, strings.TrimSpace(string(commit))},
		{"tar", "-x", "-f", tar, "-C", source},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, out)
		}
	}
	if err := buildIn(source, bin); err != nil {
		t.Fatal(err)
	}
	return bin
}

// TestE2E_Upgrade: kernels of one version are fully usable through a gateway of the next version. They are also usable
// through one of the previous version, since an upgrade may be undone.
func TestE2E_Upgrade(t *testing.T) {
	in := theInstallation(t)
	old := previous(t, in)
	for _, tt := range []struct {
		name, from, to string
		v1             bool
	}{{"up", old, in.bin, true}, {"down", in.bin, old, false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := prepare(t, "")
			g.in.bin = tt.from
			g.start()
			id, file := g.kernel("python3"), filepath.Join(g.dir, "go")
			c := g.dial(t, id, "s", tt.v1)
			c.says("kept = 'a variable'", "")
			cell := c.begin(waiting(file) + "print('went on')")
			c.begun(cell)
			supervisor := g.supervisorOf(id)

			if err := g.signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			g.in.bin = tt.to
			g.start()
			g.state(id, "busy", 20*time.Second)
			back := g.dial(t, id, "s", tt.v1)
			touch(t, file)
			if r := back.finish(cell, 20*time.Second); !strings.HasSuffix(r.stdout, "went on\n") ||
				r.reply.field("status") != "ok" {
				t.Errorf("the cell that ran meanwhile printed %q and ended with %s", r.stdout, r.reply.Content)
			}
			back.says("print(kept)", "a variable\n")
			interrupt(t, g, id, back)
			restart(t, g, id, back)
			if now := g.supervisorOf(id); now != supervisor {
				t.Errorf("the kernel's supervisor was process %d and is %d", supervisor, now)
			}
			if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", supervisor)); err != nil ||
				filepath.Dir(program) != tt.from {
				t.Errorf("the supervisor's program is %s, %v, want one in the first gateway's folder", program, err)
			}
			g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
			g.noProcesses(id)
			g.dial(t, g.kernel("python3"), "s", tt.v1).says("print('a new one')", "a new one\n")
		})
	}
}
