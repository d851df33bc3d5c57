package kube

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// TestLists: a list never lacks a kernel that exists; where that is not certain, there is none.
func TestLists(t *testing.T) {
	c := newTestCluster(t)
	now := atomic.Int64{}
	now.Store(time.Now().UnixNano())
	l := openTest(t, c, func(_ *Options, tm *timing) { tm.now = func() time.Time { return time.Unix(0, now.Load()) } })
	ids := func() ([]string, error) {
		all, err := l.Kernels(t.Context())
		var ids []string
		for _, k := range all {
			ids = append(ids, k.ID)
		}
		return ids, err
	}
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	if got, err := ids(); err != nil || !slices.Equal(got, []string{idA}) {
		t.Errorf("%v, %v", got, err)
	}
	c.broken.Store(true)
	if got, err := ids(); err != nil || len(got) != 1 {
		t.Errorf("with the watch fresh: %v, %v", got, err)
	}
	now.Add(int64(11 * time.Second))
	if got, err := ids(); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("without the cluster: %v, %v", got, err)
	}
	if k, err := l.Kernel(t.Context(), idA); err != nil || k.ID != idA {
		t.Errorf("a known kernel: %v, %v", k, err)
	}
	if _, err := l.Kernel(t.Context(), idB); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("an unknown kernel: %v", err)
	}
	before := c.requests()
	for range 5 {
		if _, err := ids(); !errors.Is(err, launcher.ErrUnavailable) {
			t.Errorf("still without the cluster: %v", err)
		}
	}
	if n := c.requests() - before; n != 0 {
		t.Errorf("a cluster that does not answer was asked %d times more", n)
	}
	now.Add(int64(3 * time.Second))
	c.broken.Store(false)
	before = c.requests()
	for range 5 {
		if got, err := ids(); err != nil || len(got) != 1 {
			t.Errorf("with the cluster again: %v, %v", got, err)
		}
	}
	if n := c.requests() - before; n != 1 {
		t.Errorf("five lists asked the cluster %d times", n)
	}
}
