package local

import (
	"slices"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
)

// TestEnough: the kernels whose end would each be enough for one that waits.
func TestEnough(t *testing.T) {
	half := gpu.One / 2
	held := []gpu.Held{
		{UUID: "GPU-a", Model: "T4", Healthy: true, Holders: []gpu.Holder{{Kernel: "a", Share: gpu.One}}},
		{UUID: "GPU-b", Model: "T4", Healthy: true,
			Holders: []gpu.Holder{{Kernel: "b", Share: half}, {Kernel: "c", Share: half}}},
		{UUID: "GPU-x", Model: "T4", Holders: []gpu.Holder{{Kernel: "x", Share: gpu.One}}},
		{UUID: "GPU-d", Model: "A100", Healthy: true, Holders: []gpu.Holder{{Share: gpu.One}}},
	}
	for what, c := range map[string]struct {
		want devices.Want
		gets []string
	}{
		"a whole one": {devices.Want{}, []string{"a"}},
		"a part":      {devices.Want{Share: half}, []string{"a", "b", "c"}},
		"two":         {devices.Want{Count: 2}, nil},
		"a model":     {devices.Want{Product: "A100"}, nil},
	} {
		if got := enough(c.want, held); !slices.Equal(got, c.gets) {
			t.Errorf("%s: %v, want %v", what, got, c.gets)
		}
	}
	held[1].Holders = held[1].Holders[:1]
	if got := enough(devices.Want{Share: half}, held); got != nil {
		t.Errorf("there is room: %v", got)
	}
	if len(held[0].Holders) != 1 || held[0].Holders[0].Kernel != "a" {
		t.Errorf("what is held was changed: %+v", held)
	}
}
