package launchertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// patience bounds every wait of the suite. It allows for slow kernels on a busy machine.
const patience = time.Minute

// Run is the suite that every launcher must pass. open opens a launcher. All launchers of one call of Run use the same
// state directory or namespace, like several gateways, or one after a restart. The suite closes them. spec is the
// kernelspec of a kernel that becomes idle. Run leaves no kernel behind if the launcher keeps its contract.
func Run(t *testing.T, open func(t *testing.T) launcher.Launcher, spec kernelspecs.Spec) {
	s := suite{open: open, spec: spec}
	t.Run("start, list, wait and stop", s.life)
	t.Run("start is idempotent", s.idempotent)
	t.Run("an id stays its owner's", s.idOfOther)
	t.Run("start of many at once", s.concurrent)
	t.Run("a kernel that cannot be started", s.failure)
	t.Run("a kernel that ends at once", s.endsAtOnce)
	t.Run("unknown kernels", s.unknown)
	t.Run("wait ends with its context", s.waitContext)
	t.Run("notes", s.notes)
	t.Run("dial", s.dial)
	t.Run("adoption", s.adoption)
	t.Run("two launchers", s.two)
	t.Run("a kernel that is culled", s.culled)
	t.Run("records", s.records)
}

type suite struct {
	open func(t *testing.T) launcher.Launcher
	spec kernelspecs.Spec
}

// launcher opens a launcher that is closed at the end of the test.
func (s suite) launcher(t *testing.T) launcher.Launcher {
	t.Helper()
	l := s.open(t)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// start starts a kernel. It is stopped at the latest when the test ends.
func (s suite) start(t *testing.T, l launcher.Launcher, req launcher.Request) launcher.Kernel {
	t.Helper()
	t.Cleanup(func() {
		if err := l.Stop(limited(t), req.ID, "the test is over"); err != nil && !errors.Is(err, launcher.ErrNotFound) {
			t.Errorf("stop %s: %v", req.ID, err)
		}
	})
	k, created, err := l.Start(limited(t), req)
	if err != nil || !created {
		t.Fatalf("start: created %v, %v", created, err)
	}
	return k
}

func (s suite) request() launcher.Request {
	return launcher.Request{ID: newID(), Owner: "ann", Spec: s.spec}
}

// until waits for a state.
func until(t *testing.T, l launcher.Launcher, id string, state api.State) launcher.Kernel {
	t.Helper()
	k, err := l.Wait(limited(t), id, func(k launcher.Kernel) bool { return k.State == state && !k.Stale })
	if err != nil {
		t.Fatalf("waiting for %s: %v; it is %+v", state, err, k)
	}
	return k
}

// listed returns the kernel's entry in the list, nil if it is not listed.
func listed(t *testing.T, l launcher.Launcher, id string) *launcher.Kernel {
	t.Helper()
	all, err := l.Kernels(limited(t))
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	if !slices.IsSortedFunc(all, func(a, b launcher.Kernel) int { return a.Created.Compare(b.Created) }) {
		t.Error("the list is not by creation")
	}
	for i := range all {
		if all[i].ID == id {
			return &all[i]
		}
	}
	return nil
}
