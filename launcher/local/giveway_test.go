package local

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestRoom: as few warm kernels as possible are ended, the newest first, and none for nothing.
func TestRoom(t *testing.T) {
	// Each GPU has the holders of a text: letters for kernels with the GPU for themselves, or digits for quarters.
	machine := func(gpus ...string) (all []gpu.Held) {
		for i, holders := range gpus {
			h := gpu.Held{UUID: fmt.Sprintf("GPU-%d", i), Model: "T4", MemoryTotal: 16 << 30, Healthy: true}
			for _, one := range holders {
				share := gpu.One
				if one >= '0' && one <= '9' {
					share = gpu.One / 4
				}
				h.Holders = append(h.Holders, gpu.Holder{Kernel: string(one), Share: share})
			}
			all = append(all, h)
		}
		return all
	}
	one, two, half := devices.Want{}, devices.Want{Count: 2}, devices.Want{Share: gpu.One / 2}
	for name, c := range map[string]struct {
		want         devices.Want
		gpus         []string
		warm, ending string // oldest first
		ends         []string
	}{
		"there is room":                   {one, []string{"w", ""}, "w", "", nil},
		"the newest one":                  {one, []string{"v", "w"}, "vw", "", []string{"w"}},
		"only warm kernels":               {one, []string{"u", "w"}, "w", "", []string{"w"}},
		"others hold it":                  {one, []string{"u"}, "", "", nil},
		"not all together":                {two, []string{"u", "w"}, "w", "", nil},
		"both":                            {two, []string{"v", "w"}, "vw", "", []string{"w", "v"}},
		"one of them is being ended":      {two, []string{"v", "w"}, "vw", "w", []string{"v"}},
		"it is being ended":               {one, []string{"v", "w"}, "vw", "w", nil},
		"quarters of one GPU":             {half, []string{"1234", "u"}, "1234", "", []string{"4", "3"}},
		"a quarter beside a user's":       {half, []string{"812", "u"}, "12", "", []string{"2"}},
		"a newer one on a GPU of another": {one, []string{"82", "1"}, "12", "", []string{"1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var warm []warmHolder
			for _, w := range c.warm {
				warm = append(warm, warmHolder{warmEntry{ID: string(w)}, slices.Contains([]rune(c.ending), w)})
			}
			_, got := launcher.GiveWay([]launcher.Place{room(c.want, machine(c.gpus...), warm)})
			if !slices.Equal(got, c.ends) {
				t.Errorf("%q are ended, not %q", got, c.ends)
			}
		})
	}
}

// gpuWarmPlace is a machine with GPUs on which so many warm kernels hold one each.
func gpuWarmPlace(t *testing.T, count *atomic.Int64, gpus ...string) (*place, kernelspecs.Spec) {
	p, spec := newPlace(t), realSpec()
	spec.Env = map[string]string{"KERNEL_GPUS": "1"}
	p.withGPUs(gpus...)
	with := p.change
	p.change = func(o *Options, tm *timing) {
		with(o, tm)
		o.Warm = func() []launcher.Warm {
			return []launcher.Warm{{Start: launcher.Request{Spec: spec}, Count: int(count.Load())}}
		}
		tm.warmPause, tm.warmFinish = 20*time.Millisecond, 200*time.Millisecond
	}
	return p, spec
}

// view returns the only pool of the machine.
func (p *place) pool(l *Launcher) launcher.GPUPool {
	p.t.Helper()
	view, err := l.ViewGPUs(p.t.Context())
	if err != nil || len(view.Nodes) != 1 || len(view.Nodes[0].Pools) != 1 {
		p.t.Fatalf("%+v, %v", view, err)
	}
	return view.Nodes[0].Pools[0]
}

// A warm kernel holds the only GPU. It is ended for a kernel that it does not fit, is not replaced while that holds the
// GPU, and is replaced afterwards. A start that it fits takes it with its GPU.
func TestWarm_GivesWay(t *testing.T) {
	var count atomic.Int64
	count.Store(1)
	p, spec := gpuWarmPlace(t, &count, gpuJSON("GPU-a"))
	l := p.launcher()
	p.warm(1, l)
	if pool := p.pool(l); pool.HeldWarm() != 1 || pool.Held() != 0 || len(pool.Warm) != 1 ||
		pool.Warm[0].SpecName != spec.Name || pool.Warm[0].Devices[0] != 1 {
		t.Errorf("%+v", pool)
	}
	flavors := []flavor.Flavor{{Name: "one", GPU: &flavor.Devices{Count: 1}}}
	if rooms, _, err := l.FlavorRoom(t.Context(), flavors); err != nil || rooms["one"].Free != 1 {
		t.Errorf("%+v, %v", rooms, err)
	}
	p.mustStart(l, 1, "1")
	eventually(t, "the kernel has the GPU", func() bool {
		k, err := l.Kernel(t.Context(), id(1))
		return err == nil && k.State != api.Starting && p.env(1, "CUDA_VISIBLE_DEVICES") == "GPU-a"
	})
	if n := l.Measure().WarmGaveWay[spec.Name]; n != 1 {
		t.Errorf("%d warm kernels gave way", n)
	}
	p.mustStart(l, 2, "1")
	reason := func(want string) {
		t.Helper()
		eventually(t, "no warm kernel is started: "+want, func() bool {
			c := l.Measure().Warm[spec.Name]
			return c.Wanted == 1 && c.Waiting == 0 && c.Reason == want
		})
	}
	reason(launcher.WaitsForGPU)
	stop := func(n int) {
		t.Helper()
		if err := l.Stop(t.Context(), id(n), "the test wants it"); err != nil {
			t.Fatal(err)
		}
	}
	stop(2)
	reason(launcher.NoGPUIsFree)
	stop(1)
	p.warm(1, l)
	req := launcher.Request{ID: id(3), AnyID: true, Owner: "ann", Spec: spec}
	k, _, err := l.Start(t.Context(), req)
	if err != nil || k.ID == id(3) || k.GPUs != gpu.One {
		t.Fatalf("%+v, %v", k, err)
	}
	var cfg api.Config
	if err := files.ReadJSON(filepath.Join(p.state, "kernels", k.ID, configFile), &cfg); err != nil ||
		cfg.Env["CUDA_VISIBLE_DEVICES"] != "GPU-a" {
		t.Errorf("%+v, %v", cfg, err)
	}
	if pool := p.pool(l); pool.HeldWarm() != 0 || len(pool.Holders) != 1 || pool.Holders[0].Owner != "ann" {
		t.Errorf("%+v", pool)
	}
	reason(launcher.NoGPUIsFree)
	if n := l.Measure().WarmClaims[launcher.WarmClaim{SpecName: spec.Name, Result: launcher.ClaimTaken}]; n != 1 {
		t.Errorf("%d were taken", n)
	}
	count.Store(0)
	p.warm(0, l)
}

// Kernels of another gateway of the state directory are given way to, too.
func TestWarm_GivesWayToOther(t *testing.T) {
	var count atomic.Int64
	count.Store(1)
	p, _ := gpuWarmPlace(t, &count, gpuJSON("GPU-a"))
	keeper := p.launcher()
	p.warm(1, keeper)
	other := p.launcher()
	p.mustStart(other, 1, "1")
	eventually(t, "the kernel has the GPU", func() bool {
		k, err := other.Kernel(t.Context(), id(1))
		return err == nil && k.State != api.Starting && p.env(1, "CUDA_VISIBLE_DEVICES") == "GPU-a"
	})
	count.Store(0)
	p.warm(0, keeper, other)
}
