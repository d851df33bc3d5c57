package kernels

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Bounds of what is passed on of a supervisor's timeline. A supervisor runs beside user code.
const (
	timelineEvents = 1000
	timelineSteps  = 2000
	timelineText   = 500 // bytes
)

// Timeline is the answer of GET /api/kernels/{id}/timeline.
type Timeline struct {
	api.Timeline
	Missing string `json:"missing,omitempty"` // one sentence: why only little is known
}

// Timeline returns a kernel's life. The supervisor holds it, so it survives this gateway. For a kernel without a
// supervisor, the timeline has what the launcher knows.
func (s *Service) Timeline(ctx context.Context, a *Act, id string) (Timeline, error) {
	k, err := s.Kernel(ctx, id)
	if err != nil {
		return Timeline{}, err
	}
	t, err := s.readTimeline(ctx, a, id)
	switch {
	case err == nil:
	case errors.Is(err, launcher.ErrNoSupervisor):
		t.Missing = "The kernel has no supervisor yet."
	case k.State == api.Dead && errors.Is(err, launcher.ErrNotFound):
		t.Missing = "The kernel's supervisor has ended, and its record with it."
	default:
		return Timeline{}, s.Explain(ctx, a.Who, id, err)
	}
	if t.Missing != "" {
		t.Timeline = littleTimeline(a.Who, &k)
	}
	t.Events = slices.Insert(t.Events, 0, api.TimelineEvent{At: k.Created.UTC(), Kind: api.TimelineCreated})
	return t, nil
}

// readTimeline asks the supervisor.
func (s *Service) readTimeline(ctx context.Context, a *Act, id string) (t Timeline, err error) {
	answer, err := s.edge.Ask(ctx, a, id, Question{Verb: "GET", Action: "timeline", Limit: ReadTime})
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal(answer, &t.Timeline); err != nil || len(t.Events) > timelineEvents ||
		len(t.Busy) > timelineSteps {
		return Timeline{}, ErrNoModel
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
func littleTimeline(who Caller, k *launcher.Kernel) api.Timeline {
	now := time.Now().UTC()
	t := api.Timeline{Since: k.Created.UTC(), Until: now, Events: []api.TimelineEvent{}, Busy: []float64{}}
	switch {
	case k.State == api.Dead:
		t.Until = k.LastActivity.UTC()
		t.Events = append(t.Events, api.TimelineEvent{At: t.Until, Kind: api.TimelineDead, Text: who.ReasonOf(k)})
	case k.Reason != "":
		t.Events = append(t.Events, api.TimelineEvent{At: now, Kind: api.TimelineWaiting, Text: who.ReasonOf(k)})
	}
	return t
}
