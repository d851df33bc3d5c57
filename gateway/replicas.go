package gateway

import (
	"context"
	"net/http"
	"os"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// replicaModel is one of the gateways that serve the same kernels.
type replicaModel struct {
	Name    string `json:"name"`
	Self    bool   `json:"self,omitempty"` // it has answered this request
	Version string `json:"version,omitempty"`
	Started string `json:"started,omitempty"`
	Ready   bool   `json:"ready"`
	Problem string `json:"problem,omitempty"`
}

// listReplicas answers an admin with the gateways of the same kernels, and other users with an empty list. Where
// there are no users, the only owner is an admin.
func (g *Gateway) listReplicas(w http.ResponseWriter, r *call) error {
	if !r.Who.Sole && !r.Who.Admin {
		return writeJSON(w, http.StatusOK, []replicaModel{})
	}
	ctx, cancel := context.WithTimeout(r.Context(), kernels.ReadTime)
	defer cancel()
	all, err := g.viewReplicas(ctx)
	if err != nil {
		return err
	}
	answer := []replicaModel{}
	for _, one := range all {
		m := replicaModel{Name: one.Name, Self: one.Self, Version: one.Version, Ready: one.Ready, Problem: one.Problem}
		if one.Self {
			one.Started, m.Version, m.Ready = g.started, g.opts.Version, g.ready.Load()
		}
		if !one.Started.IsZero() {
			m.Started = api.Timestamp(one.Started)
		}
		answer = append(answer, m)
	}
	return writeJSON(w, http.StatusOK, answer)
}

// viewReplicas returns all gateways of the same kernels; at least this one.
func (g *Gateway) viewReplicas(ctx context.Context) ([]launcher.Gateway, error) {
	viewer := g.opts.Gateways
	if viewer == nil {
		viewer, _ = g.opts.Launcher.(launcher.GatewayViewer)
	}
	if viewer != nil {
		if all, err := viewer.ViewGateways(ctx); err != nil || len(all) > 0 {
			return all, err
		}
	}
	name, err := os.Hostname()
	if err != nil {
		name = "this gateway"
	}
	return []launcher.Gateway{{Name: name, Self: true}}, nil
}
