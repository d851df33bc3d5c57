package devices

import (
	"slices"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// TestWant_Enough: the kernels whose end would each be enough for one that waits.
func TestWant_Enough(t *testing.T) {
	half := gpu.One / 2
	held := []gpu.Held{
		{UUID: "GPU-a", Model: "T4", Healthy: true, Holders: []gpu.Holder{{Kernel: "a", Share: gpu.One}}},
		{UUID: "GPU-b", Model: "T4", Healthy: true,
			Holders: []gpu.Holder{{Kernel: "b", Share: half}, {Kernel: "c", Share: half}}},
		{UUID: "GPU-x", Model: "T4", Holders: []gpu.Holder{{Kernel: "x", Share: gpu.One}}},
		{UUID: "GPU-d", Model: "A100", Healthy: true, Holders: []gpu.Holder{{Share: gpu.One}}},
	}
	for what, c := range map[string]struct {
		want Want
		gets []string
	}{
		"a whole one": {Want{}, []string{"a"}},
		"a part":      {Want{Share: half}, []string{"a", "b", "c"}},
		"two":         {Want{Count: 2}, nil},
		"a model":     {Want{Product: "A100"}, nil},
	} {
		if got := c.want.Enough(held); !slices.Equal(got, c.gets) {
			t.Errorf("%s: %v, want %v", what, got, c.gets)
		}
	}
	held[1].Holders = held[1].Holders[:1]
	if got := (Want{Share: half}).Enough(held); got != nil {
		t.Errorf("there is room: %v", got)
	}
	if len(held[0].Holders) != 1 || held[0].Holders[0].Kernel != "a" {
		t.Errorf("what is held was changed: %+v", held)
	}
}
