package kube

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
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

// TestEvict_Announced: a kernel that may be evicted is announced before its pod is marked. A kernel in use is not. A
// pod whose supervisor cannot announce it is never marked.
func TestEvict_Announced(t *testing.T) {
	c, f := newRunning(t, 2)
	s, old := f.of(idOf(0)), f.of(idOf(1))
	for _, s := range []*fakeSupervisor{s, old} {
		s.set(func(st *api.Status) { st.State, st.LastActivity = api.Idle, time.Now().Add(-2*time.Hour) })
	}
	old.set(func(st *api.Status) { st.Build = "old" })
	var now atomic.Int64
	l := openTest(t, c, func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		o.EvictIdleAfter = time.Hour
		tm.firstRedial, tm.lastRedial = time.Millisecond, 10*time.Millisecond
		tm.maintenance = time.Hour // the test does the reaper's rounds
	})
	awaitStreams(t, l, 2)
	marked := func(id string) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.kernels[id].pod.Annotations[podspec.AnnotationSafeToEvict] == "true"
	}
	round := func(notice string) {
		t.Helper()
		l.announceNodes(nil)
		eventually(t, "the status has the notice", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.noticesSent == 0 && l.kernels[idOf(0)].supervisor.Status.NodeNotice == notice
		})
	}
	l.markEvictable(t.Context())
	if got := c.asked()["patch pods"]; got != 0 {
		t.Errorf("%d pods were marked before it was announced", got)
	}
	round(evictNotice)
	l.markEvictable(t.Context())
	eventually(t, "marked", func() bool { return marked(idOf(0)) })
	if marked(idOf(1)) {
		t.Error("the pod of a supervisor that announces nothing is marked")
	}
	s.set(func(st *api.Status) { st.Connections = 1 })
	eventually(t, "a page is connected", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.kernels[idOf(0)].supervisor.Status.Connections == 1
	})
	round("")
	l.maintainKernel(t.Context(), l.kernelOf(idOf(0)))
	eventually(t, "the mark is taken away", func() bool { return !marked(idOf(0)) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if want := []string{evictNotice, ""}; !slices.Equal(s.notices, want) {
		t.Errorf("told %q, want %q", s.notices, want)
	}
}

func (l *Launcher) kernelOf(id string) *kernel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kernels[id]
}
