package gateway

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// modelTime bounds the wait for a supervisor's model, for which there is a substitute.
const modelTime = 3 * time.Second

// createKernel answers POST /api/kernels.
func (g *Gateway) createKernel(w http.ResponseWriter, r *call) error {
	body, err := g.bodies.object(w, r)
	if err != nil {
		return err
	}
	wish, err := wishOf(g.kernels, body)
	if err != nil {
		return err
	}
	return g.kernels.Start(r.Context(), &r.Act, wish, func(k launcher.Kernel) error {
		w.Header().Set("Location", g.base+"/api/kernels/"+k.ID)
		return writeJSON(w, http.StatusCreated, g.models.modelFor(r.Who, &k))
	})
}

// kernelID returns the kernel id of the path, and claims the kernel, since its client knows the id. An invalid id names
// no kernel, as in Jupyter Server.
func (g *Gateway) kernelID(r *call) (string, error) {
	id := r.PathValue("id")
	if !launcher.ValidID(id) {
		return "", refuse(http.StatusNotFound, "Kernel does not exist: %s", kernels.Shorten(id))
	}
	g.opts.Launcher.Claim(id)
	return id, nil
}

func (g *Gateway) listKernels(w http.ResponseWriter, r *call) error {
	ctx, cancel := context.WithTimeout(r.Context(), kernels.ReadTime)
	defer cancel()
	for _, name := range []string{"culled", "ended"} {
		switch v := r.URL.Query().Get(name); v {
		case "", "0", "false":
		case "1", "true":
			return g.listEnded(ctx, w, r.Who, name == "culled")
		default:
			return refuse(http.StatusBadRequest, "The parameter %s is not 1 or 0.", name)
		}
	}
	// Never an incomplete list: front ends drop kernels that are missing from it.
	kernels, err := g.kernels.List(ctx, r.Who)
	if err != nil {
		return err
	}
	texts, err := g.models.textsFor(r.Who, kernels)
	if err != nil {
		return err
	}
	return writeTexts(w, texts)
}

// getKernel answers with the supervisor's model, which is newer than the launcher's. If the supervisor does not answer,
// the launcher's model is used, since front ends drop a kernel after any error here.
func (g *Gateway) getKernel(w http.ResponseWriter, r *call) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	k, err := g.kernels.Kernel(r.Context(), id)
	if err != nil {
		return err
	}
	if k.State != api.Dead {
		question := kernels.Question{Verb: http.MethodGet, Limit: modelTime}
		answer, err := g.Ask(r.Context(), &r.Act, id, question)
		if err == nil {
			model, ok := readModel(answer, id)
			switch {
			case ok && model.ExecutionState != api.Dead:
				g.models.complete(&model, r.Who, &k)
				return writeJSON(w, http.StatusOK, model)
			case ok:
				g.kernels.IsDead(r.Context(), id) // the launcher may know the reason better, such as who deleted its pod
			}
		}
		if k, err = g.kernels.Kernel(r.Context(), id); err != nil {
			return err
		}
	}
	return writeJSON(w, http.StatusOK, g.models.modelFor(r.Who, &k))
}

// endedModel is the model of a kernel that was culled or died.
type endedModel struct {
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

// listEnded lists the caller's own kernels that were culled or died in the last days, or only the culled ones.
func (g *Gateway) listEnded(ctx context.Context, w http.ResponseWriter, who kernels.Caller, culled bool) error {
	all, err := g.opts.Launcher.Ended(ctx)
	if err != nil {
		return err
	}
	models := make([]endedModel, 0, len(all))
	for _, e := range all {
		if !who.Owns(e.Owner) || culled && !e.Culled {
			continue
		}
		m := endedModel{ID: e.ID, Name: e.SpecName, Reason: e.Reason, EndedAt: api.Timestamp(e.At), Seconds: e.Seconds,
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
	return writeJSON(w, http.StatusOK, models)
}

func (g *Gateway) deleteKernel(w http.ResponseWriter, r *call) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	if err := g.kernels.Stop(r.Context(), &r.Act, id, "it was shut down on request"); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (g *Gateway) interruptKernel(w http.ResponseWriter, r *call) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	if _, err := g.kernels.Kernel(r.Context(), id); err != nil {
		return err
	}
	if err := g.kernels.Interrupt(r.Context(), &r.Act, id); err != nil {
		return kernels.NotYet(g.kernels.Explain(r.Context(), id, err))
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// restartKernel makes the supervisor restart its kernel, and answers with the supervisor's model, or with the
// launcher's if the supervisor was started again, too.
func (g *Gateway) restartKernel(w http.ResponseWriter, r *call) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	answer, k, err := g.kernels.Restart(r.Context(), &r.Act, id)
	if err != nil {
		return err
	}
	if answer == nil {
		return writeJSON(w, http.StatusOK, g.models.modelFor(r.Who, &k))
	}
	model, ok := readModel(answer, id)
	if !ok {
		return errNoModel
	}
	g.models.complete(&model, r.Who, &k)
	return writeJSON(w, http.StatusOK, model)
}

var errNoModel = &problem{status: http.StatusServiceUnavailable,
	message: "The kernel's supervisor gave an invalid answer."}

// readModel reads a kernel model. The gateway encodes it again, since the supervisor runs beside user code, and front
// ends reject a whole list for one invalid member.
func readModel(answer []byte, id string) (kernelModel, bool) {
	var m kernelModel
	if err := json.Unmarshal(answer, &m); err != nil || m.ID != id || m.Name == "" || m.ExecutionState == "" {
		return kernelModel{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, m.LastActivity)
	if err != nil {
		return kernelModel{}, false
	}
	m.LastActivity = api.Timestamp(at)
	for _, text := range []*string{&m.CullAt, &m.KeepUntil} {
		if *text == "" {
			continue
		}
		if at, err = time.Parse(time.RFC3339Nano, *text); err != nil {
			return kernelModel{}, false
		}
		*text = api.Timestamp(at)
	}
	return m, true
}
