package gpu

import (
	"math"
	"strings"
	"testing"
)

func part(f float64) *float64 { return &f }

func TestReport_Use(t *testing.T) {
	mine := func(pid int) bool { return pid < 100 }
	for _, tt := range []struct {
		name    string
		devices []Device
		want    float64
		err     string
	}{
		{"no GPU", nil, 0, ""},
		{"no process has it open", []Device{{UUID: "a", Use: 0.7, Processes: []Process{}}}, 0, ""},
		{"processes unknown, in a container", []Device{{UUID: "a", Use: 0.7}, {UUID: "b", Use: 0.6}}, 1.3, ""},
		{"shared with another's process",
			[]Device{{UUID: "a", Use: 0.9, Processes: []Process{{1, part(0.2), 0}, {2, part(0.1), 0}, {100, part(0.6), 0}}}},
			0.3, ""},
		{"open only by another's process", []Device{{UUID: "a", Use: 0.9, Processes: []Process{{100, part(0.9), 0}}}}, 0, ""},
		{"open by mine and another's, use of each unknown",
			[]Device{{UUID: "a", Use: 0.9, Processes: []Process{{1, nil, 0}, {100, nil, 0}}}}, 0.9, ""},
		{"open only by another's, use unknown", []Device{{UUID: "a", Use: 0.9, Processes: []Process{{100, nil, 0}}}}, 0, ""},
		{"more than one GPU's use in sum",
			[]Device{{UUID: "a", Use: 0.9, Processes: []Process{{1, part(0.8), 0}, {2, part(0.8), 0}}}}, 1, ""},
		{"one of two is lost", []Device{{UUID: "a", Error: "GPU is lost"}, {UUID: "b", Use: 0.5}}, 0.5, "a: GPU is lost"},
	} {
		got, err := Report{Devices: tt.devices}.Use(mine)
		if math.Abs(got-tt.want) > 1e-9 || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("%s: got %g, %v; want %g, %q", tt.name, got, err, tt.want, tt.err)
		}
	}
}

func TestParseReport(t *testing.T) {
	r, err := ParseReport([]byte(`{"seconds": 10, "devices": [
		{"uuid": "GPU-1", "use": 0.5, "processes": [{"pid": 7, "use": 0.25}, {"pid": 8}], "later": 1}]}`))
	if err != nil || r.Seconds != 10 || len(r.Devices) != 1 || *r.Devices[0].Processes[0].Use != 0.25 ||
		r.Devices[0].Processes[1].Use != nil {
		t.Errorf("got %+v, %v", r, err)
	}
	for _, bad := range []string{"", "[]", "no GPU", `{"devices": [{"use": 1.5}]}`, `{"devices": [{"use": -1}]}`,
		`{"devices": [{"use": 0, "processes": [{"pid": 1, "use": 2}]}]}`} {
		if r, err := ParseReport([]byte(bad)); err == nil || !strings.HasPrefix(err.Error(), "not a report of ekg-gpu: ") {
			t.Errorf("%q: got %+v, %v", bad, r, err)
		}
	}
}

// TestSample_Of checks which part of a device's state belongs to a kernel.
func TestSample_Of(t *testing.T) {
	mine := func(pid int) bool { return pid < 100 }
	for _, tt := range []struct {
		name      string
		use       *float64
		processes []Process
		memory    int64
		want      float64 // -1: unknown
	}{
		{"in a container", part(0.9), nil, 1000, 0.9},
		{"not open", part(0.9), []Process{}, 0, 0},
		{"shared", part(0.9), []Process{{1, part(0.2), 100}, {2, part(0.1), 50}, {100, part(0.6), 500}}, 150, 0.3},
		{"use of processes unknown", part(0.9), []Process{{1, nil, 100}, {100, nil, 500}}, 100, 0.9},
		{"memory of processes unknown", part(0.9), []Process{{1, part(0.2), 0}}, 1000, 0.2},
		{"use unknown", nil, []Process{{1, nil, 100}}, 100, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Sample{MemoryUsed: 1000, Utilization: tt.use, Processes: tt.processes}.Of(mine)
			use := -1.0
			if got.Utilization != nil {
				use = *got.Utilization
			}
			if got.MemoryUsed != tt.memory || math.Abs(use-tt.want) > 1e-9 || got.Processes != nil {
				t.Errorf("got %+v with use %g", got, use)
			}
		})
	}
}

func TestParseSamples(t *testing.T) {
	s, err := ParseSamples([]byte(`{"seconds":10,"devices":[{"uuid":"a","utilization":null,"memory_used":5}]}`))
	if err != nil || len(s.Devices) != 1 || s.Devices[0].MemoryUsed != 5 || s.Devices[0].Utilization != nil {
		t.Errorf("got %+v, %v", s, err)
	}
	for name, line := range map[string]string{
		"no JSON": "GPU 0: idle", "use over 1": `{"devices":[{"uuid":"a","utilization":1.5}]}`,
		"negative memory": `{"devices":[{"uuid":"a","memory_used":-1}]}`, "negative time": `{"seconds":-1}`,
		"a long name":      `{"devices":[{"uuid":"` + strings.Repeat("a", 301) + `"}]}`,
		"too many devices": `{"devices":[` + strings.Repeat(`{},`, MaxDevices) + `{}]}`,
	} {
		if _, err := ParseSamples([]byte(line)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
