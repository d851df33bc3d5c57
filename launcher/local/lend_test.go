package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/lend"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestLend_Job: the kernels of jobs wait behind all others, whoever came first. A GPU for which only they wait goes to
// any other kernel.
func TestLend_Job(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"))
	l := p.launcher()
	ofJob := func(r *launcher.Request) { r.Job = true }
	p.mustStart(l, 1, "1")
	p.mustStart(l, 2, "1", ofJob)
	p.mustStart(l, 3, "1", ofJob)
	p.mustStart(l, 4, "1")
	for _, next := range []int{4, 2, 3} {
		running := held(t, l)["GPU-a"]
		if len(running) != 1 {
			t.Fatalf("the GPU is held by %v", running)
		}
		if err := l.Stop(t.Context(), id(running[0]), "enough"); err != nil {
			t.Fatal(err)
		}
		wait(t, l, next, "running", isIdle)
		wantHeld(t, l, map[string][]int{"GPU-a": {next}})
	}
}

// TestLend: a kernel gets a GPU of its own or waits for one. It starts when another has ended.
func TestLend(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"), gpuJSON("GPU-b"))
	l := p.launcher()
	first := p.mustStart(l, 1, "1")
	p.mustStart(l, 2, "1")
	p.start(l, 3, "fine") // it asks for none
	if first.GPUs != gpu.One || p.env(1, lend.VisibleVariable) != "GPU-a" || p.env(2, lend.VisibleVariable) != "GPU-b" {
		t.Errorf("%v GPUs, %q and %q", first.GPUs, p.env(1, lend.VisibleVariable), p.env(2, lend.VisibleVariable))
	}
	wantHeld(t, l, map[string][]int{"GPU-a": {1}, "GPU-b": {2}})
	for n := 4; n <= 5; n++ {
		if k := p.mustStart(l, n, "1"); k.State != api.Starting || !strings.HasPrefix(k.Reason, waitsForOne) || k.Stale {
			t.Errorf("a kernel without a GPU is %+v", k)
		}
	}
	if _, err := l.Dial(t.Context(), id(4)); !errors.Is(err, launcher.ErrNoSupervisor) {
		t.Errorf("a connection to it: %v", err)
	}
	all, err := l.Kernels(t.Context())
	if err != nil || len(all) != 5 || !strings.HasPrefix(all[3].Reason, waitsForOne) || all[3].State != api.Starting {
		t.Errorf("the list is %+v, %v", all, err)
	}
	other := p.launcher()
	if k, err := other.Kernel(t.Context(), id(4)); err != nil || k.State != api.Starting ||
		!strings.HasPrefix(k.Reason, "it waits for a GPU") {
		t.Errorf("another gateway shows %+v, %v", k, err)
	}
	if err := l.Stop(t.Context(), id(2), "enough"); err != nil {
		t.Fatal(err)
	}
	wait(t, l, 4, "running", isIdle) // the first one that waited
	wait(t, other, 4, "running for another gateway", isIdle)
	wantHeld(t, l, map[string][]int{"GPU-a": {1}, "GPU-b": {4}})
	if err := l.Stop(t.Context(), id(5), "not needed"); err != nil {
		t.Errorf("stop of a kernel that waits: %v", err)
	}
	if _, err := l.Kernel(t.Context(), id(5)); !errors.Is(err, launcher.ErrNotFound) {
		t.Errorf("after that it is %v", err)
	}
	// Without any gateway the GPU is given back as well.
	kill(t, processesOf(t, p, 1).Kernel)
	poll.Until(t, "the dead kernel has no GPU", func() bool { return len(held(t, other)["GPU-a"]) == 0 })
}

// TestLend_Order: another gateway works on the first kernel that waits, and this one has never looked for a GPU for it.
// It lends the GPU to no later kernel. A kernel that stays locked keeps the GPU for lend.BusyLimit only.
func TestLend_Order(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"))
	l := p.open()
	p.mustStart(l, 1, "1")
	p.mustStart(l, 2, "1")
	p.mustStart(l, 3, "1")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var later atomic.Int64
	openGate := p.withGate(&later)
	next := p.launcher()
	for n := 2; n <= 3; n++ {
		wait(t, next, n, "waiting", func(k launcher.Kernel) bool { return strings.HasPrefix(k.Reason, "it waits for a GPU") })
	}
	folder, err := waitFolder(t.Context(), filepath.Join(p.state, "kernels", id(2))) // this gateway may look at it
	if err != nil {
		t.Fatal(err)
	}
	defer flock.Unlock(folder)
	kill(t, processesOf(t, p, 1).Kernel)
	wait(t, next, 1, "dead", isDead)
	openGate()
	poll.Until(t, "the dead kernel has no GPU", func() bool { return !slices.Contains(held(t, next)["GPU-a"], 1) })
	next.lender.Round()
	wantHeld(t, next, map[string][]int{})
	if k := p.mustStart(next, 4, "1"); !strings.HasPrefix(k.Reason, "it waits for a GPU: 0 of 1 are held") {
		t.Errorf("a start that comes then is %+v", k)
	}
	wantHeld(t, next, map[string][]int{})
	later.Store(int64(lend.BusyLimit))
	wait(t, next, 3, "running", isIdle)
	wantHeld(t, next, map[string][]int{"GPU-a": {3}})
	flock.Unlock(folder)
	for _, n := range []int{4, 3} { // the fourth could get the GPU in a round that found the second one locked
		if err := next.Stop(t.Context(), id(n), "enough"); err != nil {
			t.Fatal(err)
		}
	}
	wait(t, next, 2, "running", isIdle)
	wantHeld(t, next, map[string][]int{"GPU-a": {2}})
}

// TestLend_OtherGateway: a kernel waits that another gateway has started or restarted, and this one has not looked at
// it, or cannot look at it now. This one lends the GPU neither to a kernel that comes later nor to a job.
func TestLend_OtherGateway(t *testing.T) {
	for name, tt := range map[string]struct{ restarted, job, early, locked bool }{
		"start":                  {},
		"start, looked at early": {early: true, locked: true},
		"start, locked":          {locked: true},
		"restart":                {restarted: true},
		"restart, locked":        {restarted: true, locked: true},
		"job waits":              {job: true},
		"job waits, locked":      {job: true, locked: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.withGPUs(gpuJSON("GPU-a"))
			with := p.change
			p.change = func(o *Options, tm *timing) {
				with(o, tm)
				tm.maintenance = time.Hour // it reads the folder, too
				if tt.early {
					tm.firstRedial = time.Hour
				}
			}
			other := p.launcher()
			if tt.restarted {
				p.mustStart(other, 2, "1")
				kill(t, processesOf(t, p, 2).Kernel)
				wait(t, other, 2, "dead", isDead)
			}
			p.mustStart(other, 1, "1")
			if tt.job {
				p.mustStart(other, 3, "1", func(r *launcher.Request) { r.Job = true })
			}
			openGate := p.withGate(new(atomic.Int64))
			l := p.launcher()
			if tt.restarted {
				if _, err := other.Restarting(t.Context(), id(2)); err != nil { // it ends the supervisor
					t.Fatal(err)
				}
				poll.Until(t, "the end is known", func() bool {
					l.mu.Lock()
					defer l.mu.Unlock()
					return l.kernels.byID[id(2)].end != nil
				})
				if _, err := other.Revive(t.Context(), id(2)); err != nil {
					t.Fatal(err)
				}
			} else {
				p.mustStart(other, 2, "1")
			}
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
			if tt.locked {
				folder, err := waitFolder(t.Context(), filepath.Join(p.state, "kernels", id(2)))
				if err != nil {
					t.Fatal(err)
				}
				defer flock.Unlock(folder)
			}
			if tt.early {
				file := filepath.Join(p.state, "kernels", id(2), lend.WaitFile)
				hidden := filepath.Join(t.TempDir(), lend.WaitFile)
				if err := os.Rename(file, hidden); err != nil {
					t.Fatal(err)
				}
				k, err := l.adopt(id(2))
				if err != nil {
					t.Fatal(err)
				}
				l.mu.Lock()
				again := k.lookLocked()
				l.mu.Unlock()
				if !again {
					t.Error("a kernel that another gateway works on is not looked at again")
				}
				if err := os.Rename(hidden, file); err != nil {
					t.Fatal(err)
				}
			}
			kill(t, processesOf(t, p, 1).Kernel)
			wait(t, l, 1, "dead", isDead)
			openGate()
			poll.Until(t, "the dead kernel has no GPU", func() bool { return !slices.Contains(held(t, l)["GPU-a"], 1) })
			if !tt.job {
				if k := p.mustStart(l, 3, "1"); !strings.HasPrefix(k.Reason, "it waits for a GPU") {
					t.Errorf("a start that comes then is %+v", k)
				}
			}
			l.lender.Round()
			if tt.locked {
				wantHeld(t, l, map[string][]int{})
				return
			}
			wait(t, l, 2, "running", isIdle)
			wantHeld(t, l, map[string][]int{"GPU-a": {2}})
		})
	}
}

// TestLend_Refused: a start that can never be satisfied is refused.
func TestLend_Refused(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"), gpuJSON("GPU-b"),
		`{"uuid":"GPU-c","model":"Tesla T4","healthy":false,"error":"ERROR_GPU_IS_LOST"}`)
	l := p.launcher()
	for name, tt := range map[string]struct {
		gpus, want string
		f          flavor.Flavor
	}{
		"too many":    {gpus: "3", want: "it asks for 3 GPUs, and this machine has 2 that is healthy, and 1 that is not"},
		"no number":   {gpus: "one", want: `KERNEL_GPUS: "one" is not a number from 0 to 64`},
		"negative":    {gpus: "-1", want: `KERNEL_GPUS: "-1" is not a number from 0 to 64`},
		"no instance": {f: flavor.Flavor{Name: "x", MIG: &flavor.MIG{Profile: "1g.10gb"}}, want: "and this machine has none"},
		"another model": {f: flavor.Flavor{Name: "x", GPU: &flavor.Devices{}, NodeSelector: map[string]string{
			flavor.ProductLabel: "H100"}}, want: "it asks for a GPU H100, and this machine has none"},
		"a claim": {f: flavor.Flavor{Name: "x", DRA: &flavor.DRA{Template: "y"}},
			want: `the flavor "x" is for kernels in a cluster: this machine has no dra`},
		"two shares": {f: flavor.Flavor{Name: "x", Replica: &flavor.Replica{Replicas: 4}}, gpus: "2",
			want: `the flavor "x" is one share or instance of a GPU; use 0 or 1`},
		"too much memory": {f: flavor.Flavor{Name: "x", GPUMem: &flavor.GPUMem{Units: 40}},
			want: "it asks for 40960 MiB of a GPU, and this machine has none"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := p.startGPU(l, 1, tt.gpus, func(r *launcher.Request) {
				if tt.f.Name != "" {
					r.Flavor = &tt.f
				}
			})
			var refused *launcher.RefusedError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, not %q", err, tt.want)
			}
		})
	}
	if k := p.mustStart(l, 1, "0"); k.GPUs != 0 || p.env(1, lend.VisibleVariable) != "" {
		t.Errorf("a kernel that wants none has %+v", k)
	}
}

// TestLend_NoDriver: without GPUs everything else works, and the log says once why there are none.
func TestLend_NoDriver(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	p.start(l, 1, "fine")
	if _, err := p.startGPU(l, 2, "1"); err == nil || !strings.Contains(err.Error(),
		"it asks for a GPU, and this machine has none: the program ekg-gpu is not beside ekg-supervisor") {
		t.Errorf("a start with a GPU: %v", err)
	}
	all, reason, err := l.lender.Held(t.Context())
	if err != nil || len(all) != 0 || reason == "" {
		t.Errorf("GPUs are %v, %q, %v", all, reason, err)
	}
	if n := strings.Count(p.log.String(), "no GPU is found for kernels"); n != 1 {
		t.Errorf("the log says %d times why", n)
	}
}

// TestLend_Shares: kernels with parts never share a GPU with one that has it for itself.
func TestLend_Shares(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"), gpuJSON("GPU-b"))
	l := p.launcher()
	halves := flavored(flavor.Flavor{Name: "half", Replica: &flavor.Replica{Replicas: 2}})
	half := p.mustStart(l, 1, "", halves)
	p.mustStart(l, 2, "", halves)
	wantHeld(t, l, map[string][]int{"GPU-a": {1}, "GPU-b": {2}}) // the one with the most left
	if half.GPUs != gpu.One/2 || p.env(1, lend.MemoryVariable) != "8192000000" ||
		p.env(1, lend.MPSVariable) != "0=7812M" || p.env(1, lend.JAXVariable) != "0.5" {
		t.Errorf("half a GPU is %v with %s bytes, %s, %s", half.GPUs, p.env(1, lend.MemoryVariable),
			p.env(1, lend.MPSVariable), p.env(1, lend.JAXVariable))
	}
	k := p.mustStart(l, 3, "", flavored(flavor.Flavor{Name: "t4", GPU: &flavor.Devices{}}))
	if !strings.HasPrefix(k.Reason, waitsForOne) || k.Flavor != "t4" {
		t.Errorf("a kernel that wants a GPU for itself is %+v", k)
	}
	if k := p.mustStart(l, 4, "", halves); !strings.Contains(k.Reason, "it waits for 0.5 of a GPU: 0 of 2 are held by "+
		"other kernels, and kernels that have waited for longer get 2") {
		t.Errorf("one that comes later is %+v", k)
	}
	if err := l.Stop(t.Context(), id(1), "enough"); err != nil {
		t.Fatal(err)
	}
	wait(t, l, 3, "running", isIdle)
	wait(t, l, 4, "running", isIdle)
	wantHeld(t, l, map[string][]int{"GPU-a": {3}, "GPU-b": {2, 4}})
	if k := p.mustStart(l, 5, "", flavored(flavor.Flavor{Name: "q", Replica: &flavor.Replica{Replicas: 4}})); !strings.
		HasPrefix(k.Reason, "it waits for 0.25 of a GPU: 2 of 2") || k.GPUs != gpu.One/4 {
		t.Errorf("a third one is %+v", k)
	}
}

// TestLend_MIG: a GPU in MIG mode is offered as its instances only.
func TestLend_MIG(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a", "MIG-1", "MIG-2"), gpuJSON("GPU-b"))
	l := p.launcher()
	slice := flavored(flavor.Flavor{Name: "slice", MIG: &flavor.MIG{Profile: "1g.10gb"}})
	p.mustStart(l, 1, "", slice)
	p.mustStart(l, 2, "1")
	p.mustStart(l, 3, "1")
	wantHeld(t, l, map[string][]int{"MIG-1": {1}, "GPU-b": {2}, "MIG-2": {3}})
	const waits = "it waits for an instance 1g.10gb: 2 of 2 are held by other kernels"
	if k := p.mustStart(l, 4, "", slice); k.Reason != waits {
		t.Errorf("one more is %+v", k)
	}
	if _, err := p.startGPU(l, 5, "2"); err == nil || !strings.Contains(err.Error(), "2 GPUs, and this machine has 1") {
		t.Errorf("two GPUs: %v", err)
	}
}

// TestLend_Restart: a dead kernel has given its GPU back. Its restart takes the same one again if that is free, and
// otherwise waits.
func TestLend_Restart(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"), gpuJSON("GPU-b"))
	l := p.launcher()
	p.mustStart(l, 1, "1")
	p.mustStart(l, 2, "1")
	die := func(n int) {
		kill(t, processesOf(t, p, n).Kernel)
		wait(t, l, n, "dead", isDead)
	}
	restart := func(n int) launcher.Kernel {
		t.Helper()
		done, err := l.Restarting(t.Context(), id(n))
		if err != nil {
			t.Fatal(err)
		}
		done()
		if _, err := l.Dial(t.Context(), id(n)); !errors.Is(err, launcher.ErrNotFound) {
			t.Fatalf("the supervisor of a dead kernel that had a GPU still serves: %v", err)
		}
		k, err := l.Revive(t.Context(), id(n))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	die(1)
	die(2)
	wantHeld(t, l, map[string][]int{})
	restart(2)
	wait(t, l, 2, "running", isIdle)
	wantHeld(t, l, map[string][]int{"GPU-b": {2}})
	p.mustStart(l, 3, "1")
	if k := restart(1); k.State != api.Starting || !strings.HasPrefix(k.Reason, waitsForOne) {
		t.Errorf("a restart without a free GPU: %+v", k)
	}
	if exists(filepath.Join(p.state, "kernels", id(1), endFile)) {
		t.Error("the kernel that waits has an end")
	}
	die(3)
	wait(t, l, 1, "running", isIdle)
	wantHeld(t, l, map[string][]int{"GPU-a": {1}, "GPU-b": {2}})
}

// TestLend_Gateways: a kernel that waits is started by another gateway if its own has ended, also by one that is opened
// later.
func TestLend_Gateways(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"))
	l := p.open()
	p.mustStart(l, 1, "1")
	p.mustStart(l, 2, "1")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	next := p.launcher()
	k, err := next.Kernel(t.Context(), id(2))
	if err != nil || k.State != api.Starting || !strings.HasPrefix(k.Reason, "it waits for a GPU") {
		t.Fatalf("the next gateway shows %+v, %v", k, err)
	}
	kill(t, processesOf(t, p, 1).Kernel)
	wait(t, next, 2, "running", isIdle)
}

// TestLend_Real: with real supervisors the kernel's own process holds the GPU, while its supervisor is replaced, and
// while its parent is killed.
func TestLend_Real(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"))
	l := p.launcher()
	real := func(r *launcher.Request) { r.Spec = realSpec() }
	p.mustStart(l, 1, "1", real)
	wait(t, l, 1, "running", isIdle)
	before := processesOf(t, p, 1)
	kill(t, before.Supervisor)
	poll.Until(t, "there is another supervisor", func() bool {
		return processesOf(t, p, 1).Supervisor != before.Supervisor
	})
	wait(t, l, 1, "running", isIdle)
	wantHeld(t, l, map[string][]int{"GPU-a": {1}})
	if processesOf(t, p, 1).Kernel != before.Kernel {
		t.Error("the kernel did not survive")
	}
	locks := 0
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", before.Kernel))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", before.Kernel, fd.Name())); strings.HasPrefix(to,
			filepath.Join(p.state, gpusDir)) {
			locks++
		}
	}
	if locks != 1 {
		t.Errorf("the kernel has inherited %d locks", locks)
	}
	p.mustStart(l, 2, "1", real)
	kill(t, processesOf(t, p, 1).Parent)
	wait(t, l, 1, "dead", isDead)
	wait(t, l, 2, "running", isIdle)
	wantHeld(t, l, map[string][]int{"GPU-a": {2}})
	if err := l.Stop(t.Context(), id(2), "enough"); err != nil {
		t.Fatal(err)
	}
	wantHeld(t, l, map[string][]int{})
}

// TestLend_LeftBehind: a start fails, and a process is left that the launcher does not find. It has inherited the lock
// of the GPU, so no other kernel gets the GPU before that process has ended.
func TestLend_LeftBehind(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"))
	l := p.launcher()
	file := filepath.Join(t.TempDir(), "pid")
	_, err := p.startGPU(l, 1, "1", func(r *launcher.Request) {
		r.Spec, r.Env[orphanVariable] = fakeSpec("orphan"), file
	})
	var pid int
	if readErr := files.ReadJSON(file, &pid); err == nil || readErr != nil {
		t.Fatalf("the start failed with %v, and %v", err, readErr)
	}
	if k := p.mustStart(l, 2, "1"); k.State != api.Starting || !strings.HasPrefix(k.Reason, "it waits for a GPU") {
		t.Errorf("another kernel is %+v", k)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait(t, l, 2, "running", isIdle)
	wantHeld(t, l, map[string][]int{"GPU-a": {2}})
}
