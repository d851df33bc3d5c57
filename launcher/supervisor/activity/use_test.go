package activity

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestUse_Due: a poll is left out of the plan that users see, and delays the end itself. Processes that compute delay
// both.
func TestUse_Due(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	u := NewUse(func() time.Time { return now }, &api.Cull{IdleTimeout: time.Hour})
	u.Ready()
	end := now.Add(time.Hour)
	if p := u.Plan(false); !p.At.Equal(end) {
		t.Errorf("it ends at %v, not %v", p.At, end)
	}
	now = end
	if p, due := u.Due(false); !due || p.Limit != api.LimitIdle {
		t.Errorf("due %v for %q", due, p.Limit)
	}
	u.Computes = true
	if _, due := u.Due(false); due || !u.Plan(false).At.IsZero() {
		t.Error("a kernel whose processes compute is due")
	}
	u.Computes = false
	poll := jupyter.Header{MsgID: "1", MsgType: "comm_msg"}
	u.Observe("status", poll, api.Busy)
	if _, due := u.Due(false); due || !u.Plan(false).At.Equal(end) {
		t.Errorf("while a poll runs it is due %v, and shown as %v", due, u.Plan(false).At)
	}
	u.Observe("status", poll, api.Idle)
	if _, due := u.Due(false); !due {
		t.Error("a poll has kept it")
	}
	u.Reset(api.Dead)
	if p := u.Plan(false); !p.At.IsZero() {
		t.Errorf("a dead kernel ends at %v", p.At)
	}
}

// TestUse_Keep: each limit forbids the times beyond it, and a kernel that is started again is kept no longer.
func TestUse_Keep(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	cull := &api.Cull{KeepLimit: 10 * time.Hour, MaxAge: 5 * time.Hour}
	u := NewUse(func() time.Time { return now }, cull)
	if err := u.Keep(false, now); !errors.Is(err, ErrPast) {
		t.Errorf("got %v", err)
	}
	for after, want := range map[time.Duration]string{11 * time.Hour: "at most 10h0m0s from now",
		6 * time.Hour: "longer than 5h0m0s"} {
		if err := u.Keep(false, now.Add(after)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", after, err)
		}
	}
	until := now.Add(time.Hour)
	if err := u.Keep(false, until); err != nil || !u.Kept().KeepUntil.Equal(until) {
		t.Errorf("kept until %v, %v", u.Kept(), err)
	}
	now = until
	if !u.Kept().KeepUntil.IsZero() {
		t.Error("it is kept when the time is over")
	}
	now = now.Add(-time.Minute)
	u.GPUs.Sum.Busy = time.Minute
	u.Again()
	if !u.Kept().KeepUntil.IsZero() || !u.Started.Equal(now) || u.GPUs.Sum != (api.GPUUse{}) {
		t.Errorf("started again: %+v", u)
	}
	if err := u.Keep(true, until); err != nil || u.Kept() != (Keeps{KeepGPUUntil: until.UTC()}) {
		t.Errorf("kept until %v, %v", u.Kept(), err)
	}
	if err := u.Keep(true, now.Add(11*time.Hour)); err == nil || !strings.Contains(err.Error(), "keep_gpu_until can") {
		t.Errorf("a GPU is kept for longer than is allowed: %v", err)
	}
	if err := u.Keep(true, time.Time{}); err != nil || u.Kept() != (Keeps{}) {
		t.Errorf("kept until %v, %v", u.Kept(), err)
	}
	cull.KeepLimit = 0
	if err := u.Keep(false, until); err == nil {
		t.Error("kernels cannot be kept here")
	}
}
