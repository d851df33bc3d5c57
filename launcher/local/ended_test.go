package local

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestCulled: a culled kernel is dead with its reason and removed after DeadLinger. It stays in the list of culled
// kernels, also for launchers that are opened later.
func TestCulled(t *testing.T) {
	p := newPlace(t)
	p.change = func(o *Options, tm *timing) {
		o.DeadLinger, tm.maintenance = 2*time.Second, 20*time.Millisecond
		o.Cull = api.Cull{IdleTimeout: 300 * time.Millisecond}
	}
	l := p.launcher()
	spec := kernelspecs.Spec{
		Name:          "real",
		Argv:          []string{os.Args[0], "kernel", "-f", "{connection_file}"},
		InterruptMode: "signal",
	}
	begun := time.Now()
	if _, _, err := l.Start(t.Context(), launcher.Request{ID: id(1), Owner: "ann", Spec: spec}); err != nil {
		t.Fatal(err)
	}
	const reason = "it was idle for 0s"
	if k := wait(t, l, 1, "dead", isDead); k.Reason != reason || !k.CullAt.IsZero() {
		t.Errorf("it is %+v", k)
	}
	known := func(l *Launcher) bool {
		t.Helper()
		all, err := l.Ended(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 1 && all[0].ID == id(1) && all[0].SpecName == "real" && all[0].Owner == "ann" &&
			all[0].Reason == reason && all[0].Culled && all[0].Started.After(begun) && all[0].Started.Before(all[0].At) &&
			all[0].Seconds < 60 &&
			all[0].GPUs == 0
	}
	if !known(l) {
		t.Error("it is not on record while it is dead")
	}
	eventually(t, "it is gone", func() bool {
		_, err := os.Stat(filepath.Join(p.state, "kernels", id(1)))
		return os.IsNotExist(err)
	})
	if err := l.layout.goneError(id(1)); err == nil || !known(l) {
		t.Errorf("it is not on record when it is gone: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if !known(p.launcher()) {
		t.Error("a launcher that comes later does not know of it")
	}
	t.Run("a kernel that was started again is not culled", func(t *testing.T) {
		l := p.launcher()
		_, created, err := l.Start(t.Context(), launcher.Request{ID: id(1), Owner: "ann", Spec: fakeSpec("fine")})
		if err != nil ||
			!created {
			t.Fatal(created, err)
		}
		if known(l) {
			t.Error("it is on record as culled")
		}
	})
}

// TestCulled_Removed: the reason of a cull is kept when the kernel is removed and its supervisor can no longer report
// it.
func TestCulled_Removed(t *testing.T) {
	p := newPlace(t)
	p.change = func(o *Options, _ *timing) { o.Cull = api.Cull{IdleTimeout: time.Second} }
	l := p.launcher()
	if _, _, err := l.Start(t.Context(), launcher.Request{ID: id(1), Owner: "ann", Spec: realSpec()}); err != nil {
		t.Fatal(err)
	}
	supervisor := processesOf(t, p, 1).Supervisor
	wait(t, l, 1, "dead", isDead)
	kill(t, supervisor)
	wait(t, l, 1, "dead, and its supervisor is gone",
		func(k launcher.Kernel) bool { return isDead(k) && !k.Stale && k.LogBytes == 0 })
	if err := l.Stop(t.Context(), id(1), "it was shut down on request"); err != nil {
		t.Fatal(err)
	}
	var gone *launcher.GoneError
	if _, err := l.Kernel(t.Context(), id(1)); !errors.As(err, &gone) || gone.Reason != "it was idle for 1s" {
		t.Errorf("%v", err)
	}
	if all, err := l.Ended(t.Context(), ""); err != nil || len(all) != 1 {
		t.Errorf("on record are %v, %v", all, err)
	}
}

// TestEnded_Died: a kernel that died with its supervisor stays on record when it is removed, with the reason of its
// death, also for launchers that are opened later. A kernel that is removed while it lives is not on record.
func TestEnded_Died(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	for n := range 2 {
		if _, _, err := l.Start(t.Context(), launcher.Request{ID: id(n + 1), Owner: "ann", Spec: realSpec()}); err != nil {
			t.Fatal(err)
		}
	}
	kill(t, processesOf(t, p, 1).Parent)
	reason := wait(t, l, 1, "dead", isDead).Reason
	for n := range 2 {
		if err := l.Stop(t.Context(), id(n+1), "it was shut down on request"); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []*Launcher{l, p.launcher()} {
		all, err := l.Ended(t.Context(), "")
		if err != nil || len(all) != 1 || all[0].ID != id(1) || all[0].Culled || all[0].Reason != reason {
			t.Errorf("on record are %+v, %v; it died since %s", all, err, reason)
		}
	}
}

// BenchmarkEnded shows what a user's list of ended kernels and a user's usage cost beside the records of other users.
func BenchmarkEnded(b *testing.B) {
	for _, others := range []int{100, 1000, 9000} {
		dir := b.TempDir()
		state := filepath.Join(dir, "state")
		l, err := Open(b.Context(), Options{StateDir: state, RuntimeDir: dir, Supervisor: os.Args[0],
			Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		store := func(n int, owner string) {
			end := storedEnding{SpecName: "python3", Owner: owner}
			end.Reason, end.At, end.Started = "it was killed", time.Now(), time.Now()
			if err := files.WriteJSON(l.layout.endingFile(fmt.Sprintf("3f0a6f5e-1d2c-4b7a-9e10-%012d", n)), end); err != nil {
				b.Fatal(err)
			}
		}
		for n := range others {
			store(n+1, fmt.Sprint("user", n%100))
		}
		store(0, "ann")
		for name, read := range map[string]func() int{
			"ended": func() int {
				all, err := l.Ended(b.Context(), "ann")
				if err != nil {
					b.Fatal(err)
				}
				return len(all)
			},
			"usage": func() int {
				all, err := l.Usage(b.Context(), "ann")
				if err != nil {
					b.Fatal(err)
				}
				return len(all)
			},
		} {
			b.Run(fmt.Sprintf("%s/others=%d", name, others), func(b *testing.B) {
				for b.Loop() {
					if n := read(); n != 1 {
						b.Fatal(n)
					}
				}
			})
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
