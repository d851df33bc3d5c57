package local

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/lend"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// parks has the next launchers park kernels.
func (p *place) parks() {
	with := p.change
	p.change = func(o *Options, tm *timing) {
		with(o, tm)
		o.Park = api.Park{Idle: time.Minute}
	}
}

// pins returns how many kernels are pinned to each GPU.
func pins(t *testing.T, l *Launcher) map[string]int {
	t.Helper()
	all, _, err := l.lender.Held(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, g := range all {
		counts[g.UUID] = len(g.Pinned)
	}
	return counts
}

// wantPinned checks how many kernels are pinned to each GPU.
func wantPinned(t *testing.T, l *Launcher, want map[string]int) {
	t.Helper()
	if got := pins(t, l); !maps.Equal(got, want) {
		t.Errorf("so many kernels are pinned to the GPUs: %v, not %v", got, want)
	}
}

// TestLend_Pinned: kernels that may be parked all start at once while others hold the GPUs, and spread over them. Those
// that are never parked get a GPU or wait for one. A kernel's pin ends with it, and a restart does not wait.
func TestLend_Pinned(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"), gpuJSON("GPU-b"))
	p.parks()
	l, other := p.launcher(), p.launcher()
	spec := fakeSpec("fine")
	spec.Metadata = []byte(`{"ekg": {"park": false}}`)
	p.mustStart(l, 1, "1", func(r *launcher.Request) { r.Job = true })
	p.mustStart(l, 2, "1", func(r *launcher.Request) { r.Spec = spec })
	var starts sync.WaitGroup
	for n := 3; n <= 8; n++ {
		by := l
		if n%2 == 0 {
			by = other
		}
		starts.Go(func() {
			if k, err := p.startGPU(by, n, "1"); err != nil || k.Reason != "" {
				t.Errorf("a start does not begin at once: %+v, %v", k, err)
			}
		})
	}
	starts.Wait()
	for n := 3; n <= 8; n++ {
		wait(t, l, n, "running", isIdle)
	}
	wantHeld(t, l, map[string][]int{"GPU-a": {1}, "GPU-b": {2}})
	wantPinned(t, l, map[string]int{"GPU-a": 3, "GPU-b": 3})
	// A job gives its GPU to a kernel that runs and waits for it, and to none that does not wait.
	l.mu.Lock()
	k := l.kernels.byID[id(3)]
	since := api.Timestamp(l.timing.now().Add(-time.Hour))
	k.supervisor.Status.Parked = api.Parked{State: api.GPUWaking, Since: since}
	l.mu.Unlock()
	holder := map[string]string{"GPU-a": id(1), "GPU-b": id(2)}[p.env(3, lend.VisibleVariable)]
	if waits, err := l.GPUWaits(t.Context()); err != nil || len(waits) != 1 || waits[0].Kernel != id(3) ||
		waits[0].For.Round(time.Minute) != time.Hour || !slices.Equal(waits[0].Holders, []string{holder}) {
		t.Errorf("%+v wait, %v", waits, err)
	}
	if k := p.mustStart(l, 9, "2"); !strings.HasPrefix(k.Reason, "it waits for 2 GPUs") {
		t.Errorf("a kernel with two GPUs is %+v", k)
	}
	if k := p.mustStart(l, 10, "1", func(r *launcher.Request) { r.Job = true }); !strings.HasPrefix(k.Reason, "it waits") {
		t.Errorf("a job's kernel is %+v", k)
	}
	for _, n := range []int{1, 2} { // a kernel that is never parked takes GPUs that others are pinned to
		if err := l.Stop(t.Context(), id(n), "enough"); err != nil {
			t.Fatal(err)
		}
	}
	wait(t, l, 9, "running", isIdle)
	wantHeld(t, l, map[string][]int{"GPU-a": {9}, "GPU-b": {9}})

	before := p.env(3, lend.VisibleVariable)
	kill(t, processesOf(t, p, 3).Kernel)
	wait(t, l, 3, "dead", isDead)
	eventually(t, "its pin has ended", func() bool { return pins(t, l)[before] == 2 })
	done, err := l.Restarting(t.Context(), id(3))
	if err != nil {
		t.Fatal(err)
	}
	done()
	p.mustStart(l, 11, "1") // now more kernels are pinned there than to the other GPU
	p.mustStart(l, 12, "1")
	if k, err := l.Revive(t.Context(), id(3)); err != nil || k.Reason != "" {
		t.Errorf("a restart: %+v, %v", k, err)
	}
	wait(t, l, 3, "running", isIdle)
	if after := p.env(3, lend.VisibleVariable); after != before || p.env(11, lend.VisibleVariable) != before {
		t.Errorf("a restart leaves %s for %s", before, after)
	}
}

// TestWarm_GivesWayToPinned: a warm kernel ends for a kernel that is pinned to its GPU, though that has not taken it
// yet. None takes such a GPU.
func TestWarm_GivesWayToPinned(t *testing.T) {
	var count atomic.Int64
	count.Store(1)
	p, spec := gpuWarmPlace(t, &count, gpuJSON("GPU-a"), gpuJSON("GPU-b"))
	p.parks()
	l := p.launcher()
	p.warm(1, l)
	wantPinned(t, l, map[string]int{"GPU-a": 1, "GPU-b": 0})
	p.mustStart(l, 1, "1")
	if p.warm(1, l); p.env(1, lend.VisibleVariable) != "GPU-b" {
		t.Errorf("a start gets the GPU %s", p.env(1, lend.VisibleVariable))
	}
	p.mustStart(l, 2, "1") // one kernel on each, and this GPU is free
	if p.warm(1, l); p.env(2, lend.VisibleVariable) != "GPU-b" {
		t.Errorf("the next start gets the GPU %s", p.env(2, lend.VisibleVariable))
	}
	if k := p.mustStart(l, 3, "1"); k.Reason != "" || p.env(3, lend.VisibleVariable) != "GPU-a" {
		t.Errorf("a start beside a warm kernel: %+v", k)
	}
	eventually(t, "the warm kernel has ended, and none follows", func() bool {
		c := l.Measure().Warm[spec.Name]
		return c.Waiting == 0 && c.Reason == launcher.NoGPUIsFree && len(held(t, l)) == 0
	})
	wantPinned(t, l, map[string]int{"GPU-a": 1, "GPU-b": 2})
	if n := l.Measure().WarmGaveWay[spec.Name]; n != 1 {
		t.Errorf("%d warm kernels gave way", n)
	}
	count.Store(0)
	p.warm(0, l)
}
