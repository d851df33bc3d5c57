package gateway

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// fullLauncher is a fake launcher whose GPUs are held.
type fullLauncher struct {
	*fakeLauncher
	room map[string]launcher.GPURoom
}

func (f *fullLauncher) FlavorRoom(ctx context.Context, _ []flavor.Flavor) (
	map[string]launcher.GPURoom, launcher.GPUs, error,
) {
	view, err := f.ViewGPUs(ctx)
	return f.room, view, err
}

func (f *fullLauncher) ViewGPUs(context.Context) (launcher.GPUs, error) {
	return launcher.GPUs{Nodes: []launcher.GPUNode{{Name: "n", Pools: []launcher.GPUPool{{Holders: []launcher.GPUHolder{
		{Kernel: "1", Owner: "ann", Flavor: "t4", Amount: 1}, {Kernel: "2", Owner: "ann", Flavor: "t4", Amount: 1},
		{Kernel: "3", Owner: "bob", Flavor: "t4", Amount: 1}, {Kernel: "4", Owner: "bob", Flavor: "h100", Amount: 1},
		{Namespace: "other", Pod: "p", Amount: 5},
	}}}}}}, nil
}

// TestExplainWait: the reason of a kernel that waits for a GPU has numbers.
func TestExplainWait(t *testing.T) {
	full := map[string]launcher.GPURoom{"t4": {Total: 8}, "quarter": {Free: 2, Total: 4}, "h100": {Free: 1, Total: 1}}
	const waits = "no node can take it"
	for name, c := range map[string]struct {
		user   string
		room   map[string]launcher.GPURoom
		state  api.State
		waited []time.Duration
		want   string
	}{
		"a user": {"bob", full, api.Starting, nil,
			waits + "; 3 of at most 8 kernels with the flavor t4 run, of 2 users; at once it would get quarter"},
		"an admin": {"root", full, api.Starting, nil,
			waits + "; 3 of at most 8 kernels with the flavor t4 run: ann 2, bob 1; at once it would get h100 or quarter"},
		"with a history": {"bob", full, api.Starting, []time.Duration{time.Hour, 250 * time.Second, time.Second},
			waits + "; 3 of at most 8 kernels with the flavor t4 run, of 2 users; a start with it usually waits 4 minutes; " +
				"at once it would get quarter"},
		"two waits are no history": {"bob", full, api.Starting, []time.Duration{time.Hour, time.Second},
			waits + "; 3 of at most 8 kernels with the flavor t4 run, of 2 users; at once it would get quarter"},
		"nothing else is free": {"bob", map[string]launcher.GPURoom{"t4": {Total: 8}}, api.Starting, nil,
			waits + "; 3 of at most 8 kernels with the flavor t4 run, of 2 users"},
		"there is room":    {"bob", map[string]launcher.GPURoom{"t4": {Free: 1, Total: 8}}, api.Starting, nil, waits},
		"it is not known":  {"bob", nil, api.Starting, nil, waits},
		"it does not wait": {"bob", full, api.Dead, nil, waits},
	} {
		t.Run(name, func(t *testing.T) {
			g := startUserGateway(t, func(o *Options) {
				withFlavors(o)
				o.Launcher = &fullLauncher{o.Launcher.(*fakeLauncher), c.room}
			})
			g.fake.add(idA, "python3", c.state)
			g.fake.change(func() {
				k := g.fake.kernels[idA]
				k.Owner, k.Flavor, k.Reason = "bob", "t4", waits
				k.super.close()
				k.super = nil
			})
			for _, d := range c.waited {
				g.metrics.GPUWaited("t4", d)
			}
			for _, path := range []string{"/api/kernels", "/api/kernels/" + idA} {
				got := g.do("GET", path, "", as(c.user)).want(t, 200, "").body
				if !strings.Contains(got, `"reason":"`+c.want+`"`) {
					t.Errorf("%s: got %s, want %q", path, got, c.want)
				}
			}
		})
	}
}

// failingLauncher is a fake launcher that cannot look at its GPUs.
type failingLauncher struct {
	*fakeLauncher
	asked atomic.Int32
}

func (f *failingLauncher) FlavorRoom(context.Context, []flavor.Flavor) (
	map[string]launcher.GPURoom, launcher.GPUs, error,
) {
	f.asked.Add(1)
	return nil, launcher.GPUs{}, errors.New("locked")
}

func (f *failingLauncher) ViewGPUs(context.Context) (launcher.GPUs, error) {
	return launcher.GPUs{}, errors.New("locked")
}

// TestRooms_Failure: a list with many kernels that wait asks a launcher once that fails, and flavors are still listed.
func TestRooms_Failure(t *testing.T) {
	var fails *failingLauncher
	g := startUserGateway(t, func(o *Options) {
		withFlavors(o)
		fails = &failingLauncher{fakeLauncher: o.Launcher.(*fakeLauncher)}
		o.Launcher = fails
	})
	for range 1000 {
		g.kernels.ExplainWait(kernels.Caller{}, &launcher.Kernel{State: api.Starting, Flavor: "t4", Reason: "it waits"})
	}
	if n := fails.asked.Load(); n > 100 {
		t.Errorf("asked %d times", n)
	}
	got := g.do("GET", "/api/flavors", "", as("bob")).want(t, 200, "").body
	if !strings.Contains(got, `"name":"t4"`) || strings.Contains(got, "free") {
		t.Error(got)
	}
}
