package activity

import (
	"fmt"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestClock_State(t *testing.T) {
	h := func(msgType, id string) jupyter.Header { return jupyter.Header{MsgType: msgType, MsgID: id} }
	type step struct {
		msgType string
		parent  jupyter.Header
		state   api.State
		want    api.State
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"a cell", []step{{"status", h("execute_request", "1"), api.Busy, api.Busy},
			{"stream", h("execute_request", "1"), "", api.Busy},
			{"status", h("execute_request", "1"), api.Idle, api.Idle}}},
		{"control while a cell runs", []step{{"status", h("execute_request", "1"), api.Busy, api.Busy},
			{"status", h("debug_request", "2"), api.Busy, api.Busy}, {"status", h("debug_request", "2"), api.Idle, api.Busy}}},
		{"two subshells", []step{{"status", h("execute_request", "1"), api.Busy, api.Busy},
			{"status", h("execute_request", "2"), api.Busy, api.Busy},
			{"status", h("execute_request", "1"), api.Idle, api.Busy},
			{"status", h("execute_request", "2"), api.Idle, api.Idle}}},
		{"looking at it", []step{{"status", h("kernel_info_request", "1"), api.Busy, api.Idle}}},
		{"a widget's callback", []step{{"status", h("comm_msg", "1"), api.Busy, api.Busy}}},
		{"background output", []step{{"stream", h("execute_request", "1"), "", api.Idle}}},
		{"idle that was never busy", []step{{"status", h("execute_request", "9"), api.Idle, api.Idle}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := NewClock(fakeNow(), &api.Cull{})
			c.Ready()
			for i, s := range tc.steps {
				c.Observe(s.msgType, s.parent, s.state)
				if c.State() != s.want {
					t.Fatalf("step %d: state is %s, want %s", i, c.State(), s.want)
				}
			}
		})
	}
}

func TestClock_Activity(t *testing.T) {
	for _, tc := range []struct {
		msgType, parent string
		busy, moves     bool
	}{
		{"status", "kernel_info_request", false, false},
		{"status", "execute_request", false, true},
		{"stream", "execute_request", false, true},
		{"stream", "", false, false},
		{"stream", "", true, true},
		{"comm_msg", "", false, true},
		{"debug_event", "debug_request", false, false},
		{"status", "", false, false},
	} {
		t.Run(fmt.Sprintf("%s of %q busy %v", tc.msgType, tc.parent, tc.busy), func(t *testing.T) {
			c := NewClock(fakeNow(), &api.Cull{})
			c.Ready()
			if tc.busy {
				c.Observe("status", jupyter.Header{MsgType: "execute_request", MsgID: "0"}, api.Busy)
			}
			before := c.LastActivity()
			c.Observe(tc.msgType, jupyter.Header{MsgType: tc.parent, MsgID: "1"}, "")
			if moved := c.LastActivity().After(before); moved != tc.moves {
				t.Errorf("moved is %v, want %v", moved, tc.moves)
			}
		})
	}
}

// fakeNow is a clock that advances by a second whenever it is read.
func fakeNow() func() time.Time {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return func() time.Time {
		now = now.Add(time.Second)
		return now
	}
}

// TestNext_EarliestLimit: the earliest of several limits counts, and each limit has its own reason.
func TestNext_EarliestLimit(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return begin.Add(d) }
	const hour = time.Hour
	all := api.Cull{IdleTimeout: 2 * hour, BusyLimit: 3 * hour, MaxAge: 10 * hour, Warning: hour}
	parked := all
	parked.ParkedTimeout = 4 * hour
	up := Usage{Up: true, Started: begin, Idle: Idle{Since: at(hour)}, LastOutput: at(hour)}
	for _, tc := range []struct {
		name   string
		cull   api.Cull
		change func(*Usage)
		end    time.Duration // 0: never
		limit  string
		reason string
	}{
		{"nothing is limited", api.Cull{}, func(*Usage) {}, 0, "", ""},
		{"idle", all, func(*Usage) {}, 3 * hour, api.LimitIdle, "it was idle for 2h0m0s"},
		{"busy", all, func(u *Usage) { u.Busy, u.BusySince = true, at(5*hour) }, 8 * hour, api.LimitBusy,
			"it was busy with one request for 3h0m0s"},
		{"old", all, func(u *Usage) { u.Busy = true }, 10 * hour, api.LimitAge,
			"it was running for 10h0m0s, as long as kernels may here"},
		{"not up yet", all, func(u *Usage) { u.Up = false }, 10 * hour, api.LimitAge,
			"it was running for 10h0m0s, as long as kernels may here"},
		{"kept", all, func(u *Usage) { u.KeepUntil = at(7 * hour) }, 7 * hour, api.LimitIdle, "it was idle for 6h0m0s"},
		{"long work", all, func(u *Usage) { u.Idle.LongWork = at(6 * hour) }, 7 * hour, api.LimitIdle,
			"it was idle for 6h0m0s"},
		{"connected", api.Cull{IdleTimeout: hour, Unattended: true}, func(u *Usage) { u.Connected = true }, 0, "", ""},
		{"left", api.Cull{IdleTimeout: hour, Unattended: true}, func(u *Usage) { u.Left = at(4 * hour) }, 5 * hour,
			api.LimitIdle, "it was idle for 1h0m0s"},
		{"busy and silent", api.Cull{IdleTimeout: hour, Busy: true},
			func(u *Usage) { u.Busy, u.LastOutput = true, at(2*hour) }, 3 * hour, api.LimitIdle, "it was idle for 1h0m0s"},
		{"parked, with no time of its own", all, func(u *Usage) { u.Parking = Parking{Parked: true, Woken: at(2 * hour)} },
			3 * hour, api.LimitIdle, "it was idle for 2h0m0s"},
		{"parked", parked, func(u *Usage) { u.Parking.Parked = true }, 5 * hour, api.LimitIdle, "it was idle for 4h0m0s"},
		{"woken without a cell", parked, func(u *Usage) { u.Parking.Woken = at(4 * hour) }, 6 * hour, api.LimitIdle,
			"it was idle for 2h0m0s"},
		{"parked, and no other is culled", api.Cull{ParkedTimeout: hour}, func(u *Usage) { u.Parking.Parked = true },
			2 * hour, api.LimitIdle, "it was idle for 1h0m0s"},
		{"held, and only parked ones are culled", api.Cull{ParkedTimeout: hour}, func(*Usage) {}, 0, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := up
			tc.change(&u)
			p := Next(&tc.cull, u)
			if tc.end == 0 {
				if !p.At.IsZero() {
					t.Errorf("it ends at %v", p.At)
				}
				return
			}
			if !p.At.Equal(at(tc.end)) || p.Limit != tc.limit || p.Reason(p.At) != tc.reason || p.Warn.After(p.At) {
				t.Errorf("it ends at %v for the limit %s: %s", p.At, p.Limit, p.Reason(p.At))
			}
		})
	}
}

// TestLoad_Doubt: a single look at GPUs without use is ignored. A second one counts.
func TestLoad_Doubt(t *testing.T) {
	l := NewLoad(&api.Cull{IdleTimeout: time.Hour, GPU: 0.1})
	for i, step := range []struct {
		used              float64
		computes, certain bool
	}{{0.5, true, true}, {0, true, true}, {0.5, true, true}, {0, true, true}, {0, false, false}, {0, false, false},
		{0.2, true, true}} {
		l.GPUs(step.used)
		if l.Computes() != step.computes || l.Computed() != step.certain {
			t.Errorf("look %d: computes %v, surely %v", i, l.Computes(), l.Computed())
		}
	}
}

// TestLoad_Processors: the first measurement shows nothing. After that, use above the limit counts as computing.
func TestLoad_Processors(t *testing.T) {
	l := NewLoad(&api.Cull{IdleTimeout: time.Hour, CPU: 0.5})
	at := time.Unix(1e9, 0)
	for i, step := range []struct {
		used              time.Duration
		computes, certain bool
	}{{0, true, false}, {40 * time.Second, true, true}, {60 * time.Second, false, false},
		{100 * time.Second, true, true}} {
		l.Processors(step.used, at)
		l.Processors(step.used, at) // the same measurement again
		if l.Computes() != step.computes || l.Computed() != step.certain {
			t.Errorf("measurement %d: computes %v, surely %v", i, l.Computes(), l.Computed())
		}
		at = at.Add(time.Minute)
	}
}
