package kube

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// A user's list has the kernels of the user and those shared with the user or a group, by creation, and no others.
func TestKernelsFor(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	owners := []string{"ann", "bob", "cyd", "ann", "bob"}
	for n, owner := range owners {
		req := testRequest(idOf(n))
		req.Owner = owner
		if _, _, err := l.Start(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	share := func(n int, grants ...launcher.Grant) {
		t.Helper()
		_, err := l.UpdateNotes(t.Context(), idOf(n), func(notes launcher.Notes) (launcher.Notes, error) {
			notes.Share(grants)
			return notes, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(l *Launcher, user string, groups []string, want ...int) {
		t.Helper()
		all, err := l.KernelsFor(t.Context(), user, groups)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, k := range all {
			got = append(got, slices.IndexFunc([]int{0, 1, 2, 3, 4}, func(n int) bool { return idOf(n) == k.ID }))
		}
		if !slices.Equal(got, want) {
			t.Errorf("the list of %s in %v has %v, want %v", user, groups, got, want)
		}
	}
	check(l, "ann", nil, 0, 3)
	check(l, "dan", []string{"team"})
	share(1, launcher.Grant{User: "ann", Right: launcher.Read}, launcher.Grant{Group: "team", Right: launcher.Use})
	check(l, "ann", []string{"team"}, 0, 1, 3)
	check(l, "dan", []string{"other", "team"}, 1)
	check(l, "team", nil) // a user whose name is that of a group
	t.Run("another gateway", func(t *testing.T) {
		check(openTest(t, c, nil), "ann", nil, 0, 1, 3)
	})
	share(1)
	check(l, "ann", []string{"team"}, 0, 3)
	share(2, launcher.Grant{User: "ann", Right: launcher.Read})
	check(l, "ann", nil, 0, 2, 3)
	var stops sync.WaitGroup
	for n := range owners {
		stops.Go(func() {
			if err := l.Stop(t.Context(), idOf(n), "enough"); err != nil {
				t.Error(err)
			}
		})
	}
	stops.Wait()
	check(l, "ann", []string{"team"})
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.readers) > 0 {
		t.Errorf("of kernels that are gone is left: %v", fmt.Sprint(l.readers))
	}
}
