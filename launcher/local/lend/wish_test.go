package lend

import (
	"reflect"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestLender_Sample(t *testing.T) {
	for visible, want := range map[string][]string{
		"": nil, "-1": nil, "NoDevFiles": nil, "0": {"0"}, "GPU-1, MIG-2": {"GPU-1", "MIG-2"}, "1,-1,2": {"1"},
	} {
		for name, o := range map[string]Options{
			"sampled": {Program: "/ekg-gpu"}, "no program": {},
		} {
			l := &Lender{opts: o}
			cfg := api.Config{Env: map[string]string{VisibleVariable: visible}}
			l.Sample(&cfg)
			var expected api.GPUSamples
			if name == "sampled" && want != nil {
				expected = api.GPUSamples{Every: api.GPUSampleInterval, Devices: want}
			}
			if !reflect.DeepEqual(cfg.GPUSamples, expected) || (cfg.GPUProgram != "") != (expected.Every > 0) {
				t.Errorf("%q, %s: got %+v with %q", visible, name, cfg.GPUSamples, cfg.GPUProgram)
			}
		}
	}
}

// Only a kernel with one whole GPU gives it back, and none whose kernelspec or job forbids it.
func TestLender_EquipParked(t *testing.T) {
	l := &Lender{opts: Options{Program: "/ekg-gpu", Park: api.Park{Idle: time.Minute}}}
	for name, v := range map[string]struct {
		loan  devices.Loan
		never bool
		want  bool
	}{
		"one":       {devices.Loan{Devices: []string{"GPU-1"}, Share: gpu.One}, false, true},
		"forbidden": {devices.Loan{Devices: []string{"GPU-1"}, Share: gpu.One}, true, false},
		"two":       {devices.Loan{Devices: []string{"GPU-1", "GPU-2"}, Share: gpu.One}, false, false},
		"part":      {devices.Loan{Devices: []string{"GPU-1"}, Share: gpu.One / 2}, false, false},
	} {
		cfg := api.Config{Env: map[string]string{}, GPUSamples: api.GPUSamples{Park: api.Park{Never: v.never}}}
		l.Equip(&cfg, &v.loan)
		if cfg.GPUSamples.Park.Never == v.want || cfg.GPUSamples.Park.Idle != time.Minute {
			t.Errorf("%s: got %+v", name, cfg.GPUSamples.Park)
		}
	}
}
