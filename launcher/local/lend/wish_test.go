package lend

import (
	"reflect"
	"testing"

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
