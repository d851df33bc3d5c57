package gpu

import (
	"strings"
	"testing"
)

func TestParseList(t *testing.T) {
	l, err := ParseList([]byte(`{"devices": [
		{"uuid": "GPU-1", "index": 0, "model": "T4", "memory_total": 4096, "healthy": true, "later": 1},
		{"uuid": "GPU-2", "index": 1, "mig_mode": true, "healthy": true, "mig": [{"uuid": "MIG-3", "profile": "1g.10gb"}]},
		{"uuid": "", "index": 2, "healthy": false, "error": "lost"}]}`))
	if err != nil || len(l.Devices) != 3 || l.Devices[0].MemoryTotal != 4096 || !l.Devices[1].MIG ||
		l.Devices[1].Instances[0].Profile != "1g.10gb" || l.Devices[2].Error != "lost" {
		t.Errorf("got %+v, %v", l, err)
	}
	for name, bad := range map[string]string{
		"no JSON":           "no GPU",
		"no UUID":           `{"devices": [{"healthy": true}]}`,
		"a path":            `{"devices": [{"uuid": "../lock", "healthy": true}]}`,
		"a list":            `{"devices": [{"uuid": "GPU-1,GPU-2", "healthy": true}]}`,
		"twice":             `{"devices": [{"uuid": "a", "healthy": true}, {"uuid": "b", "mig": [{"uuid": "a"}]}]}`,
		"negative memory":   `{"devices": [{"uuid": "a", "memory_total": -1}]}`,
		"an instance's":     `{"devices": [{"uuid": "a", "mig": [{"uuid": "MIG-GPU-1/7/0"}]}]}`,
		"a very long one":   `{"devices": [{"uuid": "` + strings.Repeat("a", 101) + `"}]}`,
		"a great many GPUs": `{"devices": [` + strings.Repeat("{},", MaxDevices) + `{}]}`,
	} {
		if l, err := ParseList([]byte(bad)); err == nil || !strings.HasPrefix(err.Error(), "not a list of ekg-gpu: ") {
			t.Errorf("%s: got %+v, %v", name, l, err)
		}
	}
}
