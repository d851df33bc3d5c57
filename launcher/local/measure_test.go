package local

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// recorder is an Observer that records the reported events.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (o *recorder) KernelUp(spec string, phases []launcher.Phase) {
	text := "up " + spec
	for _, p := range phases {
		text += " " + p.Name
		if p.Took < 0 || p.Took > time.Minute {
			text += fmt.Sprint(p.Took)
		}
	}
	o.add(text)
}

func (o *recorder) KernelFailed(spec string, why launcher.Failure) {
	o.add("failed " + spec + " " + string(why))
}

func (o *recorder) GPUWaited(flavor string, took time.Duration) {
	text := "waited " + flavor
	if took < 0 || took > time.Minute {
		text += took.String()
	}
	o.add(text)
}

func (o *recorder) ClusterRequest(string, string, int, time.Duration) { o.add("a cluster was asked") }
func (o *recorder) ClusterWait(string, time.Duration)                 { o.add("a cluster was asked") }

func (o *recorder) add(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, text)
}

func (o *recorder) all() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.events, "; ")
}

// Each start is reported once: up, failed, or neither if the kernel was stopped or Start returned an error. Counts stay
// when a kernel is gone.
func TestMeasure(t *testing.T) {
	p := newPlace(t)
	o := new(recorder)
	p.change = func(opts *Options, _ *timing) { opts.Observer = o }
	l := p.launcher()
	p.start(l, 1, "fine")
	wait(t, l, 1, "idle", isIdle)
	if got := o.all(); got != "up fake admission started ready" {
		t.Errorf("a kernel that comes up: reported %q", got)
	}
	if m := l.Measure(); len(m.Kernels) != 1 || m.Kernels[0].State != api.Idle || m.LogLost != 3 || len(m.Traffic) != 8 {
		t.Errorf("measured %+v", m)
	}
	p.start(l, 2, "never")
	if got := o.all(); strings.Contains(got, ";") {
		t.Errorf("before the second is up: %q", got)
	}
	kill(t, processesOf(t, p, 2).Kernel)
	wait(t, l, 2, "dead", isDead)
	if got := o.all(); got != "up fake admission started ready; failed fake exited" {
		t.Errorf("a kernel that dies: reported %q", got)
	}
	p.start(l, 3, "never")
	for n := 1; n <= 3; n++ {
		if err := l.Stop(t.Context(), id(n), "it was shut down on request"); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := l.Start(t.Context(), launcher.Request{ID: id(4), Spec: fakeSpec("program")}); err == nil {
		t.Error("a program that does not exist was started")
	}
	if got := o.all(); got != "up fake admission started ready; failed fake exited" {
		t.Errorf("a kernel that is stopped, and one that cannot be started: reported %q", got)
	}
	if m := l.Measure(); len(m.Kernels) != 0 || m.LogLost != 9 {
		t.Errorf("in the end measured %+v", m)
	}
	// A gateway does not report what supervisors counted before it was opened.
	p.start(l, 5, "fine")
	wait(t, l, 5, "idle", isIdle)
	next := p.launcher()
	wait(t, next, 5, "idle", isIdle)
	if m := next.Measure(); len(m.Kernels) != 1 || m.LogLost != 0 {
		t.Errorf("the next gateway measured %+v", m)
	}
}

// TestMeasure_GPUs: the time for which kernels hold GPUs, and in which those compute, is counted by flavor.
func TestMeasure_GPUs(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"), gpuJSON("GPU-b"))
	withGPUs := p.change
	var later atomic.Int64
	p.change = func(o *Options, tm *timing) {
		withGPUs(o, tm)
		tm.now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	}
	l := p.launcher()
	p.mustStart(l, 1, "", flavored(flavor.Flavor{Name: "half", Replica: &flavor.Replica{Replicas: 2}}))
	wait(t, l, 1, "idle", isIdle)
	l.mu.Lock()
	k := l.kernels.byID[id(1)]
	l.mu.Unlock()
	status := func(change func(*api.Status)) {
		l.mu.Lock()
		defer l.mu.Unlock()
		change(&k.supervisor.Status)
	}
	labels := launcher.GPULabels{SpecName: "fake", Flavor: "half"}
	near := func(what string, got, want float64) {
		t.Helper()
		if got < want-2 || got > want+2 {
			t.Errorf("%s: %g, want %g", what, got, want)
		}
	}
	status(func(st *api.Status) { st.Started = time.Now() })
	l.Measure()
	later.Store(int64(100 * time.Second))
	status(func(st *api.Status) { st.GPUUse.Busy = 60 * time.Second })
	m := l.Measure()
	if m.GPUs[labels] != 0.5 {
		t.Errorf("held: %v", m.GPUs)
	}
	near("seconds", m.GPUSeconds[labels], 50)
	near("busy", m.GPUBusy[labels], 30)
	later.Store(int64(110 * time.Second))
	status(func(st *api.Status) { st.Parked.State, st.GPUUse.Parked = api.GPUParked, 0 })
	near("seconds, parked and not told yet", l.Measure().GPUSeconds[labels], 55)
	later.Store(int64(130 * time.Second))
	status(func(st *api.Status) { st.GPUUse.Parked = 30 * time.Second })
	m = l.Measure()
	if held, ok := m.GPUs[labels]; ok && held != 0 {
		t.Errorf("held while it is parked: %v", m.GPUs)
	}
	near("seconds, parked", m.GPUSeconds[labels], 55)
	later.Store(int64(150 * time.Second)) // 10 of these 20 s are subtracted for what the last call could not
	status(func(st *api.Status) { st.Parked.State = api.GPUHeld })
	near("seconds, awake again", l.Measure().GPUSeconds[labels], 60)
	later.Store(int64(170 * time.Second))
	l.markDead(k, &api.Ending{KernelID: k.id, Reason: "the test ends it"})
	later.Store(int64(time.Hour))
	m = l.Measure()
	if len(m.GPUs) != 0 {
		t.Errorf("still held: %v", m.GPUs)
	}
	near("seconds in the end", m.GPUSeconds[labels], 70)
	near("busy in the end", m.GPUBusy[labels], 30)
}
