package local

import (
	"os"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// share replaces the grants of kernel n.
func (l *Launcher) share(t *testing.T, n int, grants ...launcher.Grant) {
	t.Helper()
	if _, err := l.UpdateNotes(t.Context(), id(n), func(n launcher.Notes) (launcher.Notes, error) {
		n.Share(grants)
		return n, nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestNotes_OlderGateway: a gateway of an earlier version rewrites notes.json without shared_to_use. The kernel was
// shared to use all the same.
func TestNotes_OlderGateway(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	p.start(l, 1, "fine")
	p.start(l, 2, "fine")
	l.share(t, 1, launcher.Grant{User: "bob", Right: launcher.Use})
	l.share(t, 1)
	l.share(t, 2, launcher.Grant{User: "bob", Right: launcher.Read})
	older := []byte(`{"sessions":[{"id":"s","path":"a.ipynb","name":"","type":"notebook"}]}`)
	for n := range 2 {
		path := l.layout.file(id(n+1), notesFile)
		if err := os.WriteFile(path+".new", older, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		rewritten := func(k launcher.Kernel) bool { return len(k.Sessions) == 1 }
		if k := wait(t, l, n+1, "rewritten", rewritten); k.SharedToUse != (n == 0) {
			t.Errorf("kernel %d: shared to use: %t", n+1, k.SharedToUse)
		}
	}
	l.share(t, 1)
	if k := wait(t, l, 1, "there", isIdle); !k.SharedToUse {
		t.Error("a later change forgets it")
	}
}
