package local

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/lend"
)

// countedByFolders returns the ids of all kernels that count for limits, by their folders alone. The lock on starts is
// held.
func countedByFolders(t *testing.T, l *Launcher) (ids []string) {
	t.Helper()
	entries, err := os.ReadDir(l.layout.kernels())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !launcher.ValidID(e.Name()) {
			continue
		}
		rec, err := l.layout.readRecord(e.Name())
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && rec.Warm != "":
			continue
		case err != nil:
			t.Fatal(err)
		}
		counts, err := l.starts.counts(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if counts {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

// countedByMemory returns the ids of the kernels that decide counts. It compares the set of those that have ended
// with all kernels in memory. The lock on starts is held.
func countedByMemory(t *testing.T, l *Launcher) (ids []string) {
	t.Helper()
	if err := l.catchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	var ended []*kernel
	for _, k := range l.kernels.byID {
		if k.end == nil {
			ids = append(ids, k.id)
		} else {
			ended = append(ended, k)
		}
	}
	if kept := slices.Collect(maps.Keys(l.kernels.ended)); len(kept) != len(ended) ||
		slices.ContainsFunc(ended, func(k *kernel) bool { return !slices.Contains(kept, k) }) {
		t.Errorf("%d kernels are kept as ended, and %d have ended", len(kept), len(ended))
	}
	l.mu.Unlock()
	for _, k := range ended {
		counts, err := l.starts.checkHeld(t.Context(), k.id)
		if err != nil {
			t.Fatal(err)
		}
		if counts {
			ids = append(ids, k.id)
		}
	}
	slices.Sort(ids)
	return ids
}

// TestSums_Random: two gateways start kernels of several users, groups and kernelspecs, also from warm ones, for jobs
// and for GPUs that are not free. They stop and restart them, and are closed and opened again. Kernels and supervisors
// are killed, and starts fail. After each step each gateway's memory has all kernels that count by the folders. Soon
// after, it has no others.
func TestSums_Random(t *testing.T) {
	var count atomic.Int64
	count.Store(1)
	p := warmPlace(t, &count)
	withWarm := p.change
	p.withGPUs(gpuJSON("GPU-a"), gpuJSON("GPU-b"))
	withGPUs := p.change
	limits := &testLimits{all: 1000, each: 1000}
	p.change = func(o *Options, tm *timing) {
		withWarm(o, tm)
		withGPUs(o, tm)
		o.Limits, o.DeadLinger = limits, 300*time.Millisecond
		tm.lendPause, tm.maintenance = 20*time.Millisecond, 50*time.Millisecond
	}
	launchers := []*Launcher{p.open(), p.open()}
	t.Cleanup(func() {
		for _, l := range launchers {
			_ = l.Close()
		}
	})
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 3))
	const kernels = 8
	did := map[string]int{}
	step := func(l *Launcher) (what string, err error) {
		n := random.IntN(kernels)
		req := launcher.Request{ID: id(n), Owner: fmt.Sprint("user", n%3), Groups: []string{"all", fmt.Sprint("group", n%2)},
			Spec: fakeSpec("fine"), Env: map[string]string{}, Job: n%4 == 0}
		pids := func() (ps processIDs) {
			_ = files.ReadJSON(filepath.Join(p.state, "kernels", id(n), processFile), &ps) // it may not be there
			return ps
		}
		switch random.IntN(12) {
		case 0, 1:
			_, _, err = l.Start(t.Context(), req)
			return "start", err
		case 2:
			req.Env[lend.CountVariable] = "2"
			_, _, err = l.Start(t.Context(), req)
			return "start for GPUs", err
		case 3:
			req.Spec = fakeSpec([]string{"refuse", "program", "leave"}[n%3])
			_, _, _ = l.Start(t.Context(), req) // some fail
			return "failed start", nil
		case 4, 5:
			_, _, err = l.Start(t.Context(), anyStart("user0"))
			return "warm start", err
		case 6:
			done, err := l.Restarting(t.Context(), id(n))
			if err == nil {
				done()
				_, err = l.Revive(t.Context(), id(n))
			}
			return "restart", err
		case 7:
			if ps := pids(); ps.Kernel > 1 {
				return "kernel killed", syscall.Kill(ps.Kernel, syscall.SIGKILL)
			}
		case 8:
			if ps := pids(); ps.holder() > 1 {
				return "supervisor killed", syscall.Kill(ps.holder(), syscall.SIGKILL)
			}
		case 9:
			i := slices.Index(launchers, l)
			if err := l.Close(); err != nil {
				return "gateway restarted", err
			}
			launchers[i] = p.open()
			return "gateway restarted", nil
		default:
			all, err := l.Kernels(t.Context())
			if err != nil || len(all) == 0 {
				return "list", err
			}
			return "stop", l.Stop(t.Context(), all[random.IntN(len(all))].ID, "at random")
		}
		return "nothing", nil
	}
	compare := func(equal func(folders, memory []string) bool) (text string) {
		for i, l := range launchers {
			unlockStarts, err := l.starts.lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			memory, folders := countedByMemory(t, l), countedByFolders(t, l)
			unlockStarts()
			if !equal(folders, memory) {
				text += fmt.Sprintf("gateway %d counts %v, and by the folders %v count; ", i, memory, folders)
			}
		}
		return text
	}
	most := 0
	for range 150 {
		what, err := step(launchers[random.IntN(2)])
		switch {
		case err == nil:
			did[what]++
		case !errors.Is(err, launcher.ErrNotFound) && !errors.Is(err, launcher.ErrConflict) &&
			!errors.Is(err, launcher.ErrUnavailable) && !errors.Is(err, syscall.ESRCH) &&
			!errors.As(err, new(*launcher.FailedError)):
			t.Errorf("%s: %v", what, err)
		}
		if text := compare(func(folders, memory []string) bool {
			most = max(most, len(folders))
			return !slices.ContainsFunc(folders, func(id string) bool { return !slices.Contains(memory, id) })
		}); text != "" {
			t.Fatalf("after %s: %s", what, text)
		}
		if random.IntN(10) == 0 {
			poll.Until(t, "memory counts what the folders do", func() bool { return compare(slices.Equal) == "" })
		}
	}
	poll.Until(t, "memory counts what the folders do", func() bool { return compare(slices.Equal) == "" })
	t.Logf("%v, and up to %d kernels at one time", did, most)
	if len(did) < 8 || most < 3 {
		t.Error("the test proves little")
	}
	count.Store(0)
	p.warm(0, launchers...)
}
