package gateway

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/gpus"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

// viewingLauncher is a fake launcher that knows GPUs.
type viewingLauncher struct {
	*fakeLauncher
	view launcher.GPUs
}

func (v *viewingLauncher) ViewGPUs(context.Context) (launcher.GPUs, error) { return v.view, nil }

func (v *viewingLauncher) FlavorRoom(context.Context, []flavor.Flavor) (
	map[string]launcher.GPURoom, launcher.GPUs, error,
) {
	return map[string]launcher.GPURoom{"t4": {Free: 0, Total: 7}}, v.view, nil
}

// TestFlavors_Room: a flavor has the numbers of kernels that fit, if they are known.
func TestFlavors_Room(t *testing.T) {
	g := startGateway(t, func(o *Options) {
		withFlavors(o)
		o.Launcher = &viewingLauncher{fakeLauncher: o.Launcher.(*fakeLauncher)}
	})
	got := g.do("GET", "/api/flavors", "").want(t, 200, "").body
	if !strings.Contains(got, `"price_per_hour":0.35,"free":0,"total":7}`) || strings.Count(got, "free") != 1 {
		t.Error(got)
	}
}

// TestGPUs: admins see who holds GPUs, others see totals and their own kernels.
func TestGPUs(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	view := launcher.GPUs{Missing: []string{"No pods."}, Nodes: []launcher.GPUNode{
		{Name: "a", Address: "10.0.0.1", Status: "Ready", Pools: []launcher.GPUPool{{
			Resource: "aliyun.com/gpu-mem", Unit: launcher.UnitGiB, Total: 14,
			Devices: []launcher.GPUDevice{{Index: 0, Total: 14}},
			Warm:    []launcher.GPUHolder{{Kernel: idB, SpecName: "r", Amount: 1}},
			Holders: []launcher.GPUHolder{
				{Kernel: idA, Owner: "ann", SpecName: "python3", Namespace: "ns", Pod: "p", Amount: 4,
					Devices: map[int]float64{0: 4}, Since: at, Measured: 4, IdleSince: at},
				{Kernel: idB, Owner: "bob", Amount: 4, Devices: map[int]float64{0: 4}, Measured: 4, Busy: 4},
				{Namespace: "other", Pod: "q", Amount: 4, Devices: map[int]float64{0: 4}},
			}}}},
		{Name: "b", Pools: []launcher.GPUPool{{Resource: "aliyun.com/gpu-mem", Unit: launcher.UnitGiB, Total: 14,
			Unhealthy: 14}}},
	}, Ahead: []launcher.Ahead{{SpecName: "r", Wanted: 3, Ready: 1, Waiting: 2,
		Reason: "no node"}, {SpecName: "torch", Flavor: "t4", Wanted: 1}}}
	g := startUserGateway(t, func(o *Options) {
		o.Launcher = &viewingLauncher{o.Launcher.(*fakeLauncher), view}
	})
	const missingForUsers = "The view is incomplete; admins see why."
	const totals = `[{"resource":"aliyun.com/gpu-mem","unit":"GiB","total":28,"held":12,"measured":8,"busy":4,` +
		`"unhealthy":14,"warm":1}]`
	for _, who := range []struct {
		name     string
		holders  int
		others   float64
		hasPlace bool
		missing  string
	}{{"root", 3, 0, true, "No pods."}, {"ann", 1, 8, false, missingForUsers}, {"rita", 0, 12, false, missingForUsers}} {
		answer := decode[gpus.View](t, g.do("GET", "/api/gpus", "", as(who.name)).want(t, 200, ""))
		text, err := json.Marshal(answer.Totals)
		if err != nil || string(text) != totals {
			t.Errorf("%s: totals %s, %v", who.name, text, err)
		}
		want := []gpus.Ahead{{Kind: "warm", Spec: "r", Wanted: 3, Ready: 1, Waiting: 2}}
		if who.hasPlace {
			want[0].Reason = "no node"
			want = append(want, gpus.Ahead{Kind: "warm", Spec: "torch", Flavor: "t4", Wanted: 1}) // others may not choose it
		}
		if !slices.Equal(answer.Ahead, want) {
			t.Errorf("%s: %+v", who.name, answer.Ahead)
		}
		pool := answer.Nodes[0].Pools[0]
		if len(answer.Nodes) != 2 || answer.Missing[0] != who.missing || len(pool.Holders) != who.holders ||
			pool.Others != who.others || pool.Devices[0].Held != 12 || (answer.Nodes[0].Address != "") != who.hasPlace {
			t.Errorf("%s: %+v", who.name, answer)
		}
		if who.name != "ann" {
			continue
		}
		if h := pool.Holders[0]; h.Kernel != idA || h.Devices["0"] != 4 || h.Since == "" || h.IdleSince != h.Since ||
			h.Spec != "python3" {
			t.Errorf("%+v", h)
		}
	}
}

// TestGPUs_None: a launcher without GPUs has an empty view.
func TestGPUs_None(t *testing.T) {
	g := startGateway(t, nil)
	answer := decode[gpus.View](t, g.do("GET", "/api/gpus", "").want(t, 200, ""))
	if answer.Nodes == nil || len(answer.Nodes) != 0 || answer.Missing == nil || answer.Totals == nil {
		t.Errorf("%+v", answer)
	}
}
