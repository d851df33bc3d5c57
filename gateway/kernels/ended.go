package kernels

import (
	"context"
	"math"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Ended is a kernel that was culled or died, as its owner sees it.
type Ended struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Owner    string `json:"owner,omitempty"` // absent if the gateway has no users
	Reason   string `json:"reason"`
	EndedAt  string `json:"ended_at"`
	CulledAt string `json:"culled_at,omitempty"` // EndedAt, if it was culled

	// Its usage since it was started; absent if unknown.
	StartedAt  string     `json:"started_at,omitempty"`
	Seconds    int64      `json:"seconds,omitempty"`
	GPUs       gpu.Amount `json:"gpus,omitempty"`
	GPUSeconds int64      `json:"gpu_seconds,omitempty"`
}

// Ended lists the caller's own kernels that were culled or died in the last days, or only the culled ones.
func (s *Service) Ended(ctx context.Context, who Caller, culled bool) ([]Ended, error) {
	all, err := s.launcher.Ended(ctx, who.ownersName())
	if err != nil {
		return nil, err
	}
	models := make([]Ended, 0, len(all))
	for _, e := range all {
		if !who.Owns(e.Owner) || culled && !e.Culled {
			continue
		}
		m := Ended{ID: e.ID, Name: e.SpecName, Reason: e.Reason, EndedAt: api.Timestamp(e.At), Seconds: e.Seconds,
			GPUs: e.GPUs, GPUSeconds: int64(math.Round(e.GPUs.Float() * float64(e.Seconds)))}
		if !who.Sole {
			m.Owner = e.Owner
		}
		if e.Culled {
			m.CulledAt = m.EndedAt
		}
		if !e.Started.IsZero() {
			m.StartedAt = api.Timestamp(e.Started)
		}
		models = append(models, m)
	}
	return models, nil
}
