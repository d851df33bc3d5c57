package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Bounds of what is passed on of a supervisor's timeline. A supervisor runs beside user code.
const (
	timelineEvents = 1000
	timelineSteps  = 2000
	timelineText   = 500 // bytes
)

// timeline is the answer of GET /api/kernels/{id}/timeline.
type timeline struct {
	api.Timeline
	Missing string `json:"missing,omitempty"` // one sentence: why only little is known
}

// getTimeline answers with a kernel's life. The supervisor holds it, so it survives this gateway. If there is no
// supervisor, the answer has what the launcher knows.
func (g *Gateway) getTimeline(w http.ResponseWriter, r *call) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	k, err := g.kernels.Kernel(r.Context(), id)
	if err != nil {
		return err
	}
	t, err := g.readTimeline(r, id)
	switch {
	case err == nil:
	case errors.Is(err, errNoRoute):
		t.Missing = "The kernel's supervisor is of an earlier release, which keeps no timeline."
	case errors.Is(err, launcher.ErrNoSupervisor):
		t.Missing = "The kernel has no supervisor yet."
	case k.State == api.Dead && errors.Is(err, launcher.ErrNotFound):
		t.Missing = "The kernel's supervisor has ended, and its record with it."
	default:
		return g.kernels.Explain(r.Context(), id, err)
	}
	if t.Missing != "" {
		t.Timeline = littleTimeline(&k)
	}
	t.Events = slices.Insert(t.Events, 0, api.TimelineEvent{At: k.Created.UTC(), Kind: api.TimelineCreated})
	return writeJSON(w, http.StatusOK, t)
}

// readTimeline asks the supervisor.
func (g *Gateway) readTimeline(r *call, id string) (t timeline, err error) {
	answer, err := g.Ask(r.Context(), &r.Act, id,
		kernels.Question{Verb: http.MethodGet, Action: "timeline", Limit: kernels.ReadTime})
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal(answer, &t.Timeline); err != nil || len(t.Events) > timelineEvents ||
		len(t.Busy) > timelineSteps {
		return timeline{}, errNoModel
	}
	for i := range t.Events {
		e := &t.Events[i]
		e.At, e.Text = e.At.UTC(), api.PlainText(e.Text, timelineText)
		e.Kind = api.TimelineKind(api.PlainText(string(e.Kind), timelineText))
	}
	if t.Busy == nil {
		t.Busy = []float64{}
	}
	return t, nil
}

// littleTimeline is what the launcher knows of a kernel without a supervisor.
func littleTimeline(k *launcher.Kernel) api.Timeline {
	now := time.Now().UTC()
	t := api.Timeline{Since: k.Created.UTC(), Until: now, Events: []api.TimelineEvent{}, Busy: []float64{}}
	switch {
	case k.State == api.Dead:
		t.Until = k.LastActivity.UTC()
		t.Events = append(t.Events, api.TimelineEvent{At: t.Until, Kind: api.TimelineDead, Text: k.Reason})
	case k.Reason != "":
		t.Events = append(t.Events, api.TimelineEvent{At: now, Kind: api.TimelineWaiting, Text: k.Reason})
	}
	return t
}
