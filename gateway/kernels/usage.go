package kernels

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/gpus"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// defaultUsageTime is the time of which usage is shown unless a client asks for another.
const defaultUsageTime = 24 * time.Hour

// Usage is the answer of GET /api/usage.
type Usage struct {
	Since string          `json:"since"`
	Until string          `json:"until"`
	By    string          `json:"by"`
	Usage []gpus.UsageRow `json:"usage"` // the one that held most first

	// Steps are the usage over time; nil unless the parameter step asks for it.
	Steps *UsageSteps `json:"steps,omitempty"`
}

// Usage returns the usage of GPUs: of the caller's own kernels, and for an admin of all. The texts are those of the
// parameters since, by and step; "" is their default.
func (s *Service) Usage(ctx context.Context, who Caller, since, by, step string) (Usage, error) {
	now := time.Now()
	from := now.Add(-defaultUsageTime)
	if since != "" {
		var err error
		if from, err = usageSince(since, now); err != nil {
			return Usage{}, err
		}
	}
	by = cmp.Or(by, gpus.UsageByUser)
	if !slices.Contains(gpus.UsageGroups, by) {
		return Usage{}, refuse(Invalid, "The parameter by is not user, spec, flavor or kernel.")
	}
	length, err := usageStep(step, from, now)
	if err != nil {
		return Usage{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, ReadTime)
	defer cancel()
	all, err := s.launcher.Usage(ctx, who.ownersName())
	if err != nil {
		return Usage{}, err
	}
	var own []launcher.KernelUsage
	rows := []gpus.UsageRow{}
	for _, u := range all {
		if u.Started.IsZero() || !who.Owns(u.Owner) {
			continue
		}
		row, ok := usageRow(u, from, now)
		if !ok {
			continue
		}
		own = append(own, u)
		if u.GPUs > 0 {
			rows = append(rows, row)
		}
	}
	answer := Usage{Since: api.Timestamp(from), Until: api.Timestamp(now), By: by, Usage: gpus.GroupUsage(rows, by)}
	if length > 0 {
		answer.Steps = stepsOf(own, by, length, from, now)
	}
	return answer, nil
}

// GPUSeconds returns for how long a kernel of an owner has held GPUs after a time. It returns 0 for a kernel that ended
// more than some days ago.
func (s *Service) GPUSeconds(ctx context.Context, owner, id string, since time.Time) (float64, error) {
	all, err := s.launcher.Usage(ctx, owner)
	if err != nil {
		return 0, err
	}
	return GPUSecondsOf(all, id, since, time.Now()), nil
}

// GPUSecondsOf returns for how long one of several kernels has held GPUs between two times.
func GPUSecondsOf(all []launcher.KernelUsage, id string, since, until time.Time) float64 {
	for i := range all {
		if all[i].ID == id && !all[i].Started.IsZero() {
			row, _ := usageRow(all[i], since, until)
			return row.Held
		}
	}
	return 0
}

// usageSince reads the parameter since: a time before now, or a duration before now.
func usageSince(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		if !at.Before(now) {
			return time.Time{}, refuse(Invalid, "The parameter since is in the future.")
		}
		return at, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, refuse(Invalid,
		"The parameter since is neither a time like 2006-01-02T15:04:05Z nor a duration like 24h.")
}

// usageRow returns a kernel's usage between two times, and false if it had ended before or had not begun. What its GPUs
// did, and for how long it was parked, is known for its whole life, so the part of it is proportional.
func usageRow(u launcher.KernelUsage, since, until time.Time) (gpus.UsageRow, bool) {
	end := usageEnd(&u, until)
	row := gpus.UsageRow{Name: u.ID, Kernels: 1, Owner: u.Owner, Spec: u.SpecName, Flavor: u.Flavor, GPUs: u.GPUs.Float(),
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
	had := whole - min(max(0, u.GPUUse.Parked), whole)
	row.Held = gpus.Seconds(part * had.Seconds())
	row.Measured = gpus.Seconds(part * min(u.GPUUse.Measured, had).Seconds())
	row.Busy = gpus.Seconds(part * max(0, min(u.GPUUse.Busy, u.GPUUse.Measured, had)).Seconds())
	return row, true
}
