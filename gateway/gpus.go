package gateway

import "net/http"

// getGPUs answers with all GPUs as the caller may see them.
func (g *Gateway) getGPUs(w http.ResponseWriter, r *call) error {
	view, err := g.kernels.GPUs(r.Context(), r.Who)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, view)
}

// getUsage answers with the usage of GPUs.
func (g *Gateway) getUsage(w http.ResponseWriter, r *call) error {
	query := r.URL.Query()
	usage, err := g.kernels.Usage(r.Context(), r.Who, query.Get("since"), query.Get("by"), query.Get("step"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, usage)
}

// listLimits answers with the limits that a start of the caller has to keep, and how far they are reached.
func (g *Gateway) listLimits(w http.ResponseWriter, r *call) error {
	uses, err := g.kernels.LimitUses(r.Context(), r.Who)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, uses)
}
