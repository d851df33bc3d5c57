package jobs

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// A job with retries left gives its GPU to a kernel that waits for one, when it has run for a minute: that with the
// lowest priority, then the newest. It begins again behind that kernel. Two gateways end one job for one kernel.
func TestManager_GiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(9)
		m, end := gatewayOf(records, kernels, Policy{}, time.Hour)
		defer end()
		_, endOther := gatewayOf(records, kernels, Policy{}, time.Hour)
		defer endOther()
		job := func(name string, priority, retries int) string {
			s := submission(name, name)
			s.Priority, s.Retries = priority, retries
			id := submit(t, m, s)
			time.Sleep(10 * time.Second)
			return id
		}
		older, newer := job("older", 1, 1), job("newer", 1, 1)
		urgent, final := job("urgent", 2, 1), job("final", 0, 0)
		time.Sleep(time.Minute)
		late := job("late", 0, 1)
		var holders []string
		for _, id := range []string{older, newer, urgent, final, late} {
			holders = append(holders, wantState(t, m, id, Running, "").Kernel)
		}
		gives := func(step string, want ...string) {
			t.Helper()
			time.Sleep(15 * time.Second)
			var kernelsOf []string
			for _, id := range want {
				kernelsOf = append(kernelsOf, holders[slices.Index([]string{older, newer, urgent, final, late}, id)])
			}
			if got := kernels.gaveWay(); !slices.Equal(got, kernelsOf) {
				t.Errorf("%s: %v gave way, want %v", step, got, kernelsOf)
			}
		}
		wait := func(kernel string, d time.Duration) launcher.GPUWait {
			return launcher.GPUWait{Kernel: kernel, For: d, Holders: holders}
		}
		kernels.setWaits(wait(holders[0], time.Hour))
		gives("a job's kernel waits")
		kernels.setWaits(wait("notebook", 30*time.Second))
		gives("it has waited", newer)
		wantState(t, m, newer, Queued, reasonGaveWay)
		time.Sleep(8 * time.Minute)
		gives("it still waits", newer)
		wantState(t, m, newer, Queued, reasonGaveWay)
		kernels.setWaits()
		time.Sleep(30 * time.Second)
		if j := wantState(t, m, newer, Running, ""); j.Attempt != 2 {
			t.Errorf("it is in attempt %d", j.Attempt)
		}
		holders[1] = "" // its next kernel
		kernels.setWaits(wait("second", time.Hour), wait("third", time.Minute), wait("fourth", time.Second*31))
		time.Sleep(15 * time.Second)
		for _, id := range []string{older, late, urgent} {
			wantState(t, m, id, Queued, reasonGaveWay)
		}
		wantState(t, m, final, Running, "")
		if n := len(kernels.gaveWay()); n != 4 {
			t.Errorf("%d jobs gave way", n)
		}
		time.Sleep(giveWayHold + time.Minute)
		for _, id := range []string{older, late, urgent} { // the kernels start for some other reason not
			wantState(t, m, id, Running, "")
		}
		kernels.setWaits(wait("fifth", time.Hour))
		time.Sleep(time.Minute)
		if n := len(kernels.gaveWay()); n != 4 {
			t.Errorf("%d jobs gave way: jobs without retries did", n)
		}
	})
}

// A job that gives way, and is stopped meanwhile, is stopped.
func TestManager_GiveWayStopped(t *testing.T) {
	for _, after := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			kernels := newCluster(9)
			m, end := gatewayOf(&launchertest.MemoryRecords{}, kernels, Policy{}, time.Hour)
			defer end()
			s := submission("ann", "job")
			s.Retries = 5
			id := submit(t, m, s)
			time.Sleep(2 * time.Minute)
			kernel := wantState(t, m, id, Running, "").Kernel
			kernels.setWaits(launcher.GPUWait{Kernel: "notebook", For: time.Hour, Holders: []string{kernel}})
			time.Sleep(time.Minute)
			wantState(t, m, id, Queued, reasonGaveWay)
			time.Sleep(after)
			if _, err := m.Stop(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			wantState(t, m, id, Stopped, "")
			if n := kernels.living(); n != 0 {
				t.Errorf("%d kernels live", n)
			}
		})
	}
}

// A job gives way once to a kernel that does not start then: its GPU is of no use to that kernel. It gives way to
// another one.
func TestManager_GiveWayInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernels := newCluster(9)
		m, end := gatewayOf(&launchertest.MemoryRecords{}, kernels, Policy{}, time.Hour)
		defer end()
		s := submission("ann", "job")
		s.Retries = 5
		id := submit(t, m, s)
		time.Sleep(2 * time.Minute)
		wait := func(kernel string) launcher.GPUWait {
			return launcher.GPUWait{Kernel: kernel, For: time.Hour, Holders: []string{wantState(t, m, id, Running, "").Kernel}}
		}
		kernels.setWaits(wait("elsewhere"))
		time.Sleep(time.Minute)
		wantState(t, m, id, Queued, reasonGaveWay)
		time.Sleep(giveWayHold)
		kernels.setWaits(wait("elsewhere"))
		time.Sleep(5 * time.Minute)
		if j := wantState(t, m, id, Running, ""); j.Attempt != 2 {
			t.Errorf("it is in attempt %d", j.Attempt)
		}
		kernels.setWaits(wait("elsewhere"), wait("here"))
		time.Sleep(time.Minute)
		wantState(t, m, id, Queued, reasonGaveWay)
		kernels.setWaits(launcher.GPUWait{Kernel: "elsewhere", For: time.Hour})
		time.Sleep(time.Minute)
		if j := wantState(t, m, id, Running, ""); j.Attempt != 3 {
			t.Errorf("it is in attempt %d", j.Attempt)
		}
	})
}

// The reason of an end is known at once, also if it is older than the run: the run may have a result already.
func TestHold_UntilStopped(t *testing.T) {
	h := &hold{}
	h.stopping, h.end = context.WithCancelCause(t.Context())
	h.end(errGaveWay)
	ctx, release := h.untilStopped(t.Context())
	defer release()
	if err := context.Cause(ctx); !errors.Is(err, errGaveWay) {
		t.Errorf("%v", err)
	}
}
