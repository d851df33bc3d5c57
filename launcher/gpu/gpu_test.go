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
			[]Device{{UUID: "a", Use: 0.9, Processes: []Process{{1, part(0.2)}, {2, part(0.1)}, {100, part(0.6)}}}}, 0.3, ""},
		{"open only by another's process", []Device{{UUID: "a", Use: 0.9, Processes: []Process{{100, part(0.9)}}}}, 0, ""},
		{"open by mine and another's, use of each unknown",
			[]Device{{UUID: "a", Use: 0.9, Processes: []Process{{1, nil}, {100, nil}}}}, 0.9, ""},
		{"open only by another's, use unknown", []Device{{UUID: "a", Use: 0.9, Processes: []Process{{100, nil}}}}, 0, ""},
		{"more than one GPU's use in sum",
			[]Device{{UUID: "a", Use: 0.9, Processes: []Process{{1, part(0.8)}, {2, part(0.8)}}}}, 1, ""},
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
