package supervisor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/routes"
)

func keeps(at, until time.Duration) func(i *idling) []happening {
	return func(i *idling) []happening {
		return []happening{{at, func() {
			if err := i.s.Keep(false, idlingBegin.Add(until)); err != nil {
				i.t.Error(err)
			}
		}}}
	}
}

// TestCull_Keep: a request beyond the limits is rejected, and the error names the limit.
func TestCull_Keep(t *testing.T) {
	for _, tt := range []struct {
		name  string
		cull  api.Cull
		until time.Duration
		want  int
		words string
	}{
		{"in the past", api.Cull{KeepLimit: time.Hour}, -time.Second, 400, "keep_until is in the past"},
		{"too far", api.Cull{KeepLimit: time.Hour}, time.Hour + time.Second, 403,
			"at most 1h0m0s from now, which is 2026-01-01T01:00:00Z"},
		{"not at all", api.Cull{}, time.Minute, 403, "cannot be kept here"},
		{"longer than it may live", api.Cull{KeepLimit: 9 * time.Hour, MaxAge: 2 * time.Hour}, 3 * time.Hour, 403,
			"longer than 2h0m0s here: keep_until can be at most 2026-01-01T02:00:00Z"},
		{"as far as possible", api.Cull{KeepLimit: time.Hour}, time.Hour, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := newIdling(t, tt.cull)
			err := i.s.Keep(false, idlingBegin.Add(tt.until))
			refused, _ := err.(routes.Error) //nolint:errorlint // nothing wraps it
			if refused.Status != tt.want || !strings.Contains(refused.Text, tt.words) {
				t.Errorf("%d %s", refused.Status, refused.Text)
			}
			if kept := i.s.Model().KeepUntil != ""; kept != (err == nil) {
				t.Errorf("kept is %v", kept)
			}
		})
	}
}

// TestCull_Warning: one line in each open notebook says when the kernel will be culled. It disappears when the kernel
// is used, and reports the end.
func TestCull_Warning(t *testing.T) {
	begin := func(cull api.Cull) (*idling, *clientConn) {
		i := newIdling(t, cull)
		c := i.connects("ann")
		away := i.connects("bob")
		i.connects("without a cell")
		i.sends(c, jupyter.Shell, "execute_request", "1")()
		i.sends(away, jupyter.Shell, "execute_request", "2")()
		for _, id := range []string{"1", "2"} {
			i.status("execute_request", id, api.Busy)()
			i.status("execute_request", id, api.Idle)()
		}
		i.s.leave(away)
		return i, c
	}
	want := func(t *testing.T, i *idling, session string, want ...string) {
		t.Helper()
		if got := i.shown(session); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", session, got, want)
		}
	}
	const warning = "display_data [ekg] This kernel will be ended at 2026-01-01 01:00:00 UTC: by then it will have " +
		"been idle for 1h0m0s. Run a cell to keep it."
	cull := api.Cull{IdleTimeout: time.Hour, Warning: 5 * time.Minute, KeepLimit: 10 * time.Hour}
	t.Run("in time", func(t *testing.T) {
		i, _ := begin(cull)
		i.run(55*time.Minute - 1)
		want(t, i, "ann")
		i.run(55 * time.Minute)
		want(t, i, "ann", warning)
		want(t, i, "bob")
		want(t, i, "without a cell")
	})
	t.Run("polls do not change it, and a new page gets it", func(t *testing.T) {
		i, _ := begin(cull)
		i.run(56*time.Minute,
			happening{55*time.Minute + 1, i.status("kernel_info_request", "k", api.Busy)},
			happening{55*time.Minute + 2, i.status("kernel_info_request", "k", api.Idle)},
			happening{55*time.Minute + 3, func() { i.connects("bob") }})
		want(t, i, "ann", warning)
		want(t, i, "bob", warning)
	})
	t.Run("the next cell removes it", func(t *testing.T) {
		i, c := begin(cull)
		i.run(56*time.Minute, happening{55*time.Minute + 1, i.sends(c, jupyter.Shell, "execute_request", "3")})
		want(t, i, "ann", warning, "update_display_data ")
	})
	t.Run("it says that the kernel is kept", func(t *testing.T) {
		i, _ := begin(cull)
		i.run(56*time.Minute, keeps(55*time.Minute+1, 3*time.Hour)(i)...)
		want(t, i, "ann", warning, "update_display_data [ekg] This kernel is kept until 2026-01-01 03:00:00 UTC.")
	})
	t.Run("not before half of the time", func(t *testing.T) {
		i, _ := begin(api.Cull{IdleTimeout: 4 * time.Minute, Warning: 5 * time.Minute})
		i.run(2*time.Minute - 1)
		want(t, i, "ann")
		i.run(2 * time.Minute)
		if got := i.shown("ann"); len(got) != 1 || !strings.Contains(got[0], "at 2026-01-01 00:04:00 UTC") {
			t.Errorf("got %q", got)
		}
	})
	t.Run("the end", func(t *testing.T) {
		i, _ := begin(cull)
		_, reason := i.run(2 * time.Hour)
		i.s.mu.Lock()
		i.s.endRequestsLocked(&outcome{culled: api.LimitIdle, reason: reason})
		i.s.mu.Unlock()
		const end = "[ekg] This kernel was ended at 2026-01-01 01:00:00 UTC: it was idle for 1h0m0s. Its variables are gone."
		want(t, i, "ann", warning, "update_display_data "+end)
		want(t, i, "bob", "display_data "+end)
	})
}

// TestSupervisor_LateRequest: a request that comes after the kernel's end, but before its announcement, is answered.
func TestSupervisor_LateRequest(t *testing.T) {
	i := newIdling(t, api.Cull{})
	c := i.connects("ann")
	i.s.endRequestsLocked(&outcome{reason: "it was idle for 1h0m0s"})
	i.sends(c, jupyter.Shell, "execute_request", "1")()
	i.s.announce(api.Dead, "it was idle for 1h0m0s")
	entries, _, _ := i.s.log.Read(messagelog.Position{}, c.session.Number, 1<<20, nil)
	var said []string
	for _, e := range entries {
		if m := e.Message; jupyter.StringField(m.Parent, "msg_id") == "1" {
			said = append(said, jupyter.StringField(m.Header, "msg_type")+" "+jupyter.StringField(m.Content, "text")+
				jupyter.StringField(m.Content, "evalue")+jupyter.StringField(m.Content, "execution_state"))
		}
	}
	want := []string{
		"stream [ekg] The kernel died: it was idle for 1h0m0s" + `\n`,
		"execute_reply it was idle for 1h0m0s",
		"status idle",
	}
	if !slices.Equal(said, want) {
		t.Errorf("got %q, want %q", said, want)
	}
}
