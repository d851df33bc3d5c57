package supervisor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

// idling is a supervisor whose kernel is only a series of messages, on a clock that a test moves.
type idling struct {
	t  *testing.T
	s  *Supervisor
	b  *bridge
	at time.Duration // since the kernel was up
}

var idlingBegin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newIdling(t *testing.T, cull api.Cull) *idling {
	t.Helper()
	i := &idling{t: t}
	cfg := api.Config{KernelID: testKernelID, LogLimit: 1 << 20, Cull: cull}
	if err := cull.Validate(); err != nil {
		t.Fatal(err)
	}
	i.s = New(cfg, "test", quiet())
	i.s.now = func() time.Time { return idlingBegin.Add(i.at) }
	i.s.use = activity.NewUse(i.s.now, &i.s.cfg.Cull)
	i.s.use.Started = idlingBegin
	i.b = &bridge{subscribed: true, ready: true}
	i.s.kernel.bridge = i.b
	i.s.use.Ready()
	return i
}

// happening is an event at a moment.
type happening struct {
	at time.Duration
	do func()
}

// run moves the clock and checks for culling when a kernel's life does: at the time that the last check has set, and
// after a change of use. It returns when and why the kernel is culled. The reason is "" if the kernel is not culled by
// the end.
func (i *idling) run(end time.Duration, events ...happening) (time.Duration, string) {
	i.t.Helper()
	slices.SortStableFunc(events, func(a, b happening) int { return int(a.at - b.at) })
	look := i.at
	for i.at <= end {
		for len(events) > 0 && events[0].at <= i.at {
			events[0].do()
			events = events[1:]
		}
		select {
		case <-i.s.culling.changed:
			look = i.at
		default:
		}
		if i.at >= look {
			i.s.mu.Lock()
			reason, limit, pause := i.s.culling.check(false)
			i.s.mu.Unlock()
			if reason != "" {
				if word := map[string]string{api.LimitIdle: "idle", api.LimitBusy: "busy",
					api.LimitAge: "running"}[limit]; !strings.HasPrefix(
					reason,
					"it was "+word,
				) {
					i.t.Errorf("%q is for the limit %q", reason, limit)
				}
				return i.at, reason
			}
			if pause <= 0 {
				i.t.Fatalf("at %v it wants to look again after %v", i.at, pause)
			}
			look = i.at + pause
		}
		next := look
		if len(events) > 0 {
			next = min(next, events[0].at)
		}
		i.at = next
	}
	return 0, ""
}

// status returns a function that delivers a status of the kernel.
func (i *idling) status(msgType, id string, state api.State) func() {
	return func() {
		parent := jupyter.New(jupyter.Shell, msgType, "ann", nil, struct{}{})
		parent.Header = fmt.Appendf(nil, `{"msg_id":%q,"msg_type":%q,"session":"ann"}`, id, msgType)
		content := notice.Status{ExecutionState: string(state)}
		i.s.deliver(i.b, jupyter.New(jupyter.IOPub, "status", "kernel", parent.Header, content))
	}
}

// sends returns a function that sends a client's message. The message waits for the kernel.
func (i *idling) sends(c *clientConn, channel jupyter.Channel, msgType, id string) func() {
	return func() {
		m := jupyter.New(channel, msgType, "ann", nil, struct{}{})
		m.Header = fmt.Appendf(nil, `{"msg_id":%q,"msg_type":%q,"session":"ann"}`, id, msgType)
		h, err := jupyter.ParseHeader(m.Header)
		if err != nil {
			i.t.Fatal(err)
		}
		if end := i.s.accept(c, m, h); end != nil {
			i.t.Fatal(end.Reason)
		}
	}
}

// connects connects a client and makes its connection active.
func (i *idling) connects(session string) *clientConn {
	i.t.Helper()
	c := &clientConn{s: i.s}
	if err := i.s.join(c, session, ""); err != nil {
		i.t.Fatal(err)
	}
	i.s.mu.Lock()
	i.s.clients.sessions.Activate(c.attachment)
	i.s.mu.Unlock()
	return c
}

// shown returns the lines that cells of a session show or have shown, in order.
func (i *idling) shown(session string) []string {
	i.s.mu.Lock()
	sess := i.s.clients.sessions.Find(session)
	i.s.mu.Unlock()
	entries, _, _ := i.s.log.Read(messagelog.Position{}, sess.Number, 1<<20, nil)
	var all []string
	for _, e := range entries {
		m := e.Message
		if t := jupyter.StringField(m.Header, "msg_type"); t == "display_data" || t == "update_display_data" {
			all = append(all, t+" "+displayed(got{Message: m}).Data["text/plain"])
		}
	}
	return all
}

const never = time.Duration(0)

// TestCull checks the policy for every type of message: short, long or without an end, with and without clients. The
// timeout is an hour, and the message comes after 30 minutes.
func TestCull(t *testing.T) {
	types := []string{
		"execute_request",
		"kernel_info_request",
		"complete_request",
		"is_complete_request",
		"inspect_request",
		"history_request",
		"comm_open",
		"comm_msg",
		"comm_close",
		"comm_info_request",
		"debug_request",
		"create_subshell_request",
		"list_subshell_request",
		"usage_request",
	}
	const begin = 30 * time.Minute
	kinds := []struct {
		name  string
		lasts time.Duration // 0: it does not end
		// when the kernel is culled if the message has no effect on the idle clock
		other time.Duration
	}{
		{"at once", 100 * time.Millisecond, time.Hour},
		{"for ten minutes", 10 * time.Minute, time.Hour},
		{
			"over the end",
			29*time.Minute + 59*time.Second + 950*time.Millisecond,
			time.Hour + 4*time.Minute + 59*time.Second + 950*time.Millisecond,
		},
		{"for two hours", 2 * time.Hour, 2*time.Hour + 35*time.Minute}, // the warning comes first
		{"without an end", 0, never},
	}
	connections := []struct {
		name       string
		connected  bool
		unattended bool
		protects   bool
	}{{"no page open", false, false, false}, {"a page open", true, false, false},
		{"no page open, and pages protect", false, true, false}, {"a page open, and pages protect", true, true, true}}
	for _, msgType := range types {
		for _, kind := range kinds {
			for _, c := range connections {
				t.Run(fmt.Sprintf("%s/%s/%s", msgType, kind.name, c.name), func(t *testing.T) {
					i := newIdling(t, api.Cull{IdleTimeout: time.Hour, Warning: 5 * time.Minute, Unattended: c.unattended})
					if c.connected {
						i.connects("ann")
					}
					events := []happening{{begin, i.status(msgType, "1", api.Busy)}}
					want := kind.other
					if kind.lasts > 0 {
						end := begin + kind.lasts
						events = append(events, happening{end, i.status(msgType, "1", api.Idle)})
						if msgType == "execute_request" {
							want = end + time.Hour
						}
					}
					if c.protects {
						want = never
					}
					at, reason := i.run(100*time.Hour, events...)
					if at != want {
						t.Errorf("culled at %v (%s), want %v", at, reason, want)
					}
					if at != never && !strings.HasPrefix(reason, "it was idle for 1h") && kind.lasts < time.Hour {
						t.Errorf("the reason is %q", reason)
					}
				})
			}
		}
	}
}

// TestCull_More checks cases that do not depend on the type of a message.
func TestCull_More(t *testing.T) {
	const hour, minute = time.Hour, time.Minute
	for _, tt := range []struct {
		name   string
		cull   api.Cull
		events func(i *idling) []happening
		want   time.Duration
		reason string
	}{
		{"nothing is set", api.Cull{KeepLimit: hour}, nil, never, ""},
		{"nothing happens", api.Cull{IdleTimeout: hour}, nil, hour, "it was idle for 1h0m0s"},
		{"a cell waits for a kernel that does nothing", api.Cull{IdleTimeout: hour}, func(i *idling) []happening {
			return []happening{{minute, i.sends(i.connects("ann"), jupyter.Shell, "execute_request", "1")}}
		}, never, ""},
		{"a poll is never answered", api.Cull{IdleTimeout: hour}, func(i *idling) []happening {
			return []happening{{minute, i.sends(i.connects("ann"), jupyter.Control, "debug_request", "1")}}
		}, hour, "it was idle for 1h0m0s"},
		{"polls every second", api.Cull{IdleTimeout: hour}, func(i *idling) (all []happening) {
			for n := range 7200 {
				id, at := fmt.Sprint(n), time.Duration(n)*time.Second
				all = append(all, happening{at, i.status("kernel_info_request", id, api.Busy)},
					happening{at + time.Millisecond, i.status("kernel_info_request", id, api.Idle)})
			}
			return all
		}, hour + time.Millisecond, "it was idle for 1h0m0s"},
		{"an answer to a prompt", api.Cull{IdleTimeout: hour}, func(i *idling) []happening {
			return []happening{{minute, i.sends(i.connects("ann"), jupyter.Stdin, "input_reply", "1")}}
		}, hour + minute, "it was idle for 1h0m0s"},
		{"a prompt without an answer", api.Cull{IdleTimeout: hour}, func(i *idling) []happening {
			return []happening{{minute, i.status("execute_request", "1", api.Busy)}}
		}, never, ""},
		{"a cell beside another in a subshell", api.Cull{IdleTimeout: hour}, func(i *idling) []happening {
			return []happening{{minute, i.status("execute_request", "1", api.Busy)},
				{2 * minute, i.status("execute_request", "2", api.Busy)},
				{3 * minute, i.status("execute_request", "2", api.Idle)}, {5 * hour, i.status("execute_request", "1", api.Idle)}}
		}, 6 * hour, "it was idle for 1h0m0s"},
		{"a cell behind another", api.Cull{IdleTimeout: hour}, func(i *idling) []happening {
			c := i.connects("ann")
			return []happening{{minute, i.sends(c, jupyter.Shell, "execute_request", "1")},
				{minute, i.sends(c, jupyter.Shell, "execute_request", "2")},
				{minute, i.status("execute_request", "1", api.Busy)}, {4 * hour, i.status("execute_request", "1", api.Idle)},
				{6 * hour, i.status("execute_request", "2", api.Busy)}, {7 * hour, i.status("execute_request", "2", api.Idle)}}
		}, 8 * hour, "it was idle for 1h0m0s"},
		{"a cell whose idle is lost", api.Cull{IdleTimeout: hour}, func(i *idling) []happening {
			c := i.connects("ann")
			return []happening{{minute, i.sends(c, jupyter.Shell, "execute_request", "1")},
				{minute, i.status("execute_request", "1", api.Busy)},
				{2 * minute, func() {
					i.s.mu.Lock()
					defer i.s.mu.Unlock()
					i.s.clients.abort(i.s.clients.requests.ByID("1")[0], "", "", "")
				}}}
		}, hour + 2*minute, "it was idle for 1h0m0s"},
		{"output of a thread", api.Cull{IdleTimeout: hour}, func(i *idling) (all []happening) {
			for n := range 200 {
				all = append(all, happening{time.Duration(n) * minute, func() {
					i.s.deliver(i.b, jupyter.New(jupyter.IOPub, "stream", "kernel", nil, notice.Stream{Name: "stdout", Text: "x"}))
				}})
			}
			return all
		}, hour, "it was idle for 1h0m0s"},
		{"a kernel that starts is not idle", api.Cull{IdleTimeout: hour}, func(i *idling) []happening {
			i.s.use.Reset(api.Starting)
			return []happening{{3 * hour, func() { i.s.mu.Lock(); defer i.s.mu.Unlock(); i.s.use.Ready() }}}
		}, 4 * hour, "it was idle for 1h0m0s"},
		{"a new page does not count", api.Cull{IdleTimeout: hour}, func(i *idling) []happening {
			return []happening{{minute, func() { i.connects("ann") }}}
		}, hour, "it was idle for 1h0m0s"},
		{"pages protect until all are closed", api.Cull{IdleTimeout: hour, Unattended: true}, func(i *idling) []happening {
			a, b := i.connects("ann"), i.connects("bob")
			return []happening{{minute, func() { i.s.leave(a) }}, {9 * hour, func() { i.s.leave(b) }}}
		}, 10 * hour, "it was idle for 1h0m0s"},
		{"busy kernels are culled by setting", api.Cull{IdleTimeout: hour, Busy: true}, func(i *idling) []happening {
			return []happening{{minute, i.status("execute_request", "1", api.Busy)}, {2 * minute, func() {
				i.s.deliver(i.b, jupyter.New(jupyter.IOPub, "stream", "kernel", nil, notice.Stream{Name: "stdout", Text: "x"}))
			}}}
		}, hour + 2*minute, "it was idle for 1h0m0s"},
		{"a cell that takes too long", api.Cull{BusyLimit: 2 * hour}, func(i *idling) []happening {
			return []happening{{minute, i.status("execute_request", "1", api.Busy)},
				{hour, i.status("execute_request", "1", api.Idle)},
				{hour, i.status("execute_request", "2", api.Busy)}}
		}, 3 * hour, "it was busy with one request for 2h0m0s"},
		{"too old, and busy", api.Cull{MaxAge: 24 * hour, IdleTimeout: 48 * hour}, func(i *idling) []happening {
			return []happening{{23 * hour, i.status("execute_request", "1", api.Busy)}}
		}, 24 * hour, "it was running for 24h0m0s, as long as kernels may here"},
		{"processes that compute", api.Cull{IdleTimeout: hour, CPU: 0.5, Warning: 5 * minute}, func(i *idling) []happening {
			i.s.use.Computes = true
			return []happening{{3 * hour, func() {
				i.s.mu.Lock()
				defer i.s.mu.Unlock()
				i.s.use.Computes = false
				i.s.use.Worked()
			}}}
		}, 3*hour + 5*minute, "it was idle for 3h5m0s"},
		{"kept", api.Cull{IdleTimeout: hour, KeepLimit: 10 * hour}, keeps(minute, 8*hour), 8 * hour,
			"it was idle for 8h0m0s"},
		{"kept, and no more", api.Cull{IdleTimeout: hour, KeepLimit: 10 * hour}, func(i *idling) []happening {
			return append(keeps(minute, 8*hour)(i), happening{2 * hour, func() {
				if err := i.s.Keep(false, time.Time{}); err != nil {
					i.t.Error(err)
				}
			}})
		}, 2 * hour, "it was idle for 2h0m0s"},
		{"kept for less than it would be idle", api.Cull{IdleTimeout: 3 * hour, KeepLimit: 10 * hour}, keeps(minute, hour),
			3 * hour, "it was idle for 3h0m0s"},
		{"kept while a cell takes too long", api.Cull{BusyLimit: 2 * hour, KeepLimit: 10 * hour},
			func(i *idling) []happening {
				return append(keeps(minute, 8*hour)(i), happening{0, i.status("execute_request", "1", api.Busy)})
			}, 8 * hour, "it was busy with one request for 8h0m0s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := newIdling(t, tt.cull)
			var events []happening
			if tt.events != nil {
				events = tt.events(i)
			}
			if at, reason := i.run(50*time.Hour, events...); at != tt.want || reason != tt.reason {
				t.Errorf("culled at %v: %q; want %v: %q", at, reason, tt.want, tt.reason)
			}
		})
	}
}
