package supervisor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// idling is a supervisor with a kernel that exists only in what it says, on a clock that a test moves.
type idling struct {
	t  *testing.T
	s  *Supervisor
	b  *bridge
	at time.Duration // since the kernel was up
}

var idlingBegin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newIdling(t *testing.T, cull Cull) *idling {
	t.Helper()
	i := &idling{t: t}
	cfg := Config{KernelID: testKernelID, LogLimit: 1 << 20, Cull: cull}
	if err := cull.validate(); err != nil {
		t.Fatal(err)
	}
	i.s = New(cfg, "test", quiet())
	i.s.now = func() time.Time { return idlingBegin.Add(i.at) }
	i.s.clock = newClock(i.s.now, &i.s.cfg.Cull)
	i.s.started = idlingBegin
	i.b = &bridge{heard: true, ready: true}
	i.s.bridge = i.b
	i.s.clock.ready()
	return i
}

// happening is what comes at a moment.
type happening struct {
	at time.Duration
	do func()
}

// run lets time go on, as a kernel's life does: it looks when it has said that it would, and when it is told that there is
// news. It returns when and why the kernel is culled, or "" if it is not until the end.
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
		case <-i.s.useNews:
			look = i.at
		default:
		}
		if i.at >= look {
			reason, limit, pause := i.s.considerCull()
			if reason != "" {
				if word := map[string]string{LimitIdle: "idle", LimitBusy: "busy", LimitAge: "running"}[limit]; !strings.HasPrefix(reason, "it was "+word) {
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

// status delivers a status of the kernel.
func (i *idling) status(msgType, id, state string) func() {
	return func() {
		parent := wire.New(wire.Shell, msgType, "ann", nil, struct{}{})
		parent.Header = fmt.Appendf(nil, `{"msg_id":%q,"msg_type":%q,"session":"ann"}`, id, msgType)
		i.s.deliver(i.b, wire.New(wire.IOPub, "status", "kernel", parent.Header, statusContent{state}))
	}
}

// sends has a client send a message, which waits for the kernel.
func (i *idling) sends(c *conn, channel wire.Channel, msgType, id string) func() {
	return func() {
		m := wire.New(channel, msgType, "ann", nil, struct{}{})
		m.Header = fmt.Appendf(nil, `{"msg_id":%q,"msg_type":%q,"session":"ann"}`, id, msgType)
		h, err := wire.ParseHeader(m.Header)
		if err != nil {
			i.t.Fatal(err)
		}
		if end := i.s.accept(c, m, h); end != nil {
			i.t.Fatal(end.reason)
		}
	}
}

// connects has a client connect and say something that means nothing.
func (i *idling) connects(session string) *conn {
	i.t.Helper()
	c := &conn{s: i.s, news: newReader()}
	if err := i.s.join(c, session, ""); err != nil {
		i.t.Fatal(err)
	}
	i.s.mu.Lock()
	i.s.takePart(c)
	i.s.mu.Unlock()
	return c
}

// shown returns the lines that cells of a session show or have shown, in order.
func (i *idling) shown(session string) []string {
	i.s.mu.Lock()
	sess := i.s.sessions[session]
	i.s.mu.Unlock()
	entries, _, _ := i.s.log.read(position{}, sess, 1<<20, nil)
	var all []string
	for _, e := range entries {
		m := e.msg
		if t := wire.MsgType(m.Header); t == "display_data" || t == "update_display_data" {
			all = append(all, t+" "+displayed(got{Message: m}).Data["text/plain"])
		}
	}
	return all
}

const never = time.Duration(0)

// TestCull is the policy: every type of message, short and long and without an end, whoever is connected. The timeout is an hour,
// and the message comes after 30 minutes.
func TestCull(t *testing.T) {
	types := []string{"execute_request", "kernel_info_request", "complete_request", "is_complete_request", "inspect_request", "history_request",
		"comm_open", "comm_msg", "comm_close", "comm_info_request", "debug_request", "create_subshell_request", "list_subshell_request", "usage_request"}
	const begin = 30 * time.Minute
	kinds := []struct {
		name  string
		lasts time.Duration // 0: for ever
		// when a kernel is culled to which the message means nothing
		other time.Duration
	}{
		{"at once", 100 * time.Millisecond, time.Hour},
		{"for ten minutes", 10 * time.Minute, time.Hour},
		{"over the end", 29*time.Minute + 59*time.Second + 950*time.Millisecond, time.Hour + 4*time.Minute + 59*time.Second + 950*time.Millisecond},
		{"for two hours", 2 * time.Hour, 2*time.Hour + 35*time.Minute}, // not without its warning
		{"for ever", 0, never},
	}
	connections := []struct {
		name       string
		connected  bool
		unattended bool
		protects   bool
	}{{"nobody there", false, false, false}, {"a page open", true, false, false},
		{"nobody there, and pages protect", false, true, false}, {"a page open, and pages protect", true, true, true}}
	for _, msgType := range types {
		for _, counts := range []bool{false, true} {
			cull := Cull{IdleTimeout: time.Hour, Warning: 5 * time.Minute}
			if counts {
				cull.Activity = CullActivities()
			}
			restarts := msgType == "execute_request" || counts && msgType != "create_subshell_request" && msgType != "usage_request"
			for _, kind := range kinds {
				for _, c := range connections {
					t.Run(fmt.Sprintf("%s/counts %v/%s/%s", msgType, counts, kind.name, c.name), func(t *testing.T) {
						cull := cull
						cull.Unattended = c.unattended
						cull.Activity = slices.DeleteFunc(slices.Clone(cull.Activity), func(a string) bool { return a == activityConnections })
						i := newIdling(t, cull)
						if c.connected {
							i.connects("ann")
						}
						events := []happening{{begin, i.status(msgType, "1", stateBusy)}}
						want := kind.other
						if kind.lasts > 0 {
							end := begin + kind.lasts
							events = append(events, happening{end, i.status(msgType, "1", stateIdle)})
							if restarts {
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
}

// TestCull_more is what no table of types has.
func TestCull_more(t *testing.T) {
	const hour, minute = time.Hour, time.Minute
	for _, tt := range []struct {
		name   string
		cull   Cull
		events func(i *idling) []happening
		want   time.Duration
		reason string
	}{
		{"nothing is set", Cull{KeepLimit: hour}, nil, never, ""},
		{"nothing happens", Cull{IdleTimeout: hour}, nil, hour, "it was idle for 1h0m0s"},
		{"a cell waits for a kernel that does nothing", Cull{IdleTimeout: hour}, func(i *idling) []happening {
			return []happening{{minute, i.sends(i.connects("ann"), wire.Shell, "execute_request", "1")}}
		}, never, ""},
		{"a poll is never answered", Cull{IdleTimeout: hour}, func(i *idling) []happening {
			return []happening{{minute, i.sends(i.connects("ann"), wire.Control, "debug_request", "1")}}
		}, hour, "it was idle for 1h0m0s"},
		{"polls every second", Cull{IdleTimeout: hour}, func(i *idling) (all []happening) {
			for n := range 7200 {
				id, at := fmt.Sprint(n), time.Duration(n)*time.Second
				all = append(all, happening{at, i.status("kernel_info_request", id, stateBusy)}, happening{at + time.Millisecond, i.status("kernel_info_request", id, stateIdle)})
			}
			return all
		}, hour + time.Millisecond, "it was idle for 1h0m0s"},
		{"an answer to a prompt", Cull{IdleTimeout: hour}, func(i *idling) []happening {
			return []happening{{minute, i.sends(i.connects("ann"), wire.Stdin, "input_reply", "1")}}
		}, hour + minute, "it was idle for 1h0m0s"},
		{"a prompt that nobody answers", Cull{IdleTimeout: hour}, func(i *idling) []happening {
			return []happening{{minute, i.status("execute_request", "1", stateBusy)}}
		}, never, ""},
		{"a cell beside another in a subshell", Cull{IdleTimeout: hour}, func(i *idling) []happening {
			return []happening{{minute, i.status("execute_request", "1", stateBusy)}, {2 * minute, i.status("execute_request", "2", stateBusy)},
				{3 * minute, i.status("execute_request", "2", stateIdle)}, {5 * hour, i.status("execute_request", "1", stateIdle)}}
		}, 6 * hour, "it was idle for 1h0m0s"},
		{"a cell behind another", Cull{IdleTimeout: hour}, func(i *idling) []happening {
			c := i.connects("ann")
			return []happening{{minute, i.sends(c, wire.Shell, "execute_request", "1")}, {minute, i.sends(c, wire.Shell, "execute_request", "2")},
				{minute, i.status("execute_request", "1", stateBusy)}, {4 * hour, i.status("execute_request", "1", stateIdle)},
				{6 * hour, i.status("execute_request", "2", stateBusy)}, {7 * hour, i.status("execute_request", "2", stateIdle)}}
		}, 8 * hour, "it was idle for 1h0m0s"},
		{"a cell whose idle is lost", Cull{IdleTimeout: hour}, func(i *idling) []happening {
			c := i.connects("ann")
			return []happening{{minute, i.sends(c, wire.Shell, "execute_request", "1")}, {minute, i.status("execute_request", "1", stateBusy)},
				{2 * minute, func() {
					i.s.mu.Lock()
					defer i.s.mu.Unlock()
					i.s.abort(i.s.requests["1"][0], "", "", "")
				}}}
		}, hour + 2*minute, "it was idle for 1h0m0s"},
		{"output of a thread", Cull{IdleTimeout: hour}, func(i *idling) (all []happening) {
			for n := range 200 {
				all = append(all, happening{time.Duration(n) * minute, func() {
					i.s.deliver(i.b, wire.New(wire.IOPub, "stream", "kernel", nil, streamContent{"stdout", "x"}))
				}})
			}
			return all
		}, hour, "it was idle for 1h0m0s"},
		{"a kernel that starts is not idle", Cull{IdleTimeout: hour}, func(i *idling) []happening {
			i.s.clock.reset(stateStarting)
			return []happening{{3 * hour, func() { i.s.clock.ready(); i.s.lookAgain() }}}
		}, 4 * hour, "it was idle for 1h0m0s"},
		{"a page that comes counts", Cull{IdleTimeout: hour, Activity: []string{"connections"}}, func(i *idling) []happening {
			return []happening{{minute, func() { i.connects("ann") }}}
		}, hour + minute, "it was idle for 1h0m0s"},
		{"a page that comes does not count", Cull{IdleTimeout: hour}, func(i *idling) []happening {
			return []happening{{minute, func() { i.connects("ann") }}}
		}, hour, "it was idle for 1h0m0s"},
		{"a REST request counts", Cull{IdleTimeout: hour, Activity: []string{"rest"}}, func(i *idling) []happening {
			return []happening{{minute, i.s.restUsed}}
		}, hour + minute, "it was idle for 1h0m0s"},
		{"a REST request does not count", Cull{IdleTimeout: hour}, func(i *idling) []happening { return []happening{{minute, i.s.restUsed}} },
			hour, "it was idle for 1h0m0s"},
		{"pages protect until the last has gone", Cull{IdleTimeout: hour, Unattended: true}, func(i *idling) []happening {
			a, b := i.connects("ann"), i.connects("bob")
			return []happening{{minute, func() { i.s.leave(a) }}, {9 * hour, func() { i.s.leave(b) }}}
		}, 10 * hour, "it was idle for 1h0m0s"},
		{"busy does not protect where that is wanted", Cull{IdleTimeout: hour, Busy: true}, func(i *idling) []happening {
			return []happening{{minute, i.status("execute_request", "1", stateBusy)}, {2 * minute, func() {
				i.s.deliver(i.b, wire.New(wire.IOPub, "stream", "kernel", nil, streamContent{"stdout", "x"}))
			}}}
		}, hour + 2*minute, "it was idle for 1h0m0s"},
		{"a cell that takes too long", Cull{BusyLimit: 2 * hour}, func(i *idling) []happening {
			return []happening{{minute, i.status("execute_request", "1", stateBusy)}, {hour, i.status("execute_request", "1", stateIdle)},
				{hour, i.status("execute_request", "2", stateBusy)}}
		}, 3 * hour, "it was busy with one request for 2h0m0s"},
		{"too old, and busy", Cull{MaxAge: 24 * hour, IdleTimeout: 48 * hour}, func(i *idling) []happening {
			return []happening{{23 * hour, i.status("execute_request", "1", stateBusy)}}
		}, 24 * hour, "it was running for 24h0m0s, as long as kernels may here"},
		{"processes that compute", Cull{IdleTimeout: hour, CPU: 0.5, Warning: 5 * minute}, func(i *idling) []happening {
			i.s.computes = true
			return []happening{{3 * hour, func() { i.s.computes, i.s.clock.worked = false, i.s.now(); i.s.lookAgain() }}}
		}, 3*hour + 5*minute, "it was idle for 3h5m0s"},
		{"kept", Cull{IdleTimeout: hour, KeepLimit: 10 * hour}, keeps(minute, 8*hour), 8 * hour, "it was idle for 8h0m0s"},
		{"kept, and no more", Cull{IdleTimeout: hour, KeepLimit: 10 * hour}, func(i *idling) []happening {
			return append(keeps(minute, 8*hour)(i), happening{2 * hour, func() {
				if err := i.s.keep(time.Time{}); err != nil {
					i.t.Error(err)
				}
			}})
		}, 2 * hour, "it was idle for 2h0m0s"},
		{"kept for less than it would be idle", Cull{IdleTimeout: 3 * hour, KeepLimit: 10 * hour}, keeps(minute, hour), 3 * hour, "it was idle for 3h0m0s"},
		{"kept while a cell takes too long", Cull{BusyLimit: 2 * hour, KeepLimit: 10 * hour}, func(i *idling) []happening {
			return append(keeps(minute, 8*hour)(i), happening{0, i.status("execute_request", "1", stateBusy)})
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

func keeps(at, until time.Duration) func(i *idling) []happening {
	return func(i *idling) []happening {
		return []happening{{at, func() {
			if err := i.s.keep(idlingBegin.Add(until)); err != nil {
				i.t.Error(err)
			}
		}}}
	}
}

// TestCull_keep: what an owner cannot have is refused, with what there is.
func TestCull_keep(t *testing.T) {
	for _, tt := range []struct {
		name  string
		cull  Cull
		until time.Duration
		want  int
		words string
	}{
		{"in the past", Cull{KeepLimit: time.Hour}, -time.Second, 400, "in the past"},
		{"too far", Cull{KeepLimit: time.Hour}, time.Hour + time.Second, 403, "at most 1h0m0s from now, which is 2026-01-01T01:00:00Z"},
		{"not at all", Cull{}, time.Minute, 403, "cannot be kept here"},
		{"longer than it may live", Cull{KeepLimit: 9 * time.Hour, MaxAge: 2 * time.Hour}, 3 * time.Hour, 403, "longer than 2h0m0s here: keep_until can be at most 2026-01-01T02:00:00Z"},
		{"as far as possible", Cull{KeepLimit: time.Hour}, time.Hour, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := newIdling(t, tt.cull)
			err := i.s.keep(idlingBegin.Add(tt.until))
			refused, _ := err.(httpError) //nolint:errorlint // nothing wraps it
			if refused.status != tt.want || !strings.Contains(refused.text, tt.words) {
				t.Errorf("%d %s", refused.status, refused.text)
			}
			if kept := i.s.model().KeepUntil != ""; kept != (err == nil) {
				t.Errorf("kept is %v", kept)
			}
		})
	}
}

// TestCull_warning: one line in each open notebook that says when, goes when the kernel is used and tells the end.
func TestCull_warning(t *testing.T) {
	begin := func(cull Cull) (*idling, *conn) {
		i := newIdling(t, cull)
		c := i.connects("ann")
		away := i.connects("bob")
		i.connects("without a cell")
		i.sends(c, wire.Shell, "execute_request", "1")()
		i.sends(away, wire.Shell, "execute_request", "2")()
		for _, id := range []string{"1", "2"} {
			i.status("execute_request", id, stateBusy)()
			i.status("execute_request", id, stateIdle)()
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
	const warning = "display_data [ekg] This kernel will be ended at 2026-01-01 01:00:00 UTC: by then it will have been idle for 1h0m0s. Run a cell to keep it."
	cull := Cull{IdleTimeout: time.Hour, Warning: 5 * time.Minute, KeepLimit: 10 * time.Hour}
	t.Run("in time", func(t *testing.T) {
		i, _ := begin(cull)
		i.run(55*time.Minute - 1)
		want(t, i, "ann")
		i.run(55 * time.Minute)
		want(t, i, "ann", warning)
		want(t, i, "bob")
		want(t, i, "without a cell")
	})
	t.Run("polls do not touch it, and a page that comes gets it", func(t *testing.T) {
		i, _ := begin(cull)
		i.run(56*time.Minute, happening{55*time.Minute + 1, i.status("kernel_info_request", "k", stateBusy)},
			happening{55*time.Minute + 2, i.status("kernel_info_request", "k", stateIdle)}, happening{55*time.Minute + 3, func() { i.connects("bob") }})
		want(t, i, "ann", warning)
		want(t, i, "bob", warning)
	})
	t.Run("it goes with the next cell", func(t *testing.T) {
		i, c := begin(cull)
		i.run(56*time.Minute, happening{55*time.Minute + 1, i.sends(c, wire.Shell, "execute_request", "3")})
		want(t, i, "ann", warning, "update_display_data ")
	})
	t.Run("it says that the kernel is kept", func(t *testing.T) {
		i, _ := begin(cull)
		i.run(56*time.Minute, keeps(55*time.Minute+1, 3*time.Hour)(i)...)
		want(t, i, "ann", warning, "update_display_data [ekg] This kernel is kept until 2026-01-01 03:00:00 UTC.")
	})
	t.Run("not before half of the time", func(t *testing.T) {
		i, _ := begin(Cull{IdleTimeout: 4 * time.Minute, Warning: 5 * time.Minute})
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
		i.s.endRequests(&outcome{culled: LimitIdle, reason: reason})
		i.s.mu.Unlock()
		const end = "[ekg] This kernel was ended at 2026-01-01 01:00:00 UTC: it was idle for 1h0m0s. Its variables are gone."
		want(t, i, "ann", warning, "update_display_data "+end)
		want(t, i, "bob", "display_data "+end)
	})
}

func TestCull_For(t *testing.T) {
	d := func(v time.Duration) *kernelspecs.Duration { return (*kernelspecs.Duration)(&v) }
	all := Cull{IdleTimeout: 1, BusyLimit: 10, IdleMax: 5, Warning: 1, KeepLimit: 7}
	for _, tt := range []struct {
		name string
		user kernelspecs.Cull
		want Cull
	}{
		{"nothing", kernelspecs.Cull{}, all},
		{"everything", kernelspecs.Cull{IdleTimeout: d(3), BusyLimit: d(20), MaxAge: d(30), Warning: d(0)}, Cull{IdleTimeout: 3, BusyLimit: 20, MaxAge: 30, IdleMax: 5, KeepLimit: 7}},
		{"no limits", kernelspecs.Cull{IdleTimeout: d(0), BusyLimit: d(0)}, Cull{Warning: 1, KeepLimit: 7}},
		{"idle for longer than a kernelspec may say", kernelspecs.Cull{IdleTimeout: d(9)}, Cull{IdleTimeout: 9, BusyLimit: 10, IdleMax: 9, Warning: 1, KeepLimit: 7}},
	} {
		if got := all.For(tt.user); fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
	// Where kernelspecs may say what they like, they still may.
	if got := (Cull{IdleTimeout: 1}).For(kernelspecs.Cull{IdleTimeout: d(9)}); got.IdleMax != 0 {
		t.Errorf("got %+v", got)
	}
}

func TestCull_With(t *testing.T) {
	d := func(v time.Duration) *kernelspecs.Duration { return (*kernelspecs.Duration)(&v) }
	operator := Cull{IdleTimeout: 1, BusyLimit: 10, IdleMax: 5, Warning: 1, KeepLimit: 7}
	for _, tt := range []struct {
		name string
		spec kernelspecs.Cull
		want Cull
	}{
		{"nothing", kernelspecs.Cull{}, operator},
		{"longer", kernelspecs.Cull{IdleTimeout: d(3), Warning: d(0)}, Cull{IdleTimeout: 3, BusyLimit: 10, IdleMax: 5, KeepLimit: 7}},
		{"too long", kernelspecs.Cull{IdleTimeout: d(9), BusyLimit: d(11), MaxAge: d(100)}, Cull{IdleTimeout: 5, BusyLimit: 10, MaxAge: 100, IdleMax: 5, Warning: 1, KeepLimit: 7}},
		{"for ever", kernelspecs.Cull{IdleTimeout: d(0), BusyLimit: d(0), MaxAge: d(0)}, Cull{IdleTimeout: 5, BusyLimit: 10, IdleMax: 5, Warning: 1, KeepLimit: 7}},
		{"shorter", kernelspecs.Cull{BusyLimit: d(2)}, Cull{IdleTimeout: 1, BusyLimit: 2, IdleMax: 5, Warning: 1, KeepLimit: 7}},
	} {
		if got := operator.With(tt.spec); fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// TestSupervisor_lateRequest: who asks a kernel between its end and the word of it is answered.
func TestSupervisor_lateRequest(t *testing.T) {
	i := newIdling(t, Cull{})
	c := i.connects("ann")
	i.s.endRequests(&outcome{reason: "it was idle for 1h0m0s"})
	i.sends(c, wire.Shell, "execute_request", "1")()
	i.s.announce(stateDead, "it was idle for 1h0m0s")
	entries, _, _ := i.s.log.read(position{}, c.session, 1<<20, nil)
	var said []string
	for _, e := range entries {
		if m := e.msg; wire.StringField(m.Parent, "msg_id") == "1" {
			said = append(said, wire.MsgType(m.Header)+" "+wire.StringField(m.Content, "text")+wire.StringField(m.Content, "evalue")+wire.StringField(m.Content, "execution_state"))
		}
	}
	want := []string{"stream [ekg] The kernel died: it was idle for 1h0m0s" + `\n`, "execute_reply it was idle for 1h0m0s", "status idle"}
	if !slices.Equal(said, want) {
		t.Errorf("got %q, want %q", said, want)
	}
}
