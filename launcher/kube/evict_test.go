package kube

import (
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestMayBeEvicted(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	idle := api.Status{State: api.Idle, LastActivity: now.Add(-2 * time.Hour)}
	status := func(change func(*api.Status)) api.Status {
		st := idle
		change(&st)
		return st
	}
	for _, tt := range []struct {
		name  string
		after time.Duration
		st    api.Status
		want  bool
	}{
		{"idle for long", time.Hour, idle, true},
		{"by default never", 0, idle, false},
		{"idle for less", 3 * time.Hour, idle, false},
		{"busy", time.Hour, status(func(st *api.Status) { st.State = api.Busy }), false},
		{"a page is connected", time.Hour, status(func(st *api.Status) { st.Connections = 1 }), false},
		{"kept", time.Hour, status(func(st *api.Status) { st.KeepUntil = now.Add(time.Minute) }), false},
		{"kept until a while ago", time.Hour, status(func(st *api.Status) { st.KeepUntil = now }), true},
		{"computes", time.Hour, status(func(st *api.Status) { st.Computes = true }), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &Launcher{opts: Options{EvictIdleAfter: tt.after}}
			if got := l.mayBeEvicted(tt.st, now); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
