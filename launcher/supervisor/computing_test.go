package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakeGPUs stands for ekg-gpu, and says what it is told to.
type fakeGPUs struct {
	t   *testing.T
	dir string
}

func newFakeGPUs(t *testing.T) *fakeGPUs {
	g := &fakeGPUs{t, t.TempDir()}
	script := fmt.Sprintf(`#!/bin/sh
cd %q || exit 2
[ "$1 $2" = "--for 500ms" ] || exit 2
printf . >>looks
read -r said <said
case $said in
fail) echo "ekg-gpu: GPU is lost" >&2; exit 1 ;;
hang) echo $$ >>hanging; exec sleep 1000 ;;
esac
printf "%%s" "$said"
`, g.dir)
	g.say("{}")
	if err := errors.Join(os.WriteFile(g.program(), []byte(script), 0o755), os.Chmod(g.dir, 0o777), os.WriteFile(filepath.Join(g.dir, "looks"), nil, 0o666),
		os.Chmod(filepath.Join(g.dir, "looks"), 0o666)); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *fakeGPUs) program() string { return filepath.Join(g.dir, "ekg-gpu") }

// say has it say something from now on.
func (g *fakeGPUs) say(text string) {
	g.t.Helper()
	file := filepath.Join(g.dir, "said")
	if err := errors.Join(os.WriteFile(file+".new", []byte(text+"\n"), 0o644), os.Rename(file+".new", file)); err != nil {
		g.t.Fatal(err)
	}
}

// used has it say that a GPU computes all the time, and for a process a part of it.
func (g *fakeGPUs) used(pid int, part float64) {
	g.t.Helper()
	g.say(fmt.Sprintf(`{"seconds": 0.5, "devices": [{"uuid": "GPU-1", "use": 1, "processes": [{"pid": %d, "use": %g}]}]}`, pid, part))
}

// looks waits until it was asked n times more.
func (g *fakeGPUs) looks(n int) {
	g.t.Helper()
	size := func() int {
		b, err := os.ReadFile(filepath.Join(g.dir, "looks"))
		if err != nil {
			g.t.Fatal(err)
		}
		return len(b)
	}
	want, tick := size()+n, time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(testLimit); size() < want; <-tick.C {
		if time.Now().After(deadline) {
			g.t.Fatal("nobody looks")
		}
	}
}

// TestCull_gpus: a kernel for which GPUs compute is kept, here and in another container, and no longer than they do. What they do for others
// does not keep it.
func TestCull_gpus(t *testing.T) {
	// Six looks, 500 ms apart, are more than twice what the kernel may be idle.
	const looks = 6
	cull := Cull{IdleTimeout: time.Second, GPU: 0.05, Interval: 500 * time.Millisecond}
	culled := func(st Status) bool {
		return st.State == stateDead && strings.HasPrefix(st.Reason, "it was idle for ")
	}
	check := func(t *testing.T, g *fakeGPUs, leader int, until func(string, func(Status) bool) Status) {
		t.Helper()
		g.used(leader, 0.06)
		g.looks(looks)
		if st := until("told", func(Status) bool { return true }); st.State != stateIdle {
			t.Fatalf("it is %s: %s", st.State, st.Reason)
		}
		g.used(os.Getpid(), 1)
		until("culled", culled)
	}
	// In a container, or before anything is known of the kernel, all that a GPU does counts.
	const container = `{"seconds": 0.5, "devices": [{"uuid": "GPU-1", "use": 0.06, "processes": null}]}`
	t.Run("own process", func(t *testing.T) {
		g := newFakeGPUs(t)
		g.say(container)
		r := startSupervisor(t, func(c *Config) { c.Cull, c.GPUProgram = cull, g.program() }).ready()
		st, _ := r.s.currentStatus()
		check(t, g, st.KernelPID, r.until)
	})
	t.Run("another container", func(t *testing.T) {
		g := newFakeGPUs(t)
		g.say(container)
		p := startPod(t, func(c *Config) { c.Cull, c.GPUProgram = cull, g.program() }).ready()
		check(t, g, p.until("up", func(st Status) bool { return st.KernelPID != 0 }).KernelPID, p.until)
	})
	t.Run("its devices are its own", func(t *testing.T) {
		g := newFakeGPUs(t)
		g.say(container)
		r := startSupervisor(t, func(c *Config) { c.Cull, c.GPUProgram = cull, g.program() }).ready()
		g.looks(looks)
		if st, _ := r.s.currentStatus(); st.State != stateIdle {
			t.Fatalf("it is %s: %s", st.State, st.Reason)
		}
		g.say(strings.ReplaceAll(container, "0.06", "0.05"))
		r.until("culled", culled)
	})
	for name, said := range map[string]string{"no GPU": `{"seconds": 0, "devices": []}`, "it fails": "fail", "it says something else": "GPU 0: idle"} {
		t.Run(name, func(t *testing.T) {
			g := newFakeGPUs(t)
			g.say(said)
			r := startSupervisor(t, func(c *Config) { c.Cull, c.GPUProgram = cull, g.program() }).ready()
			r.until("culled", culled)
		})
	}
	t.Run("it is missing", func(t *testing.T) {
		r := startSupervisor(t, func(c *Config) { c.Cull, c.GPUProgram = cull, "/nowhere/ekg-gpu" }).ready()
		r.until("culled", culled)
	})
	t.Run("it hangs and the kernel ends", func(t *testing.T) {
		g := newFakeGPUs(t)
		g.say("hang")
		r := startSupervisor(t, func(c *Config) { c.Cull, c.GPUProgram = cull, g.program() }).ready()
		var pid int
		for deadline := time.Now().Add(testLimit); pid == 0; <-time.After(10 * time.Millisecond) {
			b, err := os.ReadFile(filepath.Join(g.dir, "hanging"))
			if n, _ := fmt.Sscan(string(b), &pid); n == 0 && time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
		st, _ := r.s.currentStatus()
		killProcess(t, st.KernelPID)
		r.until("started anew", func(st Status) bool { return st.State == stateIdle && st.Epoch > 1 })
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the program of the life before is there: %v", err)
		}
	})
}
