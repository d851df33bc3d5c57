package supervisor

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func (r *running) timeline() (t api.Timeline, kinds string) {
	r.t.Helper()
	status, body := r.request("GET", "/timeline", "")
	if err := json.Unmarshal([]byte(body), &t); err != nil || status != 200 {
		r.t.Fatalf("%d %s: %v", status, body, err)
	}
	var all []string
	for _, e := range t.Events {
		all = append(all, string(e.Kind))
	}
	return t, strings.Join(all, " ")
}

// TestTimeline: a kernel's timeline has its start, its busy time, what its users did, its death and its end.
func TestTimeline(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) {
		c.Cull = api.Cull{IdleTimeout: time.Hour, KeepLimit: time.Hour}
		c.RestartLimit = 1
	}).ready()
	if _, kinds := r.timeline(); kinds != "started ready" {
		t.Errorf("after the start: %s", kinds)
	}
	c := r.dial(dialOption{session: "ann", v1: true})
	c.result(c.execute("sleep 1s"))
	line, _ := r.timeline()
	if line.Memory < 1<<20 || time.Since(line.MemoryAt) > 10*time.Second || r.model().Memory != line.Memory {
		t.Errorf("its memory is %d, measured at %v", line.Memory, line.MemoryAt)
	}
	for range 5 { // a measurement a second; the time shown is that of its end
		if next, _ := r.timeline(); next.MemoryAt != line.MemoryAt && next.MemoryAt.Sub(line.MemoryAt) < memoryReadPause*3/4 {
			t.Errorf("its memory is measured at %v and again at %v", line.MemoryAt, next.MemoryAt)
		}
	}
	busy := 0.0
	for _, s := range line.Busy {
		busy += s
	}
	if busy < 0.9 || busy > 5 || line.Until.Sub(line.Since).Seconds() > float64(len(line.Busy))*line.Step {
		t.Errorf("busy for %v s: %+v", busy, line)
	}
	until := time.Now().Add(time.Minute).UTC().Format(time.RFC3339)
	for _, step := range []struct{ method, path, body string }{
		{"PATCH", "", `{"keep_until": "` + until + `"}`}, {"POST", "/interrupt", ""}, {"POST", "/restart", ""},
	} {
		if status, body := r.request(step.method, step.path, step.body); status >= 300 {
			t.Fatalf("%s %s: %d %s", step.method, step.path, status, body)
		}
	}
	r.ready()
	if _, kinds := r.timeline(); kinds != "started ready kept interrupted restarted ready" {
		t.Errorf("after a restart: %s", kinds)
	}
	c.execute("exit 7")
	r.until("started again", func(st api.Status) bool { return st.Epoch == 3 && st.State == api.Idle })
	r.dial(dialOption{session: "bob", v1: true}).execute("exit 7")
	r.until("dead", func(st api.Status) bool { return st.State == api.Dead })
	line, kinds := r.timeline()
	last := line.Events[len(line.Events)-1].Text
	if !strings.HasSuffix(kinds, "died restarted ready dead") || !strings.Contains(last, "7") {
		t.Errorf("after its death: %s: %+v", kinds, line.Events)
	}
}

// TestTimeline_Warm: the timeline of a warm kernel begins when it gets its owner.
func TestTimeline_Warm(t *testing.T) {
	for _, kind := range []string{api.WarmProcess, api.WarmContainer} {
		t.Run(kind, func(t *testing.T) {
			r := startSupervisor(t, func(c *api.Config) { c.Warm, c.Argv = kind, fakeKernelArgv("--python") })
			if kind == api.WarmProcess {
				r.ready()
			}
			began := time.Now()
			if status, body := r.request("PUT", "/assignment", `{"id": "one", "owner": "ann"}`); status != 204 {
				t.Fatalf("%d %s", status, body)
			}
			r.ready()
			line, kinds := r.timeline()
			if kinds != "started ready" || line.Since.Before(began) || line.Events[0].At.Before(line.Since) {
				t.Errorf("assigned at %v: %+v", began, line)
			}
		})
	}
}
