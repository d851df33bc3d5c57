package supervisor

import (
	"log/slog"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/savedstate"
)

// TestSupervisor_CommitTellsWhatChanged: each kind of change wakes those who follow it, and no others.
func TestSupervisor_CommitTellsWhatChanged(t *testing.T) {
	now := time.Unix(1e9, 0)
	cell := jupyter.Header{MsgID: "1", MsgType: "execute_request"}
	for _, tc := range []struct {
		name                string
		change              func(*Supervisor)
		streams, use, saved bool
	}{
		{"no change", func(*Supervisor) {}, false, false, false},
		{"a reason", func(s *Supervisor) { s.kernel.reason = "x" }, true, false, false},
		{"a state", func(s *Supervisor) { s.use.Reset(api.Busy) }, true, true, true},
		{"a missed heartbeat", func(s *Supervisor) { s.kernel.pulse.missed = true }, true, false, false},
		{"keep until", func(s *Supervisor) { s.use.KeepUntil = now }, true, true, true},
		{"keep the GPU until", func(s *Supervisor) { s.use.KeepGPUUntil = now }, true, true, true},
		{"a request", func(s *Supervisor) { s.clients.add(&requests.Request{ID: "1", Type: "execute_request"}) }, false,
			true, true},
		{"the beginning of a request", func(s *Supervisor) { s.use.Observe("status", cell, api.Busy) }, true, true, false},
		{"output", func(s *Supervisor) { s.use.Observe("stream", jupyter.Header{}, "") }, true, false, false},
		{"a log that is nearly full", func(s *Supervisor) {
			s.log.SetLimit(100)
			s.log.Append(allSessions, jupyter.Message{}, false)
		}, true, false, false},
		{"use", func(s *Supervisor) { s.use.Computes = true }, false, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := api.Config{LogLimit: 1 << 20, Cull: api.Cull{IdleTimeout: time.Hour}}
			s := New(cfg, "test", slog.New(slog.DiscardHandler))
			s.now = func() time.Time { return now }
			s.stateFile = savedstate.NewFile(t.TempDir())
			change := s.change
			s.mu.Lock()
			tc.change(s)
			s.mu.Unlock()
			select {
			case <-change:
				if !tc.streams {
					t.Error("status streams are woken")
				}
			default:
				if tc.streams {
					t.Error("status streams are not woken")
				}
			}
			if got := len(s.culling.changed) > 0; got != tc.use {
				t.Errorf("the look at use: %v, want %v", got, tc.use)
			}
			if got := s.stateFile.Dirty(); got != tc.saved {
				t.Errorf("the saved state: %v, want %v", got, tc.saved)
			}
		})
	}
}

// TestSupervisor_SavesActivity: the last activity is saved while nothing else changes, but not with each message.
func TestSupervisor_SavesActivity(t *testing.T) {
	now := time.Now()
	s := New(api.Config{LogLimit: 1 << 20}, "test", slog.New(slog.DiscardHandler))
	s.now = func() time.Time { return now }
	s.use = activity.NewUse(s.now, &s.cfg.Cull)
	s.use.Ready()
	s.committed = s.factsLocked()
	s.stateFile = savedstate.NewFile(t.TempDir())
	for _, step := range []struct {
		after time.Duration
		saved bool
	}{{activitySave / 2, false}, {activitySave, true}} {
		now = now.Add(step.after)
		s.mu.Lock()
		s.use.Observe("comm_msg", jupyter.Header{}, "")
		s.mu.Unlock()
		if got := s.stateFile.Dirty(); got != step.saved {
			t.Errorf("after %v: saved is %v", step.after, got)
		}
	}
}

// TestSupervisor_CommitOfActivity: output wakes status streams at most once a second. A later commit reports what was
// held back.
func TestSupervisor_CommitOfActivity(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := New(api.Config{LogLimit: 1 << 20}, "test", slog.New(slog.DiscardHandler))
	s.now = func() time.Time { return now }
	woken := func(output bool) bool {
		change := s.change
		s.mu.Lock()
		if output {
			s.use.Observe("stream", jupyter.Header{}, "")
		}
		s.mu.Unlock()
		return change != s.change
	}
	if !woken(true) {
		t.Error("the first output is not reported")
	}
	now = now.Add(activityPause / 2)
	if woken(true) || woken(false) {
		t.Error("output is reported twice in a second")
	}
	now = now.Add(activityPause / 2)
	if !woken(false) {
		t.Error("output is never reported")
	}
	if woken(false) {
		t.Error("nothing is reported")
	}
}
