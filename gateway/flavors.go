package gateway

import (
	"net/http"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// flavorModel is a flavor as users see it.
type flavorModel struct {
	Name         string     `json:"name"`
	Label        string     `json:"label"`
	Kind         string     `json:"kind"`
	GPUs         gpu.Amount `json:"gpus"` // that a kernel counts as, for limits
	Spot         bool       `json:"spot"`
	PricePerHour float64    `json:"price_per_hour,omitempty"`

	// Kernels of it that could start now, and that could run if nothing else ran. Absent if it is not known.
	Free  *int `json:"free,omitempty"`
	Total *int `json:"total,omitempty"`
}

// listFlavors lists the flavors that the caller may choose.
func (g *Gateway) listFlavors(w http.ResponseWriter, r *call) error {
	models := []flavorModel{}
	flavors := g.kernels.FlavorsOf(r.Who)
	rooms := g.kernels.RoomFor()
	for _, f := range flavors {
		m := flavorModel{
			Name: f.Name, Label: f.Title(), Kind: f.Kind(), GPUs: f.Size(), Spot: f.Spot, PricePerHour: f.PricePerHour,
		}
		if room, known := rooms[f.Name]; known {
			m.Free, m.Total = &room.Free, &room.Total
		}
		models = append(models, m)
	}
	return writeJSON(w, http.StatusOK, models)
}
