package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/starter"
)

// fakeGPUs stands for ekg-gpu. A test chooses its output.
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
"fail once") mv next said; echo "ekg-gpu: GPU is lost" >&2; exit 1 ;;
hang) echo $$ >>hanging; exec sleep 1000 ;;
esac
printf "%%s" "$said"
`, g.dir)
	g.say("{}")
	if err := errors.Join(os.WriteFile(g.program(), []byte(script), 0o755), os.Chmod(g.dir, 0o777),
		os.WriteFile(filepath.Join(g.dir, "looks"), nil, 0o666),
		os.Chmod(filepath.Join(g.dir, "looks"), 0o666)); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *fakeGPUs) program() string { return filepath.Join(g.dir, "ekg-gpu") }

// say sets the output.
func (g *fakeGPUs) say(text string) {
	g.t.Helper()
	file := filepath.Join(g.dir, "said")
	if err := errors.Join(os.WriteFile(file+".new", []byte(text+"\n"), 0o644), os.Rename(file+".new", file)); err != nil {
		g.t.Fatal(err)
	}
}

// used sets an output in which one GPU computes all the time, and a process has a part of that.
func (g *fakeGPUs) used(pid int, part float64) {
	g.t.Helper()
	g.say(fmt.Sprintf(
		`{"seconds": 0.5, "devices": [{"uuid": "GPU-1", "use": 1, "processes": [{"pid": %d, "use": %g}]}]}`, pid, part))
}

// looks waits until ekg-gpu was run n times more.
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
			g.t.Fatal("GPUs are not measured")
		}
	}
}

// TestCull_Gpus: a kernel is kept as long as GPUs compute for it, in this container and in another one. Computing for
// other processes does not keep it.
func TestCull_GPUs(t *testing.T) {
	// Six looks, 500 ms apart, are more than twice what the kernel may be idle.
	const looks = 6
	cull := api.Cull{IdleTimeout: time.Second, GPU: 0.05, Interval: 500 * time.Millisecond}
	culled := func(st api.Status) bool {
		return st.State == api.Dead && strings.HasPrefix(st.Reason, "it was idle for ")
	}
	check := func(t *testing.T, g *fakeGPUs, leader int, until func(string, func(api.Status) bool) api.Status) {
		t.Helper()
		g.used(leader, 0.06)
		g.looks(looks)
		if st := until("computing", func(api.Status) bool { return true }); st.State != api.Idle {
			t.Fatalf("it is %s: %s", st.State, st.Reason)
		}
		g.used(os.Getpid(), 1)
		until("culled", culled)
	}
	tune := func(g *fakeGPUs) func(c *api.Config) {
		return func(c *api.Config) { c.Cull, c.GPUProgram = cull, g.program() }
	}
	// All use of a GPU counts in a container, and before anything is known of the kernel.
	const container = `{"seconds": 0.5, "devices": [{"uuid": "GPU-1", "use": 0.06, "processes": null}]}`
	t.Run("own process", func(t *testing.T) {
		g := newFakeGPUs(t)
		g.say(container)
		r := startSupervisor(t, tune(g)).ready()
		st, _ := r.s.Status()
		check(t, g, st.KernelPID, r.until)
	})
	t.Run("another container", func(t *testing.T) {
		g := newFakeGPUs(t)
		g.say(container)
		p := startPod(t, tune(g)).ready()
		check(t, g, p.until("up", func(st api.Status) bool { return st.KernelPID != 0 }).KernelPID, p.until)
	})
	t.Run("its devices are its own", func(t *testing.T) {
		g := newFakeGPUs(t)
		g.say(container)
		r := startSupervisor(t, tune(g)).ready()
		g.looks(looks)
		if st, _ := r.s.Status(); st.State != api.Idle {
			t.Fatalf("it is %s: %s", st.State, st.Reason)
		}
		g.say(strings.ReplaceAll(container, "0.06", "0.05"))
		r.until("culled", culled)
	})
	for name, said := range map[string]string{"no GPU": `{"seconds": 0, "devices": []}`, "it fails": "fail",
		"it says something else": "GPU 0: idle"} {
		t.Run(name, func(t *testing.T) {
			g := newFakeGPUs(t)
			g.say(said)
			r := startSupervisor(t, tune(g)).ready()
			r.until("culled", culled)
		})
	}
	t.Run("it fails now and then", func(t *testing.T) {
		g := newFakeGPUs(t)
		g.say(container)
		r := startSupervisor(t, tune(g)).ready()
		g.looks(looks)
		for range 3 {
			if err := os.WriteFile(filepath.Join(g.dir, "next"), []byte(container+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			g.say("fail once")
			g.looks(2)
			if st, _ := r.s.Status(); st.State != api.Idle {
				t.Fatalf("it is %s: %s", st.State, st.Reason)
			}
		}
	})
	t.Run("it is missing", func(t *testing.T) {
		r := startSupervisor(t, func(c *api.Config) { c.Cull, c.GPUProgram = cull, "/nowhere/ekg-gpu" }).ready()
		r.until("culled", culled)
	})
	t.Run("it hangs and the kernel ends", func(t *testing.T) {
		g := newFakeGPUs(t)
		g.say("hang")
		var logged transcript.Buffer
		r := startSupervisorTuned(t, tune(g), func(s *Supervisor) { s.logger = loggerTo(&logged) }).ready()
		var pid int
		for deadline := time.Now().Add(testLimit); pid == 0; <-time.After(10 * time.Millisecond) {
			b, err := os.ReadFile(filepath.Join(g.dir, "hanging"))
			if n, _ := fmt.Sscan(string(b), &pid); n == 0 && time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
		st, _ := r.s.Status()
		killProcess(t, st.KernelPID)
		r.until("restarted", func(st api.Status) bool { return st.State == api.Idle && st.Epoch > 1 })
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the program of the life before is there: %v", err)
		}
		if text := logged.String(); strings.Contains(text, "GPU") {
			t.Errorf("it is said that something is wrong with GPUs:\n%s", text)
		}
	})
}

// measured is a starter.Process that can only be measured.
type measured struct {
	starter.Process
	use       process.Use
	requested []process.GPULook
	scans     int // requests that include processors
}

func (m *measured) Measure(processors bool, look process.GPULook) {
	m.requested = append(m.requested, look)
	if processors {
		m.scans++
	}
}

func (m *measured) Used() process.Use { return m.use }

// sees sets the result of a look at GPUs.
func (m *measured) sees(gpus float64, failure string) {
	m.use.GPU = process.GPUUse{GPUs: gpus, Failure: failure, At: time.Now()}
}

// TestLife_Measure: a measurement is requested once in an interval, however often the kernel is checked for culling.
// Each request counts one result. One look without use does not outweigh the looks before it.
func TestLife_Measure(t *testing.T) {
	const minute = time.Minute
	synctest.Test(t, func(t *testing.T) {
		var logged transcript.Buffer
		i := newIdling(t, api.Cull{IdleTimeout: time.Hour, GPU: 0.1})
		i.s.cfg.GPUProgram, i.s.logger = "/ekg-gpu", loggerTo(&logged)
		p := &measured{}
		l := &life{s: i.s, proc: p, meter: meter{load: activity.NewLoad(&i.s.cfg.Cull)}}
		step := func(after, next time.Duration, requested int, computes bool) {
			t.Helper()
			time.Sleep(after)
			if got := l.measure(); got != next || len(p.requested) != requested || i.s.use.Computes != computes {
				t.Errorf("next in %v, requested %d times, computes %v", got, len(p.requested), i.s.use.Computes)
			}
		}
		step(0, minute, 1, true) // not measured yet
		step(10*time.Second, 50*time.Second, 1, true)
		p.sees(0.5, "")
		step(0, 50*time.Second, 1, true)
		time.Sleep(time.Second)
		p.sees(0, "what a child says unrequested")
		step(0, 49*time.Second, 1, true)
		for n := range 3 { // one quiet look, or a failed one, between others
			step(49*time.Second, minute, 2+2*n, true)
			p.sees(0, "the driver is slow")
			step(11*time.Second, 49*time.Second, 2+2*n, true)
			step(49*time.Second, minute, 3+2*n, true)
			p.sees(0.2, "")
			step(11*time.Second, 49*time.Second, 3+2*n, true)
		}
		step(49*time.Second, minute, 8, true)
		p.sees(0.05, "")
		step(11*time.Second, 49*time.Second, 8, true)
		i.at = 30 * minute
		step(49*time.Second, minute, 9, true)
		p.sees(0.05, "")
		step(11*time.Second, 49*time.Second, 9, false)
		if at := i.s.use.Idle().LongWork; !at.Equal(i.s.now()) {
			t.Errorf("it has worked until %v", at)
		}
		if n := strings.Count(logged.String(), "level=WARN"); n != 3 || strings.Contains(logged.String(), "unrequested") {
			t.Errorf("the log has %d warnings:\n%s", n, logged.String())
		}
		if look := (process.GPULook{Program: "/ekg-gpu", For: gpuLookTime}); p.requested[0] != look {
			t.Errorf("requested %+v", p.requested[0])
		}
		// Nothing is measured if no limit depends on it.
		p = &measured{}
		i = newIdling(t, api.Cull{MaxAge: time.Hour, GPU: 0.1, CPU: 0.1})
		l = &life{s: i.s, proc: p, meter: meter{load: activity.NewLoad(&i.s.cfg.Cull)}}
		step(0, minute, 0, false)
	})
}

// TestLife_MeasureScans: /proc is scanned only if a limit reads the use of processors.
func TestLife_MeasureScans(t *testing.T) {
	for _, tc := range []struct {
		cull            api.Cull
		requests, scans int
	}{
		{api.Cull{IdleTimeout: time.Hour, GPU: 0.1}, 3, 0},
		{api.Cull{IdleTimeout: time.Hour, CPU: 0.1}, 3, 3},
		{api.Cull{IdleTimeout: time.Hour, CPU: 0.1, GPU: 0.1}, 3, 3},
		{api.Cull{IdleTimeout: time.Hour}, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			i, p := newIdling(t, tc.cull), &measured{}
			l := &life{s: i.s, proc: p, meter: meter{load: activity.NewLoad(&i.s.cfg.Cull)}}
			for range 3 {
				time.Sleep(l.measure())
			}
			if len(p.requested) != tc.requests || p.scans != tc.scans {
				t.Errorf("%+v: %d requests, %d scans", tc.cull, len(p.requested), p.scans)
			}
		})
	}
}
