package gateway

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// defaultUsageTime is the time of which usage is shown unless a client asks for another.
const defaultUsageTime = 24 * time.Hour

// How usage can be grouped.
const (
	UsageByKernel = "kernel"
	UsageByUser   = "user"
	UsageBySpec   = "spec"
	UsageByFlavor = "flavor"
)

// UsageGroups are the values of the parameter by.
var UsageGroups = []string{UsageByUser, UsageBySpec, UsageByFlavor, UsageByKernel}

// Usage is the answer of GET /api/usage.
type Usage struct {
	Since string     `json:"since"`
	Until string     `json:"until"`
	By    string     `json:"by"`
	Usage []UsageRow `json:"usage"` // the one that held most first

	// Steps are the usage over time; nil unless the parameter step asks for it.
	Steps *UsageSteps `json:"steps,omitempty"`
}

// UsageRow is how many GPU seconds one kernel, or a group of kernels, has held and used: GPUs times seconds.
type UsageRow struct {
	Name     string  `json:"name"` // of the group; a kernel's id
	Kernels  int     `json:"kernels"`
	Held     float64 `json:"held_seconds"`
	Measured float64 `json:"measured_seconds"` // the part of Held in which the GPUs' use is known
	Busy     float64 `json:"busy_seconds"`     // the part of Measured in which they computed

	// Of one kernel only.
	Owner   string     `json:"owner,omitempty"`
	Spec    string     `json:"kernelspec,omitempty"`
	Flavor  string     `json:"flavor,omitempty"`
	GPUs    gpu.Amount `json:"gpus,omitempty"`
	Started string     `json:"started_at,omitempty"`
	Ended   string     `json:"ended_at,omitempty"` // absent while it lives
}

// getUsage answers with the usage of GPUs: of the caller's own kernels, and for an admin of all.
func (g *Gateway) getUsage(w http.ResponseWriter, r *call) error {
	query := r.URL.Query()
	now := time.Now()
	since := now.Add(-defaultUsageTime)
	if text := query.Get("since"); text != "" {
		var err error
		if since, err = usageSince(text, now); err != nil {
			return err
		}
	}
	by := cmp.Or(query.Get("by"), UsageByUser)
	if !slices.Contains(UsageGroups, by) {
		return refuse(http.StatusBadRequest, "The parameter by is not user, spec, flavor or kernel.")
	}
	step, err := usageStep(query.Get("step"), since, now)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTime)
	defer cancel()
	all, err := g.opts.Launcher.Usage(ctx)
	if err != nil {
		return err
	}
	var own []launcher.KernelUsage
	rows := []UsageRow{}
	for _, u := range all {
		if u.Started.IsZero() || !r.who.owns(u.Owner) {
			continue
		}
		row, ok := usageRow(u, since, now)
		if !ok {
			continue
		}
		own = append(own, u)
		if u.GPUs > 0 {
			rows = append(rows, row)
		}
	}
	answer := Usage{Since: api.Timestamp(since), Until: api.Timestamp(now), By: by, Usage: GroupUsage(rows, by)}
	if step > 0 {
		answer.Steps = stepsOf(own, by, step, since, now)
	}
	return writeJSON(w, http.StatusOK, answer)
}

// usageSince reads the parameter since: a time before now, or a duration before now.
func usageSince(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		if !at.Before(now) {
			return time.Time{}, refuse(http.StatusBadRequest, "The parameter since is in the future.")
		}
		return at, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, refuse(http.StatusBadRequest,
		"The parameter since is neither a time like 2006-01-02T15:04:05Z nor a duration like 24h.")
}

// usageRow returns a kernel's usage between two times, and false if it had ended before or had not begun. What its GPUs
// did is known for its whole life, so the part of it is proportional.
func usageRow(u launcher.KernelUsage, since, until time.Time) (UsageRow, bool) {
	end := usageEnd(&u, until)
	row := UsageRow{Name: u.ID, Kernels: 1, Owner: u.Owner, Spec: u.SpecName, Flavor: u.Flavor, GPUs: u.GPUs,
		Started: api.Timestamp(u.Started)}
	if !u.End.IsZero() {
		row.Ended = api.Timestamp(end)
	}
	whole := end.Sub(u.Started)
	from := u.Started
	if from.Before(since) {
		from = since
	}
	if end.After(until) {
		end = until
	}
	held := end.Sub(from)
	if held <= 0 {
		return row, false
	}
	part := u.GPUs.Float() * float64(held) / float64(whole)
	row.Held = seconds(u.GPUs.Float() * held.Seconds())
	row.Measured = seconds(part * min(u.GPUUse.Measured, whole).Seconds())
	row.Busy = seconds(part * max(0, min(u.GPUUse.Busy, u.GPUUse.Measured, whole)).Seconds())
	return row, true
}

// seconds rounds to milliseconds.
func seconds(s float64) float64 { return math.Round(max(0, s)*1000) / 1000 }

// GroupUsage sums the rows of kernels by one of UsageGroups. The group that held most comes first.
func GroupUsage(kernels []UsageRow, by string) []UsageRow {
	rows := slices.Clone(kernels)
	if by != UsageByKernel {
		rows = []UsageRow{}
		at := map[string]int{}
		for _, k := range kernels {
			name := map[string]string{UsageByUser: k.Owner, UsageBySpec: k.Spec, UsageByFlavor: k.Flavor}[by]
			i, ok := at[name]
			if !ok {
				i = len(rows)
				at[name] = i
				rows = append(rows, UsageRow{Name: name})
			}
			row := &rows[i]
			row.Kernels++
			row.Held, row.Measured, row.Busy = seconds(row.Held+k.Held), seconds(row.Measured+k.Measured),
				seconds(row.Busy+k.Busy)
		}
	}
	slices.SortStableFunc(rows, func(a, b UsageRow) int {
		return cmp.Or(cmp.Compare(b.Held, a.Held), cmp.Compare(a.Name, b.Name))
	})
	return rows
}
