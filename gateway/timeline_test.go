package gateway

import (
	"net/http"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestTimeline_Gateway: the gateway adds the kernel's creation, and passes on only plain texts.
func TestTimeline_Gateway(t *testing.T) {
	g := startGateway(t, nil)
	sup := g.fake.add(idA, "python3", api.Idle)
	sup.answerWith(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/timeline") {
			t.Errorf("asked for %s", r.URL)
		}
		_, _ = w.Write([]byte(`{"since":"2026-01-02T03:04:05Z","until":"2026-01-02T03:04:07Z","events":[` +
			`{"at":"2026-01-02T03:04:05Z","kind":"started","text":"a\u001b[31mb\nc"}],"events_dropped":1,` +
			`"step_seconds":1,"busy_seconds":[0.5,1],"other":"<script>"}`))
	})
	answer := g.do("GET", "/api/kernels/"+idA+"/timeline", "").want(t, 200, "")
	line := decode[kernels.Timeline](t, answer)
	if len(line.Events) != 2 || line.Events[0].Kind != api.TimelineCreated || line.Events[1].Text != "abc" ||
		len(line.Busy) != 2 || line.Dropped != 1 || line.Missing != "" || strings.Contains(answer.body, "script") {
		t.Errorf("got %s", answer.body)
	}
	sup.answerWith(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	g.do("GET", "/api/kernels/"+idA+"/timeline", "").want(t, 503, "cannot be reached")
	sup.answerWith(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"busy_seconds":"x"}`)) })
	g.do("GET", "/api/kernels/"+idA+"/timeline", "").want(t, 503, "invalid answer")
	g.do("GET", "/api/kernels/"+idUnknown+"/timeline", "").want(t, 404, "")
}
