package kube

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

var _ resourcelock.Interface = (*leaseClock)(nil)

// fakeLock is a lease whose holder the test sets.
type fakeLock struct {
	resourcelock.Interface
	record  resourcelock.LeaderElectionRecord
	updated int
	err     error
}

func (f *fakeLock) Identity() string { return "this" }
func (f *fakeLock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &f.record, nil, nil
}

func (f *fakeLock) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	f.updated++
	if f.err == nil {
		f.record = r
	}
	return f.err
}

func TestLeaseClock(t *testing.T) {
	f := &fakeLock{}
	c := &leaseClock{Interface: f, lasts: time.Hour}
	own, none := resourcelock.LeaderElectionRecord{HolderIdentity: "this"}, resourcelock.LeaderElectionRecord{}
	step := func(what string, err error, holds bool) {
		t.Helper()
		if (err == nil) != (what == "renewed" || what == "given back") || c.holds() != holds {
			t.Errorf("%s: %v, it holds: %v", what, err, c.holds())
		}
	}
	f.err = errors.New("no answer")
	step("not renewed", c.Update(t.Context(), own), false)
	f.err = nil
	step("renewed", c.Update(t.Context(), own), true)
	before := f.updated
	step("a lease that was never read is given back", c.Update(t.Context(), none), false)
	if f.updated != before {
		t.Error("a lease that was never read was given back")
	}
	step("renewed", c.Update(t.Context(), own), true)
	f.record.HolderIdentity = "another"
	if _, _, err := c.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	before = f.updated
	step("another's is given back", c.Update(t.Context(), none), false)
	if f.updated != before {
		t.Error("another's lease was taken away")
	}
	step("renewed", c.Update(t.Context(), own), true)
	if _, _, err := c.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	step("given back", c.Update(t.Context(), none), false)
	c.lasts = 0
	step("renewed", c.Update(t.Context(), own), false)

	from := time.Now()
	if !within(from, from.Add(3*time.Second), 4*time.Second) || within(from, from.Add(4*time.Second), 4*time.Second) {
		t.Error("by both clocks")
	}
	// The test cannot make the two clocks differ; a time without a monotonic reading stands for that.
	if within(from, from.Round(0).Add(time.Hour), 4*time.Second) {
		t.Error("the machine was suspended")
	}
}
