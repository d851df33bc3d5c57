package launchertest

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func (s suite) concurrent(t *testing.T) {
	a, b := s.launcher(t), s.launcher(t)
	req := s.request()
	t.Cleanup(func() {
		if err := a.Stop(limited(t), req.ID, "the test is over"); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	var (
		starts sync.WaitGroup
		mu     sync.Mutex
		n      int
	)
	for i := range 6 {
		starts.Go(func() {
			k, created, err := []launcher.Launcher{a, b}[i%2].Start(limited(t), req)
			if err != nil || k.ID != req.ID {
				t.Errorf("start: %+v, %v", k, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if created {
				n++
			}
		})
	}
	starts.Wait()
	if n != 1 {
		t.Errorf("created %d times", n)
	}
	until(t, a, req.ID, api.Idle)
	until(t, b, req.ID, api.Idle)
}

func (s suite) adoption(t *testing.T) {
	first := s.open(t)
	req := s.request()
	k, _, err := first.Start(limited(t), req)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	before := until(t, first, k.ID, api.Idle)
	added := launcher.Session{ID: "s", Path: "p", Name: "n", Type: "notebook"}
	shared := launcher.Grant{User: "bob", Right: launcher.Use}
	if _, err := first.UpdateNotes(limited(t), k.ID, func(launcher.Notes) (launcher.Notes, error) {
		return launcher.Notes{Sessions: []launcher.Session{added}, SharedWith: []launcher.Grant{shared}}, nil
	}); err != nil {
		t.Errorf("notes: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}

	l := s.launcher(t)
	t.Cleanup(func() {
		if err := l.Stop(limited(t), k.ID, "the test is over"); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	if e := listed(t, l, k.ID); e == nil { // at once, with or without a status
		t.Fatal("not adopted")
	}
	after := until(t, l, k.ID, api.Idle)
	if after.Owner != before.Owner || after.SpecName != before.SpecName || !after.Created.Equal(before.Created) {
		t.Errorf("was %+v, is %+v", before, after)
	}
	if !slices.Equal(after.Sessions, []launcher.Session{added}) {
		t.Errorf("sessions: %v", after.Sessions)
	}
	if !slices.Equal(after.SharedWith, []launcher.Grant{shared}) {
		t.Errorf("grants: %v", after.SharedWith)
	}
	if _, created, err := l.Start(limited(t), req); err != nil || created {
		t.Errorf("start of an adopted one: created %v, %v", created, err)
	}
}

func (s suite) two(t *testing.T) {
	a, b := s.launcher(t), s.launcher(t)
	k := s.start(t, a, s.request())
	if got, err := b.Kernel(limited(t), k.ID); err != nil || got.Owner != k.Owner {
		t.Errorf("the other sees %+v, %v", got, err)
	}
	until(t, b, k.ID, api.Idle)
	if listed(t, b, k.ID) == nil {
		t.Error("the other does not list it")
	}
	// A kernel that one launcher stops is gone for a caller that waits at another launcher.
	waiting := make(chan error, 1)
	go func() {
		_, err := a.Wait(limited(t), k.ID, func(k launcher.Kernel) bool { return false })
		waiting <- err
	}()
	if err := b.Stop(limited(t), k.ID, "seen"); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := <-waiting; !errors.Is(err, launcher.ErrNotFound) {
		t.Errorf("the caller that waits at the other launcher got %v", err)
	}
	isGone(t, a, k.ID, "seen")
	isGone(t, b, k.ID, "seen")
}
