package supervisor

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// stopLimits is a Config whose grace is long enough for a slow machine. No kernel that obeys uses it up.
func stopLimits(c *api.Config) { c.StopGrace = testLimit }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestStop_InterruptsRunningCell: code that runs when the kernel is stopped, restarted or culled is interrupted, so
// that it can clean up. Its cell says why the kernel ended, and what it printed meanwhile stays.
func TestStop_InterruptsRunningCell(t *testing.T) {
	ends := map[string]struct {
		end  func(r *running)
		says string // in the cell, or in the reply
	}{
		"stopped": {func(r *running) {
			if status, body := r.request("DELETE", "", ""); status != http.StatusNoContent {
				r.t.Errorf("%d %s", status, body)
			}
		}, "The kernel died: "},
		"restarted": {func(r *running) {
			if status, body := r.request("POST", "/restart", ""); status != http.StatusOK {
				r.t.Errorf("%d %s", status, body)
			}
		}, "KernelRestarted"},
		"culled": {func(r *running) {
			r.until("dead", func(st api.Status) bool { return st.State == api.Dead })
		}, "it was busy with one request for"},
	}
	for name, tt := range ends {
		for _, mode := range []string{"signal", "message"} {
			t.Run(name+" by "+mode, func(t *testing.T) {
				r := startSupervisor(t, func(c *api.Config) {
					stopLimits(c)
					c.InterruptMode = mode
					if name == "culled" {
						c.Cull = api.Cull{BusyLimit: time.Second}
					}
				}).ready()
				cleaned := filepath.Join(t.TempDir(), "cleaned")
				c := r.dial(dialOption{session: "ann", v1: true})
				id := c.cleansUp(cleaned)
				wait := during(func() { tt.end(r) })
				all := c.result(id)
				wait()
				if !exists(cleaned) {
					t.Error("the cell was not interrupted")
				}
				if g, ok := find(all, "error", id); !ok || !strings.Contains(string(g.Content), "KeyboardInterrupt") {
					t.Error("the cell does not show its interrupt")
				}
				reply, _ := find(all, "execute_reply", id)
				if said := output(all, id) + string(reply.Content); !strings.Contains(said, tt.says) {
					t.Errorf("the cell says %q", said)
				}
				if strings.Contains(string(reply.Content), "KeyboardInterrupt") {
					t.Errorf("the reply is the kernel's: %s", reply.Content)
				}
			})
		}
	}
	t.Run("in another container", func(t *testing.T) {
		p := startPod(t, stopLimits).ready()
		c := p.attach("ann")
		first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
		id := c.cleansUp(first)
		if status, body := p.ask("POST", "/restart", ""); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
		c.result(id)
		p.until("second life", func(st api.Status) bool { return st.State == api.Idle && st.Epoch == 2 })
		c.cleansUp(second)
		if err := p.client().Stop(t.Context(), "because"); err != nil {
			t.Fatal(err)
		}
		if !exists(first) || !exists(second) {
			t.Errorf("interrupted: %v at the restart, %v at the stop", exists(first), exists(second))
		}
	})
}

// cleansUp starts a cell that writes a file when it is interrupted, and waits until it would.
func (c *client) cleansUp(file string) (cell string) {
	c.t.Helper()
	cell = c.execute("finally " + file + "\necho now\nsleep 1h")
	c.collect("output", func(g got) bool { return g.msgType == "stream" && g.parent == cell })
	return cell
}

// TestStop_IgnoredInterrupt: a cell that ignores interrupts delays the end by no more than the grace.
func TestStop_IgnoredInterrupt(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) {
		c.Argv, c.StopGrace = fakeKernelArgv("--ignore-sigint", "--ignore-shutdown"), time.Second
	}).ready()
	c := r.dial(dialOption{session: "ann", v1: true})
	id := c.execute("sleep 1h")
	c.running(id)
	if status, body := r.request("DELETE", "", ""); status != http.StatusNoContent {
		t.Errorf("%d %s", status, body)
	}
	if said := output(c.result(id), id); !strings.Contains(said, "The kernel died: ") {
		t.Errorf("the cell says %q", said)
	}
}

// TestStop_SucceedingCell: a cell that succeeds while the kernel is stopped gets its own reply.
func TestStop_SucceedingCell(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) {
		c.Argv, c.StopGrace = fakeKernelArgv("--ignore-sigint"), 2*testLimit
	}).ready()
	c := r.dial(dialOption{session: "ann", v1: true})
	id := c.execute("sleep 1s")
	c.running(id)
	wait := during(func() { r.request("DELETE", "", "") })
	all := c.result(id)
	wait()
	if g, ok := find(all, "execute_reply", id); !ok || !strings.Contains(string(g.Content), `"ok"`) {
		t.Errorf("the reply is %s", g.Content)
	}
	if said := output(all, id); said != "" {
		t.Errorf("the cell says %q", said)
	}
}

// TestStop_IdleKernel: an idle kernel gets no interrupt.
func TestStop_IdleKernel(t *testing.T) {
	hit := filepath.Join(t.TempDir(), "interrupted")
	r := startSupervisor(t, func(c *api.Config) {
		stopLimits(c)
		c.Argv = append([]string{"sh", "-c", `trap 'touch "$0"' INT; "$@"; :`, hit}, c.Argv...)
	}).ready()
	c := r.dial(dialOption{session: "ann", v1: true})
	c.result(c.execute("result 1"))
	if status, body := r.request("DELETE", "", ""); status != http.StatusNoContent {
		t.Errorf("%d %s", status, body)
	}
	if exists(hit) {
		t.Error("an idle kernel was interrupted")
	}
}

// leaving is a fake kernel that leaves a process in a session of its own. It writes that process's id to file.
func leaving(file string) []string {
	const script = `setsid sh -c 'echo $$ >"$0.new"; mv "$0.new" "$0"; exec sleep 1000' "$0" & exec "$@"`
	return append([]string{"sh", "-c", script, file}, fakeKernelArgv()...)
}

// leftBehind returns the id of the process that a kernel of leaving has left, and removes the file.
func leftBehind(t *testing.T, file string) (pid int) {
	t.Helper()
	eventually(t, "the kernel has left a process", func() bool {
		b, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	return pid
}

// TestStop_OtherSessions: every end of a kernel ends its processes in sessions of their own, before the next life.
func TestStop_OtherSessions(t *testing.T) {
	gone := func(t *testing.T, when string, pid int) {
		t.Helper()
		if p, ok := proctree.Find(pid); ok && p.Alive() {
			t.Errorf("%s: process %d lives", when, pid)
			killProcess(t, pid)
		}
	}
	t.Run("own process", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "left")
		r := startSupervisor(t, func(c *api.Config) { stopLimits(c); c.Argv = leaving(file) }).ready()
		pid := leftBehind(t, file)
		if status, body := r.request("POST", "/restart", ""); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
		gone(t, "restart", pid)
		r.ready()
		pid = leftBehind(t, file)
		r.dial(dialOption{session: "ann"}).execute("crash")
		r.until("third life", func(st api.Status) bool { return st.State == api.Idle && st.Epoch == 3 })
		gone(t, "crash", pid)
		pid = leftBehind(t, file)
		if status, body := r.request("DELETE", "", ""); status != http.StatusNoContent {
			t.Errorf("%d %s", status, body)
		}
		gone(t, "stop", pid)
	})
	t.Run("culled", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "left")
		r := startSupervisor(t, func(c *api.Config) {
			stopLimits(c)
			c.Argv, c.Cull = leaving(file), api.Cull{IdleTimeout: time.Second}
		})
		pid := leftBehind(t, file)
		r.until("dead", func(st api.Status) bool { return st.State == api.Dead })
		gone(t, "cull", pid)
	})
	t.Run("in another container", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "left")
		p := startPod(t, func(c *api.Config) { stopLimits(c); c.Argv = leaving(file) }).ready()
		pid := leftBehind(t, file)
		if status, body := p.ask("POST", "/restart", ""); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
		gone(t, "restart", pid)
		p.until("second life", func(st api.Status) bool { return st.State == api.Idle && st.Epoch == 2 })
		pid = leftBehind(t, file)
		if err := p.client().Stop(t.Context(), "because"); err != nil {
			t.Fatal(err)
		}
		gone(t, "stop", pid)
	})
}
