package gateway

import (
	"context"
	"net/http"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// limitUse is how far one limit is reached.
type limitUse struct {
	Limit string  `json:"limit"`
	Of    string  `json:"of,omitempty"` // the user, group or kernelspec
	Unit  string  `json:"unit"`         // "kernel" or "GPU"
	Most  float64 `json:"most"`
	Used  float64 `json:"used"`
}

// listLimits answers with the limits that a start of the caller has to keep, and how far they are reached. An admin
// reads also those of every user and group with a kernel. Where there are no users, all limits are the only owner's.
func (g *Gateway) listLimits(w http.ResponseWriter, r *call) error {
	ctx, cancel := context.WithTimeout(r.Context(), kernels.ReadTime)
	defer cancel()
	all, err := g.opts.Launcher.Kernels(ctx)
	if err != nil {
		return err
	}
	policy := g.opts.Limits
	own := launcher.Held{Owner: r.Who.Owner(), Groups: policy.Groups(r.Who.Groups)}
	starts := []launcher.Held{own}
	for _, spec := range g.opts.Specs.List() {
		if r.Who.SeesAll() || kernels.MayStart(r.Who, spec) == nil {
			starts = append(starts, launcher.Held{Owner: own.Owner, SpecName: spec.Name})
		}
	}
	var held []launcher.Held
	for i := range all {
		k := &all[i]
		if k.State == api.Dead {
			continue
		}
		h := launcher.Held{ID: k.ID, SpecName: k.SpecName, Owner: k.Owner, Groups: k.Groups, GPUs: k.GPUs, State: k.State}
		held = append(held, h)
		if r.Who.Admin {
			starts = append(starts, launcher.Held{Owner: h.Owner, Groups: h.Groups})
		}
	}
	answer := []limitUse{}
	for _, u := range policy.Uses(starts, held) {
		unit := "kernel"
		if u.GPUs {
			unit = "GPU"
		}
		answer = append(answer, limitUse{Limit: u.Limit, Of: u.Of, Unit: unit, Most: u.Most, Used: u.Used})
	}
	return writeJSON(w, http.StatusOK, answer)
}
