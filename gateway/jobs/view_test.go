package jobs

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// counts is an Observer that lists what it saw.
type counts struct {
	mu  sync.Mutex
	all []string
}

func (c *counts) add(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, fmt.Sprintf(format, args...))
}

func (c *counts) JobBegan(flavor string, waited time.Duration) { c.add("began %q %v", flavor, waited) }
func (c *counts) JobEnded(state string, ran time.Duration)     { c.add("%s %v", state, ran) }
func (c *counts) JobDue(made bool)                             { c.add("due %v", made) }
func (c *counts) JobGaveWay()                                  { c.add("gave way") }

// seen returns what was counted, in order.
func (c *counts) seen() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(slices.Values(c.all))
}

func wantSeen(t *testing.T, c *counts, want ...string) {
	t.Helper()
	if got := c.seen(); !slices.Equal(got, want) {
		t.Errorf("counted were %q, want %q", got, want)
	}
}

func wantStates(t *testing.T, m *Manager, want map[State]int) {
	t.Helper()
	if got, ok := m.States(); !ok || !maps.Equal(got, want) {
		t.Errorf("the states are %v, %v; want %v", got, ok, want)
	}
}

// twoGateways runs two managers with one observer until end is called. Their jobs run for a minute.
func twoGateways(
	keeper launcher.RecordKeeper, kernels Kernels, policy Policy,
) (a, b *Manager, both *counts, end func()) {
	both = &counts{}
	a, b = New(keeper, kernels, policy, slog.New(slog.DiscardHandler)), New(keeper, kernels, policy,
		slog.New(slog.DiscardHandler))
	a.Observe(both)
	b.Observe(both)
	endA, endB := start(a, time.Minute), start(b, time.Minute)
	return a, b, both, func() {
		endA()
		endB()
	}
}

// Two gateways see the same jobs without reading them for each question, and count each step of a job once.
func TestManager_View(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(1)
		a, b, both, end := twoGateways(records, kernels, Policy{})
		defer end()
		first := submit(t, a, submission("ann", "first"))
		time.Sleep(time.Millisecond)
		s := submission("ann", "second")
		s.Flavor = "t4"
		second := submit(t, b, s)
		time.Sleep(10 * time.Second)
		synctest.Wait() // the second is tried again at this instant
		kernel := wantState(t, a, first, Running, "").Kernel
		for _, m := range []*Manager{a, b} {
			wantStates(t, m, map[State]int{Queued: 1, Starting: 0, Running: 1})
			if j, there := m.KernelJob(kernel); !there || j.ID != first || j.Name != "first" || j.Owner != "ann" ||
				j.Cell != 1 || j.Cells != 1 {
				t.Errorf("the kernel's job is %+v, %v", j, there)
			}
			if j, there := m.KernelJob("other"); there {
				t.Errorf("another kernel's job is %+v", j)
			}
		}
		time.Sleep(time.Minute)
		wantState(t, a, second, Running, "")
		third := submit(t, a, submission("ann", "third"))
		time.Sleep(time.Second)
		wantState(t, a, third, Queued, "enough kernels")
		for _, id := range []string{third, second} {
			if _, err := b.Stop(t.Context(), id); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(30 * time.Second)
		for _, m := range []*Manager{a, b} {
			wantStates(t, m, map[State]int{Queued: 0, Starting: 0, Running: 0})
			if j, there := m.KernelJob(kernel); there {
				t.Errorf("after its end, the kernel's job is %+v", j)
			}
		}
		if j := wantState(t, a, first, Succeeded, ""); j.GPUSeconds != 7 {
			t.Errorf("the job's GPU seconds are %v", j.GPUSeconds)
		}
		got := both.seen()
		if len(got) != 5 {
			t.Fatalf("counted were %q", got)
		}
		if got[0] != `began "" 0s` || got[4] != "succeeded 1m0s" || got[2] != "stopped 0s" {
			t.Errorf("counted were %q", got)
		}
	})
}

// A gateway that has not read the jobs for a minute does not say how many there are.
func TestManager_ViewOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, end := gatewayOf(&launchertest.MemoryRecords{}, newCluster(1), Policy{}, time.Minute)
		time.Sleep(time.Second)
		wantStates(t, m, map[State]int{Queued: 0, Starting: 0, Running: 0})
		end()
		time.Sleep(2 * time.Minute)
		if got, ok := m.States(); ok {
			t.Errorf("the states are %v", got)
		}
		m = New(&launchertest.MemoryRecords{}, newCluster(1), Policy{}, slog.New(slog.DiscardHandler))
		if got, ok := m.States(); ok {
			t.Errorf("before the first look, the states are %v", got)
		}
	})
}

// Times of schedules are counted once, however many gateways look at them.
func TestManager_ViewDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(0)
		a, b, both, end := twoGateways(records, kernels, Policy{PerUser: 1})
		defer end()
		every := "0 * * * *"
		d, _, err := a.Define(t.Context(), submission("ann", "report"), Change{Schedule: &every})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3*time.Hour + time.Minute)
		wantSeen(t, both, "due false", "due false", "due true")
		if d, err = b.Definition(t.Context(), d.ID); err != nil {
			t.Fatal(err)
		}
		if noted, err := b.fired(t.Context(), d.ID, d.Due, "", "late"); noted || err != nil {
			t.Errorf("a time is noted twice: %v, %v", noted, err)
		}
	})
}

// A client of one gateway learns of what another one changes, and its wait leaves nothing.
func TestManager_Await(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _, end := twoGateways(&launchertest.MemoryRecords{}, newCluster(9), Policy{})
		defer end()
		id := submit(t, a, submission("ann", "job"))
		for _, m := range []*Manager{a, b} {
			began := time.Now()
			j, err := m.Await(t.Context(), id, func(j *Job) bool { return j.Cell == 0 })
			if took := time.Since(began); err != nil || j.State != Running || took > realTiming.scan {
				t.Errorf("after %v the job is %+v, %v", took, j, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if j, err := b.Await(ctx, id, func(*Job) bool { return true }); err != nil || j.State != Running {
			t.Errorf("after a second the job is %+v, %v", j, err)
		}
		began := time.Now()
		for _, m := range []*Manager{b, a} {
			if j, err := m.Await(t.Context(), id, func(*Job) bool { return true }); err != nil || j.State != Succeeded {
				t.Errorf("at its end the job is %+v, %v", j, err)
			}
		}
		if took := time.Since(began); took > time.Minute+realTiming.scan {
			t.Errorf("the end was known after %v", took)
		}
		for _, m := range []*Manager{a, b} {
			if n := len(m.view.awaited); n != 0 {
				t.Errorf("%d channels are left", n)
			}
		}
	})
}

// A job that ends before a gateway has seen it ends the wait for its change.
func TestView_EndedUnseen(t *testing.T) {
	var v view
	changed := v.changes("job")
	v.replace(nil, func(string) (Brief, bool) { return Brief{}, false })
	select {
	case <-changed:
	default:
		t.Error("the wait goes on")
	}
}

// A job is found in its kernel after each way in which a gateway learns of it, and no longer after its end.
func TestView_KernelJob(t *testing.T) {
	m := new(Manager)
	want := func(after string, there bool) {
		t.Helper()
		if job, found := m.KernelJob("k"); found != there || found && job.ID != "j" {
			t.Errorf("after %s: %+v, %v", after, job, found)
		}
	}
	own := func(string) (Brief, bool) { return Brief{}, false }
	want("nothing", false)
	m.view.note(Brief{ID: "j", State: Running, Kernel: "k"})
	want("a job was written", true)
	m.view.note(Brief{ID: "j", State: Running})
	want("it left its kernel", false)
	m.view.replace([]stored{{entry: entry{Job: Job{ID: "j", State: Running, Kernel: "k"}}}}, own)
	want("a look that found it in one", true)
	m.view.replace(nil, own)
	want("a look that found no job", false)
	m.view.note(Brief{ID: "j", State: Running, Kernel: "k"})
	want("it was written again", true)
	m.view.note(Brief{ID: "j", State: Succeeded, Kernel: "k"})
	want("its end", false)
}
