package client

import (
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/gateway/gpus"
)

// TestPrintUsage compares whole outputs.
func TestPrintUsage(t *testing.T) {
	rows := []gpus.UsageRow{
		{Name: kernelA, Kernels: 1, Held: 7200, Measured: 3600, Busy: 1800, Owner: "ann", Spec: "python3", Flavor: "t4",
			GPUs: 1},
		{Name: kernelF, Kernels: 1, Held: 3600, Owner: "bob\x1b[31m", Spec: "r", Ended: "2026-01-02T15:04:05.000000Z"},
	}
	for _, tt := range []struct {
		name   string
		format outputFormat
		by     string
		rows   []gpus.UsageRow
		want   string
	}{
		{"users", formatTable, gpus.UsageByUser, rows, "" +
			"USER          KERNELS   GPU HOURS   BUSY HOURS   BUSY\n" +
			"ann           1         2.00        0.50         50%\n" +
			"bob\\x1b[31m   1         1.00        0.00         -\n"},
		{"flavors, wide", formatWide, gpus.UsageByFlavor, rows, "" +
			"FLAVOR   KERNELS   GPU HOURS   BUSY HOURS   BUSY   MEASURED\n" +
			"t4       1         2.00        0.50         50%    50%\n" +
			"-        1         1.00        0.00         -      0%\n"},
		{"no usage", formatTable, gpus.UsageByUser, nil, "No GPUs were held.\n"},
		{"names", formatName, gpus.UsageBySpec, rows, "python3\nr\n"},
		{"json", formatJSON, gpus.UsageByUser, rows[:1], `[
  {
    "name": "ann",
    "kernels": 1,
    "held_seconds": 7200,
    "measured_seconds": 3600,
    "busy_seconds": 1800
  }
]
`},
		{"no usage in json", formatJSON, gpus.UsageByUser, nil, "[]\n"},
		{"yaml", formatYAML, gpus.UsageBySpec, rows[1:], `- name: "r"
  kernels: 1
  held_seconds: 3600
  measured_seconds: 0
  busy_seconds: 0
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			if err := tt.format.printUsage(&b, gpus.GroupUsage(tt.rows, tt.by), tt.by); err != nil || b.String() != tt.want {
				t.Errorf("got\n%s\n%v, want\n%s", b.String(), err, tt.want)
			}
		})
	}
	var b strings.Builder
	if err := formatWide.printUsage(&b, rows, gpus.UsageByKernel); err != nil ||
		!strings.Contains(b.String(), "MEASURED   USER") || !strings.Contains(b.String(), "2026-01-02T15:04:05.000000Z") {
		t.Errorf("got\n%s\n%v", b.String(), err)
	}
}
