package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestUsageRow checks which part of a kernel's usage lies between two times.
func TestUsageRow(t *testing.T) {
	at := func(hour int) time.Time { return time.Date(2026, 1, 2, hour, 0, 0, 0, time.UTC) }
	used := func(from, to int, measured, busy time.Duration) launcher.KernelUsage {
		u := launcher.KernelUsage{ID: idA, GPUUse: api.GPUUse{Measured: measured, Busy: busy}}
		u.Started, u.Seconds, u.GPUs = at(from), int64(to-from)*3600, gpu.Whole(2)
		if to < 24 {
			u.End = at(to)
		}
		return u
	}
	const h = time.Hour
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

// TestUsage checks that users see the usage of their own kernels, and how it is grouped.
func TestUsage(t *testing.T) {
	g := startUserGateway(t, nil)
	begun := time.Now().Add(-10 * time.Hour)
	kernel := func(id, owner, spec, flavor string, hours int64, gpus gpu.Amount) launcher.KernelUsage {
		u := launcher.KernelUsage{ID: id, Owner: owner, SpecName: spec, Flavor: flavor,
			GPUUse: api.GPUUse{Measured: time.Hour, Busy: time.Hour / 2}, End: begun.Add(time.Duration(hours) * time.Hour)}
		u.Started, u.Seconds, u.GPUs = begun, hours*3600, gpus
		return u
	}
	g.fake.usage = []launcher.KernelUsage{
		kernel(idA, "ann", "python3", "t4", 1, gpu.Whole(1)), kernel(idB, "ann", "r", "", 2, gpu.Whole(1)),
		kernel(idUnknown, "bob", "python3", "t4", 4, gpu.Whole(2)),
		kernel("0a1b2c3d-0000-4000-8000-0000000000fe", "bob", "python3", "", 4, 0),
	}
	for _, tt := range []struct{ user, query, want string }{
		{"ann", "", "user ann:2:10800:7200:3600"},
		{"bob", "?by=flavor&since=24h", "flavor t4:1:28800:7200:3600"},
		{"root", "?by=user", "user bob:1:28800:7200:3600 ann:2:10800:7200:3600"},
		{"root", "?by=spec", "spec python3:2:32400:10800:5400 r:1:7200:3600:1800"},
		{"root", "?by=flavor", "flavor t4:2:32400:10800:5400 :1:7200:3600:1800"},
		{"root", "?since=8h30m", "user bob:1:18000:4500:2250 ann:1:1800:900:450"},
		{"root", "?since=" + time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), "user"},
	} {
		answer := decode[Usage](t, g.do("GET", "/api/usage"+tt.query, "", as(tt.user)).want(t, 200, ""))
		got := []string{answer.By}
		for _, r := range answer.Usage {
			text, err := json.Marshal([]any{r.Name, r.Kernels, int(r.Held + 0.5), int(r.Measured + 0.5), int(r.Busy + 0.5)})
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.ReplaceAll(strings.Trim(strings.ReplaceAll(string(text), `"`, ""), "[]"), ",", ":"))
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s of %s: got %q, want %q", tt.query, tt.user, got, tt.want)
		}
	}
	rows := decode[Usage](t, g.do("GET", "/api/usage?by=kernel", "", as("ann")).want(t, 200, "")).Usage
	if !slices.ContainsFunc(rows, func(r UsageRow) bool {
		return r.Name == idA && r.Owner == "ann" && r.Flavor == "t4" && r.Ended != "" && r.GPUs == gpu.Whole(1)
	}) || len(rows) != 2 {
		t.Errorf("got %+v", rows)
	}
	for _, query := range []string{"?by=node", "?since=yesterday", "?since=-1h", "?step=day", "?step=1s", "?step=-1h"} {
		g.do("GET", "/api/usage"+query, "", as("ann")).want(t, 400, "The parameter ")
	}
	for _, query := range []string{"", "&step=1h"} {
		g.do("GET", "/api/usage?since=2100-01-01T00:00:00Z"+query, "", as("ann")).want(t, 400,
			"The parameter since is in the future.")
	}
	for _, query := range []string{"?since=168h&step=1m", "?since=2025-01-01T00:00:00Z&step=1h"} {
		g.do("GET", "/api/usage"+query, "", as("ann")).want(t, 400, "at most 1000 steps")
	}
	g.do("GET", "/api/usage?since=0001-01-01T00:00:00Z&step=2562047h", "", as("ann")).want(t, 400, "100 years ago")
	// 2562047h is the longest duration in hours.
	if steps := decode[Usage](t, g.do("GET", "/api/usage?step=2562047h", "", as("ann")).want(t, 200, "")).Steps; len(
		steps.Groups) != 1 || !slices.Equal(steps.Groups[0].Lived, []float64{3 * 3600}) {
		t.Errorf("one long step: got %+v", steps)
	}
	steps := decode[Usage](t, g.do("GET", "/api/usage?since=10h&step=5h", "", as("root")).want(t, 200, "")).Steps
	if len(steps.Groups) != 2 || steps.Groups[0].Name != "bob" || steps.Others != nil {
		t.Errorf("got the steps %+v", steps)
	}
	if steps := decode[Usage](t, g.do("GET", "/api/usage?step=5h", "", as("ann")).want(t, 200, "")).Steps; len(
		steps.Groups) != 1 || steps.Groups[0].Name != "ann" {
		t.Errorf("ann sees the steps %+v", steps)
	}
	g.fake.usageErr = errors.Join(launcher.ErrUnavailable)
	g.do("GET", "/api/usage", "", as("ann")).want(t, 503, "")
}

// TestStepsOf checks how usage is divided into steps, and that small groups are summed.
func TestStepsOf(t *testing.T) {
	since := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	used := func(owner string, from, to time.Duration, gpus, busy float64) launcher.KernelUsage {
		u := launcher.KernelUsage{Owner: owner, End: since.Add(to)}
		u.Started, u.Seconds, u.GPUs = since.Add(from), int64((to - from).Seconds()), gpu.Amount(gpus*float64(gpu.One))
		u.GPUUse = api.GPUUse{Measured: to - from, Busy: time.Duration(busy * float64(to-from))}
		return u
	}
	const h = time.Hour
	lives := used("bob", h, 3*h, 0, 0)
	lives.End, lives.Seconds = time.Time{}, 0
	kernels := []launcher.KernelUsage{used("ann", -h, h/2, 2, 0.5), used("ann", h/2, 2*h, 1, 1), lives,
		used("late", 5*h, 6*h, 1, 1), used("early", -3*h, -2*h, 1, 1)}
	got := stepsOf(kernels, UsageByUser, h, since, since.Add(5*h/2))
	want := &UsageSteps{Seconds: 3600, Groups: []UsageSeries{
		{Name: "ann", Lived: []float64{3600, 3600, 0}, Held: []float64{5400, 3600, 0}, Busy: []float64{3600, 3600, 0}},
		{Name: "bob", Lived: []float64{0, 3600, 1800}, Held: []float64{0, 0, 0}, Busy: []float64{0, 0, 0}},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	kernels = nil
	for i := range usageGroups + 3 {
		kernels = append(kernels, used(fmt.Sprintf("user%02d", i), 0, 2*h-time.Duration(i)*time.Minute, 1, 0))
	}
	got = stepsOf(kernels, UsageByUser, h, since, since.Add(2*h))
	if len(got.Groups) != usageGroups || got.Others == nil || got.Others.Lived[0] != 3*3600 {
		t.Errorf("got %d groups and the others %+v", len(got.Groups), got.Others)
	}
	kernels = nil
	for i := range 5000 {
		kernels = append(kernels, used(fmt.Sprintf("user%04d", i), 0, h, 0, 0))
	}
	before, after := runtime.MemStats{}, runtime.MemStats{}
	runtime.ReadMemStats(&before)
	got = stepsOf(kernels, UsageByUser, 2*time.Minute, since, since.Add(30*h))
	runtime.ReadMemStats(&after)
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 10<<20 {
		t.Errorf("%d bytes for %d groups with %d steps", bytes, len(kernels), len(got.Others.Lived))
	}
	if rest := float64(len(kernels)-usageGroups) * 120; got.Others.Lived[0] != rest || got.Others.Lived[30] != 0 {
		t.Errorf("the others lived %v and %v s", got.Others.Lived[0], got.Others.Lived[30])
	}
}
