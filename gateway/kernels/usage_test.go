package kernels

import (
	"fmt"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/gpus"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestUsageRow checks which part of a kernel's usage lies between two times.
func TestUsageRow(t *testing.T) {
	at := func(hour int) time.Time { return time.Date(2026, 1, 2, hour, 0, 0, 0, time.UTC) }
	used := func(from, to int, measured, busy time.Duration) launcher.KernelUsage {
		u := launcher.KernelUsage{ID: "a", GPUUse: api.GPUUse{Measured: measured, Busy: busy}}
		u.Started, u.Seconds, u.GPUs = at(from), int64(to-from)*3600, gpu.Whole(2)
		if to < 24 {
			u.End = at(to)
		}
		return u
	}
	const h = time.Hour
	parked := used(10, 14, 4*h, h)
	parked.GPUUse.Parked = 3 * h
	for _, tt := range []struct {
		name                 string
		kernel               launcher.KernelUsage
		held, measured, busy time.Duration // GPU time; held 0: it is left out
	}{
		{"within", used(13, 15, 2*h, h), 4 * h, 4 * h, 2 * h},
		{"begun before", used(10, 14, 4*h, 2*h), 4 * h, 4 * h, 2 * h},
		{"lives", used(16, 24, h, h), 4 * h, 2 * h, 2 * h},
		{"lives, begun before", used(6, 24, 6*h, 3*h), 12 * h, 6 * h, 3 * h},
		{"not measured", used(13, 15, 0, 0), 4 * h, 0, 0},
		{"more than possible", used(13, 15, 9*h, 12*h), 4 * h, 4 * h, 4 * h},
		{"busy, though not measured", used(13, 15, 0, h), 4 * h, 0, 0},
		{"parked for three of four hours", parked, h, h, h},
		{"ended before", used(8, 12, h, h), 0, 0, 0},
		{"not begun", used(18, 24, h, h), 0, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			row, ok := usageRow(tt.kernel, at(12), at(18))
			if ok != (tt.held > 0) || row.Held != tt.held.Seconds() || row.Measured != tt.measured.Seconds() ||
				row.Busy != tt.busy.Seconds() {
				t.Errorf("got %+v, %v", row, ok)
			}
		})
	}
}

// TestStepsOf checks how usage is divided into steps, and that small groups are summed.
func TestStepsOf(t *testing.T) {
	since := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	used := func(owner string, from, to time.Duration, held, busy float64) launcher.KernelUsage {
		u := launcher.KernelUsage{Owner: owner, End: since.Add(to)}
		u.Started, u.Seconds, u.GPUs = since.Add(from), int64((to - from).Seconds()), gpu.Amount(held*float64(gpu.One))
		u.GPUUse = api.GPUUse{Measured: to - from, Busy: time.Duration(busy * float64(to-from))}
		return u
	}
	const h = time.Hour
	lives := used("bob", h, 3*h, 0, 0)
	lives.End, lives.Seconds = time.Time{}, 0
	all := []launcher.KernelUsage{used("ann", -h, h/2, 2, 0.5), used("ann", h/2, 2*h, 1, 1), lives,
		used("late", 5*h, 6*h, 1, 1), used("early", -3*h, -2*h, 1, 1)}
	got := stepsOf(all, gpus.UsageByUser, h, since, since.Add(5*h/2))
	want := &UsageSteps{Seconds: 3600, Groups: []UsageSeries{
		{Name: "ann", Lived: []float64{3600, 3600, 0}, Held: []float64{5400, 3600, 0}, Busy: []float64{3600, 3600, 0}},
		{Name: "bob", Lived: []float64{0, 3600, 1800}, Held: []float64{0, 0, 0}, Busy: []float64{0, 0, 0}},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	all = nil
	for i := range usageGroups + 3 {
		all = append(all, used(fmt.Sprintf("user%02d", i), 0, 2*h-time.Duration(i)*time.Minute, 1, 0))
	}
	got = stepsOf(all, gpus.UsageByUser, h, since, since.Add(2*h))
	if len(got.Groups) != usageGroups || got.Others == nil || got.Others.Lived[0] != 3*3600 {
		t.Errorf("got %d groups and the others %+v", len(got.Groups), got.Others)
	}
	all = nil
	for i := range 5000 {
		all = append(all, used(fmt.Sprintf("user%04d", i), 0, h, 0, 0))
	}
	before, after := runtime.MemStats{}, runtime.MemStats{}
	runtime.ReadMemStats(&before)
	got = stepsOf(all, gpus.UsageByUser, 2*time.Minute, since, since.Add(30*h))
	runtime.ReadMemStats(&after)
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 10<<20 {
		t.Errorf("%d bytes for %d groups with %d steps", bytes, len(all), len(got.Others.Lived))
	}
	if rest := float64(len(all)-usageGroups) * 120; got.Others.Lived[0] != rest || got.Others.Lived[30] != 0 {
		t.Errorf("the others lived %v and %v s", got.Others.Lived[0], got.Others.Lived[30])
	}
}
