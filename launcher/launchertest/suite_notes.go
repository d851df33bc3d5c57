package launchertest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

func (s suite) notes(t *testing.T) {
	a, b := s.launcher(t), s.launcher(t)
	k := s.start(t, a, s.request())
	if len(k.Sessions) != 0 {
		t.Errorf("a new kernel has %v", k.Sessions)
	}
	const each = 10
	var all sync.WaitGroup
	for i, l := range []launcher.Launcher{a, b, a, b} {
		all.Go(func() {
			for n := range each {
				added := launcher.Session{ID: fmt.Sprintf("%d-%d", i, n), Path: "ä.ipynb", Name: "n", Type: "notebook"}
				got, err := l.UpdateNotes(limited(t), k.ID, func(n launcher.Notes) (launcher.Notes, error) {
					n.Sessions = append(n.Sessions, added)
					return n, nil
				})
				if err != nil || !slices.Contains(got.Sessions, added) {
					t.Errorf("update: %v, %v", got, err)
				}
			}
		})
	}
	all.Wait()
	for _, l := range []launcher.Launcher{a, b} {
		hasSessions(t, l, k.ID, 4*each) // every change was kept
	}
	refused := errors.New("no")
	_, err := a.UpdateNotes(limited(t), k.ID, func(launcher.Notes) (launcher.Notes, error) {
		return launcher.Notes{}, refused
	})
	if !errors.Is(err, refused) {
		t.Errorf("a refused change: %v", err)
	}
	if e := listed(t, b, k.ID); e == nil || len(e.Sessions) != 4*each {
		t.Errorf("after a refused change: %+v", e)
	}
	grants := []launcher.Grant{{User: "bob", Right: launcher.Read}, {Group: "ä", Right: launcher.Use}}
	got, err := b.UpdateNotes(limited(t), k.ID, func(n launcher.Notes) (launcher.Notes, error) {
		n.Sessions = n.Sessions[:1]
		n.Share(grants)
		return n, nil
	})
	if err != nil || len(got.Sessions) != 1 {
		t.Errorf("removal: %v, %v", got, err)
	}
	hasSessions(t, a, k.ID, 1)
	if e := listed(t, a, k.ID); e == nil || !slices.Equal(e.Sessions, got.Sessions) ||
		!slices.Equal(e.SharedWith, grants) || !e.SharedToUse {
		t.Errorf("after a removal: %+v", e)
	}
	got, err = b.UpdateNotes(limited(t), k.ID, func(n launcher.Notes) (launcher.Notes, error) {
		n.Sessions = nil
		n.Share(nil)
		return n, nil
	})
	if err != nil {
		t.Errorf("end of sharing: %v, %v", got, err)
	}
	hasSessions(t, a, k.ID, 0)
	if e := listed(t, a, k.ID); e == nil || len(e.SharedWith) != 0 || !e.SharedToUse {
		t.Errorf("after the end of sharing: %+v", e)
	}
	got, err = a.UpdateNotes(limited(t), k.ID, func(launcher.Notes) (launcher.Notes, error) {
		return launcher.Notes{}, nil
	})
	if err != nil {
		t.Errorf("removal of all: %v, %v", got, err)
	}
	hasSessions(t, b, k.ID, 0)
	if e := listed(t, b, k.ID); e == nil || len(e.SharedWith) != 0 {
		t.Errorf("without notes: %+v", e)
	}
}

// hasSessions waits until a launcher knows so many sessions of a kernel. Another launcher's changes may take a moment.
func hasSessions(t *testing.T, l launcher.Launcher, id string, n int) {
	t.Helper()
	if k, err := l.Wait(limited(t), id, func(k launcher.Kernel) bool { return len(k.Sessions) == n }); err != nil {
		t.Errorf("waiting for %d sessions: %v; it has %d", n, err, len(k.Sessions))
	}
}
