package kube

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
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
			if got := mayBeEvicted(l.opts.EvictIdleAfter, tt.st, now); got != tt.want {
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
	eventually(t, "it is the reaper", l.reaper.active.Load)
	marked := func(id string) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.kernels[id].pod.Annotations[podspec.AnnotationSafeToEvict] == "true"
	}
	round := func(notice string) {
		t.Helper()
		l.reaper.announceNodes()
		eventually(t, "the status has the notice", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.noticesSent == 0 && l.kernels[idOf(0)].supervisor.Status.NodeNotice == notice
		})
	}
	l.reaper.markEvictable(t.Context())
	if got := c.asked()["patch pods"]; got != 0 {
		t.Errorf("%d pods were marked before it was announced", got)
	}
	round(evictNotice)
	l.reaper.markEvictable(t.Context())
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

// The reaper alone takes the mark away from a kernel in use. Another gateway does it if the mark stays.
func TestEvict_OneProtects(t *testing.T) {
	c, f := newRunning(t, 1)
	f.of(idOf(0)).set(func(st *api.Status) { st.State, st.LastActivity = api.Busy, time.Now() })
	var now, otherNow atomic.Int64
	open := func(now *atomic.Int64) *Launcher {
		return openTest(t, c, func(o *Options, tm *timing) {
			fastReaper(now)(o, tm)
			o.EvictIdleAfter, tm.maintenance = time.Hour, time.Hour // the test does the rounds
			tm.lease = realTiming().lease
		})
	}
	reaper := open(&now)
	eventually(t, "it is the reaper", reaper.reaper.active.Load)
	other := open(&otherNow)
	all := []*Launcher{reaper, other}
	for _, l := range all {
		waitFor(t, l, idOf(0), func(k launcher.Kernel) bool { return !k.Stale && k.State == api.Busy })
	}
	isMarked := func(want string) {
		t.Helper()
		eventually(t, "the mark "+want, func() bool {
			for _, l := range all {
				l.mu.Lock()
				got := l.kernels[idOf(0)].pod.Annotations[podspec.AnnotationSafeToEvict]
				l.mu.Unlock()
				if got != want {
					return false
				}
			}
			return true
		})
	}
	round := func(l *Launcher) int {
		c.asked()
		l.maintainKernel(t.Context(), l.kernelOf(idOf(0)))
		return c.asked()["patch pods"]
	}
	mark := func() {
		reaper.setEvictable(t.Context(), reaper.podOf(idOf(0)), true)
		isMarked("true")
	}
	mark()
	if theirs, ours := round(other), round(reaper); theirs != 0 || ours != 1 {
		t.Errorf("another gateway sends %d patches, the reaper %d", theirs, ours)
	}
	isMarked("false")
	if n := round(other); n != 0 {
		t.Errorf("%d patches of a pod without the mark", n)
	}
	mark()
	if n := round(other); n != 0 {
		t.Errorf("%d patches at once", n)
	}
	otherNow.Add(int64(other.timing.lease.Duration))
	if n := round(other); n != 1 {
		t.Errorf("the mark stays, and another gateway sends %d patches", n)
	}
	isMarked("false")
}

func (l *Launcher) kernelOf(id string) *kernel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kernels[id]
}

func (l *Launcher) podOf(id string) *corev1.Pod {
	k := l.kernelOf(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	return k.pod
}
