package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
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
			ended, err := g.kernels.Ended(ctx, r.Who, name == "culled")
			if err != nil {
				return err
			}
			return writeJSON(w, http.StatusOK, ended)
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

// getTimeline answers with a kernel's life.
func (g *Gateway) getTimeline(w http.ResponseWriter, r *call) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	t, err := g.kernels.Timeline(r.Context(), &r.Act, id)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, t)
}

func (g *Gateway) deleteKernel(w http.ResponseWriter, r *call) error {
	id, err := g.kernelID(r)
	if err == nil {
		err = g.kernels.Stop(r.Context(), &r.Act, id, "it was shut down on request")
	}
	return noContent(w, err)
}

func (g *Gateway) interruptKernel(w http.ResponseWriter, r *call) error {
	id, err := g.kernelID(r)
	if err == nil {
		err = g.kernels.Tell(r.Context(), &r.Act, id, "interrupt")
	}
	return noContent(w, err)
}

// wakeKernel answers with 202 if the kernel may be parked, and with 204 if it does nothing.
func (g *Gateway) wakeKernel(w http.ResponseWriter, r *call) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	told, err := g.kernels.Wake(r.Context(), &r.Act, id)
	if err == nil && told {
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	return noContent(w, err)
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
		return kernels.ErrNoModel
	}
	g.models.complete(&model, r.Who, &k)
	return writeJSON(w, http.StatusOK, model)
}

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
	for _, text := range []*string{&m.CullAt, &m.KeepUntil, &m.Parked.KeepGPUUntil} {
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
