package gateway

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/gpus"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

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
		answer := decode[kernels.Usage](t, g.do("GET", "/api/usage"+tt.query, "", as(tt.user)).want(t, 200, ""))
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
	rows := decode[kernels.Usage](t, g.do("GET", "/api/usage?by=kernel", "", as("ann")).want(t, 200, "")).Usage
	if !slices.ContainsFunc(rows, func(r gpus.UsageRow) bool {
		return r.Name == idA && r.Owner == "ann" && r.Flavor == "t4" && r.Ended != "" && r.GPUs == 1
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
	largest := g.do("GET", "/api/usage?step=2562047h", "", as("ann")).want(t, 200, "")
	if steps := decode[kernels.Usage](t, largest).Steps; len(
		steps.Groups) != 1 || !slices.Equal(steps.Groups[0].Lived, []float64{3 * 3600}) {
		t.Errorf("one long step: got %+v", steps)
	}
	steps := decode[kernels.Usage](t, g.do("GET", "/api/usage?since=10h&step=5h", "", as("root")).want(t, 200, "")).Steps
	if len(steps.Groups) != 2 || steps.Groups[0].Name != "bob" || steps.Others != nil {
		t.Errorf("got the steps %+v", steps)
	}
	if steps := decode[kernels.Usage](t, g.do("GET", "/api/usage?step=5h", "", as("ann")).want(t, 200, "")).Steps; len(
		steps.Groups) != 1 || steps.Groups[0].Name != "ann" {
		t.Errorf("ann sees the steps %+v", steps)
	}
	g.fake.usageErr = errors.Join(launcher.ErrUnavailable)
	g.do("GET", "/api/usage", "", as("ann")).want(t, 503, "")
}
