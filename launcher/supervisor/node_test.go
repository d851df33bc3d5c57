package supervisor

import (
	"slices"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestNodeNotice: a node that will go away is announced once in each open notebook, and is the model's reason until
// the notice is cleared.
func TestNodeNotice(t *testing.T) {
	i := newIdling(t, api.Cull{})
	c := i.connects("ann")
	i.connects("without a cell")
	i.sends(c, jupyter.Shell, "execute_request", "1")()
	i.status("execute_request", "1", api.Busy)()
	i.status("execute_request", "1", api.Idle)()
	i.s.SetNodeNotice("the cloud takes its machine back")
	i.s.SetNodeNotice("the cloud takes its machine back")
	line := func(text string) string {
		return "[ekg] This kernel may be ended soon: " + text + ". Its variables are lost then, so save what you need."
	}
	want := []string{"display_data " + line("the cloud takes its machine back")}
	if got := i.shown("ann"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	st, _ := i.s.Status()
	if m := i.s.Model(); m.Reason != "the cloud takes its machine back" || st.NodeNotice != m.Reason ||
		st.Reason != m.Reason {
		t.Errorf("model %q, status %+v", m.Reason, st)
	}
	i.s.SetNodeNotice("its node is drained")
	i.s.SetNodeNotice("")
	i.s.SetNodeNotice("")
	want = append(want, "update_display_data "+line("its node is drained"), "update_display_data ")
	if got := i.shown("ann"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := i.shown("without a cell"); len(got) != 0 {
		t.Errorf("got %q", got)
	}
	if m := i.s.Model(); m.Reason != "" {
		t.Errorf("the reason stays: %q", m.Reason)
	}
}

// TestNodeNotice_PageAway: a notebook whose page is away has the notice too, for its return.
func TestNodeNotice_PageAway(t *testing.T) {
	i := newIdling(t, api.Cull{})
	c := i.connects("ann")
	i.sends(c, jupyter.Shell, "execute_request", "1")()
	i.status("execute_request", "1", api.Busy)()
	i.status("execute_request", "1", api.Idle)()
	i.s.leave(c)
	i.s.SetNodeNotice("autoscalers may evict it")
	want := []string{"display_data [ekg] This kernel may be ended soon: autoscalers may evict it. " +
		"Its variables are lost then, so save what you need."}
	if got := i.shown("ann"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A notice wakes the status stream, comes over the supervisor's API, and a body without a text is rejected.
func TestPod_NodeNotice(t *testing.T) {
	p := newPod(t, nil)
	p.startSupervisor()
	p.startChild()
	p.until("idle", func(st api.Status) bool { return st.State == api.Idle })
	if err := p.client().SetNodeNotice(t.Context(), "its node\x1b[31m is drained"); err != nil {
		t.Fatal(err)
	}
	p.until("the notice", func(st api.Status) bool {
		return st.NodeNotice == "its node is drained" && st.Reason == st.NodeNotice && st.State == api.Idle
	})
	for _, body := range []string{"", "{}", "[]"} {
		if _, err := p.ask("PUT", "/node-notice", body); err == "" {
			t.Errorf("%q was accepted", body)
		}
	}
}
