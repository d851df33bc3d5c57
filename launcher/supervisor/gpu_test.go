package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/starter"
)

// fakeSampler stands for ekg-gpu watch. It prints the lines that a test sends it.
type fakeSampler struct {
	t   *testing.T
	dir string
}

func newFakeSampler(t *testing.T, args string) *fakeSampler {
	f := &fakeSampler{t, t.TempDir()}
	script := fmt.Sprintf(`#!/bin/sh
cd %q || exit 2
case "$*" in
%s) ;;
*) echo "ekg-gpu: got $*" >&2; exit 2 ;;
esac
echo $$ >pid.new; mv pid.new pid
cat lines &
lines=$!
cat >/dev/null
kill $lines
touch ended
`, f.dir, args)
	if err := errors.Join(os.WriteFile(f.program(), []byte(script), 0o755), os.Chmod(f.dir, 0o777),
		syscall.Mkfifo(filepath.Join(f.dir, "lines"), 0o666), os.Chmod(filepath.Join(f.dir, "lines"), 0o666)); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fakeSampler) program() string { return filepath.Join(f.dir, "ekg-gpu") }

// lines opens the pipe to ekg-gpu, which has to run.
func (f *fakeSampler) lines() *os.File {
	f.t.Helper()
	var w *os.File
	f.wait("ekg-gpu does not run", func() bool {
		var err error
		w, err = os.OpenFile(filepath.Join(f.dir, "lines"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
		return err == nil
	})
	return w
}

func (f *fakeSampler) wait(failure string, until func() bool) {
	f.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(testLimit); !until(); <-tick.C {
		if time.Now().After(deadline) {
			f.t.Fatal(failure)
		}
	}
}

// TestGPUs checks that samples reach the status and the model, from this container and another, and that ekg-gpu ends
// with the kernel.
func TestGPUs(t *testing.T) {
	const first = `{"seconds":0,"devices":[{"uuid":"GPU-1","model":"T4","memory_total":4096,"memory_used":2048,` +
		`"utilization":0.5,"processes":null}]}` + "\n"
	check := func(t *testing.T, f *fakeSampler, until func(string, func(api.Status) bool) api.Status,
		model func() api.Model) {
		t.Helper()
		w := f.lines()
		defer w.Close() //nolint:errcheck // the text was written
		if _, err := w.WriteString(first); err != nil {
			t.Fatal(err)
		}
		st := until("sampled", func(st api.Status) bool { return len(st.GPU) == 1 })
		b, err := json.Marshal(st.GPU)
		want := `[{"uuid":"GPU-1","model":"T4","memory_total":4096,"memory_used":2048,"utilization":0.5,"busy_since":"`
		if err != nil || !strings.HasPrefix(string(b), want) {
			t.Errorf("got %s, %v", b, err)
		}
		if model == nil {
			return // it is in another process
		}
		if m := model(); len(m.GPU) != 1 || m.GPU[0].UUID != "GPU-1" {
			t.Errorf("the model has %+v", m.GPU)
		}
	}
	tune := func(f *fakeSampler) func(c *api.Config) {
		return func(c *api.Config) {
			c.GPUProgram, c.GPUSamples = f.program(), api.GPUSamples{Every: time.Second, Devices: []string{"GPU-1"}}
		}
	}
	t.Run("own process", func(t *testing.T) {
		f := newFakeSampler(t, `"watch --every 1s --devices GPU-1 --session "*`)
		r := startSupervisor(t, tune(f)).ready()
		check(t, f, r.until, r.s.Model)
		st, _ := r.s.Status()
		if err := syscall.Kill(st.KernelPID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		pid, err := os.ReadFile(filepath.Join(f.dir, "pid"))
		if err != nil {
			t.Fatal(err)
		}
		f.wait("ekg-gpu runs without its kernel", func() bool {
			_, err := os.Stat(filepath.Join("/proc", strings.TrimSpace(string(pid))))
			return err != nil
		})
	})
	t.Run("another container", func(t *testing.T) {
		f := newFakeSampler(t, `"watch --every 1s --devices GPU-1"`)
		p := startPod(t, tune(f)).ready()
		check(t, f, p.until, nil)
	})
	t.Run("ekg-gpu is missing", func(t *testing.T) {
		r := startSupervisor(t, func(c *api.Config) {
			c.GPUProgram, c.GPUSamples.Every = "/nowhere/ekg-gpu", time.Second
		}).ready()
		if st, _ := r.s.Status(); st.State != api.Idle || len(st.GPU) != 0 {
			t.Errorf("got %+v", st)
		}
	})
}

// sampledProcess is a process whose samples a test sets.
type sampledProcess struct {
	starter.Process
	tally gpu.Tally
}

func (p *sampledProcess) Used() process.Use { return process.Use{Samples: p.tally} }

// TestTakeSamples checks the sums, since when a device is busy, and that small changes wake no status stream.
func TestTakeSamples(t *testing.T) {
	s := New(api.Config{LogLimit: 1 << 20}, "test", slog.New(slog.DiscardHandler))
	at := time.Unix(1_000_000, 0)
	s.now = func() time.Time { return at }
	p := &sampledProcess{}
	wakes := s.use.GPUs.Wakes
	sample := func(use float64, memory int64) *api.GPU {
		at = at.Add(10 * time.Second)
		d := gpu.Sample{UUID: "GPU-1", MemoryTotal: 16 << 30, MemoryUsed: memory}
		if use >= 0 {
			d.Utilization = &use
		}
		p.tally.Add(gpu.Samples{Seconds: 10, Devices: []gpu.Sample{d}}, at.Add(-10*time.Second), at)
		(&life{s: s, proc: p}).takeSamples()
		return &s.Model().GPU[0]
	}
	woken := func(what string, want bool) {
		t.Helper()
		if got := s.use.GPUs.Wakes != wakes; got != want {
			t.Errorf("%s: woken %v", what, got)
		}
		wakes = s.use.GPUs.Wakes
	}
	began := sample(0.5, 1<<30)
	woken("first", true)
	if began.BusySince == "" || began.IdleSince != "" {
		t.Errorf("got %+v", began)
	}
	since := began.BusySince
	if g := sample(0.52, 1<<30+1<<20); g.BusySince != since || *g.Utilization != 0.52 {
		t.Errorf("got %+v", g)
	}
	woken("a small change", false)
	sample(0.9, 1<<30)
	woken("more use", true)
	sample(0.9, 2<<30)
	woken("more memory", true)
	if g := sample(0, 2<<30); g.IdleSince != api.Timestamp(at) || g.BusySince != "" {
		t.Errorf("got %+v", g)
	}
	woken("idle", true)
	if g := sample(-1, 2<<30); g.IdleSince != "" || g.BusySince != "" || g.Utilization != nil {
		t.Errorf("got %+v", g)
	}
	woken("unknown", true)
	at = at.Add(-9 * time.Second)
	sample(0.9, 2<<30)
	woken("busy again, too soon", false)
	if use := s.use.GPUs.Sum; use.Measured.Round(time.Second) != 51*time.Second ||
		math.Abs(use.Busy.Seconds()-(5+5.2+9+9+0.9)) > 0.01 {
		t.Errorf("got %+v", use)
	}
	// What was measured survives the supervisor.
	saved, next := s.savedStateLocked(), New(api.Config{LogLimit: 1 << 20}, "test", slog.New(slog.DiscardHandler))
	next.restoreUseLocked(saved.Use, true)
	if next.use.GPUs.Sum != s.use.GPUs.Sum {
		t.Errorf("restored %+v, not %+v", next.use.GPUs.Sum, s.use.GPUs.Sum)
	}
}

// TestTakeSamples_Long checks that devices with too much text do not make the status unreadable for gateways.
func TestTakeSamples_Long(t *testing.T) {
	s := New(api.Config{KernelID: "k", LogLimit: 1 << 20}, "test", slog.New(slog.DiscardHandler))
	p := &sampledProcess{}
	devices := func(text string) (all []gpu.Sample) {
		for i := range gpu.MaxDevices {
			all = append(all, gpu.Sample{UUID: fmt.Sprintf("MIG-%036d", i), Model: "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
				MemoryTotal: 10 << 30, MemoryUsed: 10 << 30, Utilization: new(float64), Error: text})
		}
		return all
	}
	at := time.Unix(1_000_000, 0)
	for _, step := range []struct {
		samples gpu.Samples
		shown   int
	}{
		{gpu.Samples{Devices: devices("")}, gpu.MaxDevices},
		{gpu.Samples{Error: strings.Repeat("<", process.MaxGPUFailure)}, 0},
		{gpu.Samples{Devices: devices("")}, gpu.MaxDevices},
		{gpu.Samples{Devices: devices(strings.Repeat("<", process.MaxGPUFailure))}, 0},
	} {
		at = at.Add(time.Minute)
		s.now = func() time.Time { return at }
		p.tally.Add(step.samples, at, at)
		(&life{s: s, proc: p}).takeSamples()
		st, _ := s.Status()
		b, err := json.Marshal(st)
		if err != nil || len(b) > 48<<10 || len(st.GPU) != step.shown {
			t.Errorf("%d devices in a status of %d bytes, want %d; %v", len(st.GPU), len(b), step.shown, err)
		}
	}
}
