package supervisor

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestPod_Waiting: the cluster's report on a missing container is the model's reason and a line in the waiting cell,
// until the kernel is up.
func TestPod_Waiting(t *testing.T) {
	p := newPod(t, nil)
	p.startSupervisor()
	c := p.attach("ann")
	say := func(version uint64, text string) {
		t.Helper()
		if err := p.client().SetWaiting(t.Context(),
			api.Waiting{Class: api.WaitingClass, Text: text, Version: version}); err != nil {
			t.Fatal(err)
		}
	}
	say(3, "pulling image \"x\"")
	say(2, "unschedulable")
	if st := p.until("reason", func(st api.Status) bool { return st.Reason != "" }); st.Reason != `pulling image "x"` ||
		st.State != api.Starting {
		t.Errorf("status is %+v", st)
	}
	id := c.execute("result up")
	second := c.execute("result second")
	shown := func(g got) string { return displayed(g).Data["text/plain"] }
	shows := func(g got) bool { return strings.HasSuffix(g.msgType, "display_data") }
	first := c.collect("a line", shows)
	g := first[len(first)-1]
	if g.msgType != "display_data" || g.parent != id || !strings.Contains(shown(g), "pulling image") {
		t.Errorf("got %s %s", g.msgType, g.Content)
	}
	name := displayed(g).Transient["display_id"]
	say(4, "back-off")
	next := c.collect("the next", shows)
	if g = next[len(next)-1]; g.msgType != "update_display_data" || g.parent != id ||
		!strings.HasSuffix(shown(g), "back-off") ||
		displayed(g).Transient["display_id"] != name {
		t.Errorf("got %s %s", g.msgType, g.Content)
	}
	p.startChild()
	all := c.result(id, second)
	i := slices.IndexFunc(all, shows)
	if i < 0 || all[i].msgType != "update_display_data" || len(displayed(all[i]).Data) > 0 {
		t.Errorf("the line stays: %s", summary(all))
	}
	if _, ok := find(all, "execute_result", id); !ok {
		t.Errorf("the cell did not run: %s", summary(all))
	}
	if st := p.until("idle", func(st api.Status) bool { return st.State == api.Idle }); st.Reason != "" {
		t.Errorf("status is %+v", st)
	}
	t.Run("rejected", func(t *testing.T) {
		for _, body := range []string{"", "{}", `{"class":"x","text":"","version":9}`,
			`{"class":"died","text":"","version":-1}`,
			`{"class":"died","text":"","version":"x"}`} {
			if _, err := p.ask("PUT", "/waiting", body); !strings.Contains(err, "400") {
				t.Errorf("%s: %s", body, err)
			}
		}
		if _, err := p.ask("PUT", "/waiting", `{"class":"waiting","text":"","version":"10"}`); err != "" {
			t.Error(err)
		}
	})
}

// TestPod_Never: the supervisor does not wait for a container that will never come, according to the cluster.
func TestPod_Never(t *testing.T) {
	p := newPod(t, nil)
	p.startSupervisor()
	c := p.attach("ann")
	id := c.execute("print 1")
	if err := p.client().SetWaiting(t.Context(),
		api.Waiting{Class: api.NeverClass, Text: "no such image", Version: 1}); err != nil {
		t.Fatal(err)
	}
	if got := output(c.result(id), id); !strings.Contains(got, "no such image") {
		t.Errorf("the cell says %q", got)
	}
	if st := p.until("dead", func(st api.Status) bool { return st.State == api.Dead }); st.Reason != "no such image" {
		t.Errorf("status is %+v", st)
	}
}

// TestPod_Pulled: the pull of an image is in the timeline once, before what was later, however often it is reported.
func TestPod_Pulled(t *testing.T) {
	p := newPod(t, nil)
	p.startSupervisor()
	at := time.Now().Truncate(time.Second)
	say := func(version uint64, text string, pull *api.Pull) {
		t.Helper()
		if err := p.client().SetWaiting(t.Context(),
			api.Waiting{Class: api.WaitingClass, Text: text, Version: version, Pulled: pull}); err != nil {
			t.Fatal(err)
		}
	}
	say(1, "its image is being pulled", nil)
	pull := &api.Pull{Image: "lab/image:2", At: at, Took: 1540 * time.Millisecond}
	say(2, "", pull)
	say(3, "", pull)
	say(4, "", &api.Pull{Image: "of a warm kernel", At: at.Add(-time.Hour)})
	status, body := p.ask("GET", "/timeline", "")
	if status != 200 {
		t.Fatal(status, body)
	}
	var life api.Timeline
	if err := json.Unmarshal([]byte(body), &life); err != nil {
		t.Fatal(err)
	}
	var pulls []api.TimelineEvent
	for i, e := range life.Events {
		if e.Kind == api.TimelinePulled {
			pulls = append(pulls, e)
		}
		if i > 0 && e.At.Before(life.Events[i-1].At) {
			t.Errorf("the events are not in their order: %+v", life.Events)
		}
	}
	if len(pulls) != 1 || pulls[0].Text != "lab/image:2 in 1.5s" || !pulls[0].At.Equal(at) {
		t.Errorf("got %+v", life.Events)
	}
}
