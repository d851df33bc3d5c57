package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/logs"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestDeadLinger(t *testing.T) {
	p := newPlace(t)
	p.change = func(o *Options, tm *timing) { o.DeadLinger, tm.maintenance = time.Second, 100*time.Millisecond }
	l := p.launcher()
	p.start(l, 1, "fine")
	kill(t, processesOf(t, p, 1).Kernel)
	k := wait(t, l, 1, "dead", isDead)
	if k.Reason != "it died in a test" {
		t.Errorf("dead: %+v", k)
	}
	eventually(t, "the dead kernel is removed", func() bool {
		all, err := l.Kernels(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 0
	})
	var gone *launcher.GoneError
	if _, err := l.Kernel(t.Context(), id(1)); !errors.As(err, &gone) || gone.Reason != "it died in a test" {
		t.Errorf("then: %v", err)
	}
	if _, err := os.Stat(filepath.Join(p.state, "kernels", id(1))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}
}

func TestLogTotal(t *testing.T) {
	p := newPlace(t)
	p.change = func(o *Options, _ *timing) { o.LogLimit, o.LogTotal = 4<<20, 10<<20 }
	l := p.launcher()
	limits := func() (all []int64) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, k := range l.kernels.byID {
			all = append(all, k.supervisor.Status.LogLimit)
		}
		return all
	}
	for n, want := range []int64{4 << 20, 4 << 20, 10 << 20 / 3, 10 << 20 / 4} {
		p.start(l, n, "fine")
		eventually(t, fmt.Sprintf("each of %d has its share", n+1), func() bool {
			got := limits()
			for _, g := range got {
				if g != want {
					return false
				}
			}
			return len(got) == n+1
		})
	}
	for n := range 2 {
		if err := l.Stop(t.Context(), id(n), ""); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "they get more when others go", func() bool {
		got := limits()
		return len(got) == 2 && got[0] == 4<<20 && got[1] == 4<<20
	})
}

// TestLogTotal_StartsInARow: a start does not send new limits to every kernel that runs. The limits of many starts are
// sent together.
func TestLogTotal_StartsInARow(t *testing.T) {
	p := newPlace(t)
	const total, starts = 64 << 20, 16
	rounds := make(chan time.Time)
	p.change = func(o *Options, tm *timing) {
		o.LogLimit, o.LogTotal, tm.rounds, tm.pushPause = total, total, rounds, time.Hour
	}
	l := p.launcher()
	rounds <- time.Now()
	rounds <- time.Now() // the first rounds are over: a slow one would send the limits of the first starts
	for n := range starts {
		p.start(l, n, "fine")
		wait(t, l, n, "idle", isIdle)
	}
	sent := func() (all int) {
		for n := range starts {
			b, err := os.ReadFile(l.layout.file(id(n), limitsFile))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
			all += len(b)
		}
		return all
	}
	if n := sent(); n != 0 {
		t.Errorf("%d limits were sent before the pause had ended", n)
	}
	// An end is urgent. Its round sends each of the others one limit at most.
	if err := l.Stop(t.Context(), id(starts-1), ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all have the limit of now", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for n := range starts - 1 {
			if !logs.IsNear(l.kernels.byID[id(n)].supervisor.Status.LogLimit, total/(starts-1)) {
				return false
			}
		}
		return true
	})
	if n := sent(); n > 2*starts {
		t.Errorf("%d limits were sent to %d kernels", n, starts)
	}
}

// TestLogTotal_BytesInUse: kernels without output take nothing from a log that is in use. The total is never exceeded.
func TestLogTotal_BytesInUse(t *testing.T) {
	p := newPlace(t)
	const total = 16 << 20
	p.change = func(o *Options, _ *timing) { o.LogLimit, o.LogTotal = total, total }
	l := p.launcher()
	p.start(l, 0, "full")
	const empty = 9
	for n := range empty {
		p.start(l, n+1, "fine")
	}
	var first api.Status
	settled := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		sum, limited := int64(0), 0
		for _, k := range l.kernels.byID {
			sum += k.supervisor.Status.LogLimit
			if k.supervisor.HasStatus {
				limited++
			}
		}
		first = l.kernels.byID[id(0)].supervisor.Status
		return sum <= total && limited == empty+1
	}
	eventually(t, "all logs are within the total", settled)
	if first.LogBytes < total/8*7 || first.LogLimit < first.LogBytes {
		t.Errorf("beside %d empty ones, the full log holds %d bytes of at most %d", empty, first.LogBytes, first.LogLimit)
	}
}

// TestLogTotal_Growth: a log that becomes full gets more, up to a fair share between users.
func TestLogTotal_Growth(t *testing.T) {
	p := newPlace(t)
	const total = 64 << 20
	p.change = func(o *Options, tm *timing) { o.LogLimit, o.LogTotal, tm.maintenance = total, total, time.Hour }
	l := p.launcher()
	owners := []string{"ann", "bob", "bob"}
	for n, owner := range owners {
		if err := p.tryStart(l, n, owner, "filling"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "users have halves, and the kernels of one a quarter", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		limit := func(n int) int64 { return l.kernels.byID[id(n)].supervisor.Status.LogLimit }
		return logs.IsNear(limit(0), total/2) && logs.IsNear(limit(1), total/4) && logs.IsNear(limit(2), total/4) &&
			limit(0)+limit(1)+limit(2) <= total
	})
}

func TestSweep(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	stone := func(name string, age time.Duration) {
		t.Helper()
		path := filepath.Join(p.state, "ended", name)
		if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	stone("old.json", endedAge+time.Hour)
	stone("older.json", endedAge-time.Hour)
	for i := range endedKept {
		stone(strconv.Itoa(i)+".json", time.Hour)
	}
	run := filepath.Join(p.runtime, l.layout.mark+"00000000")
	foreign := filepath.Join(p.runtime, "00000000000000")
	warm := filepath.Join(p.runtime, l.layout.mark+"00000001")
	for _, d := range []string{run, foreign, warm} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(d, old, old); err != nil {
			t.Fatal(err)
		}
	}
	entry := warmEntry{ID: id(1), RunDir: warm}
	if err := files.WriteJSON(l.layout.warmFile(entry.ID), entry); err != nil {
		t.Fatal(err)
	}
	entries, err := l.warm.entries()
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	l.warm.removeEntry(entry.ID) // another gateway's start takes the kernel after this one has read the kernels
	l.sweep(entries)
	left, err := os.ReadDir(filepath.Join(p.state, "ended"))
	if err != nil || len(left) != endedKept {
		t.Errorf("%d records of ends, %v", len(left), err)
	}
	for _, name := range []string{"old.json", "older.json"} {
		if _, err := os.Stat(filepath.Join(p.state, "ended", name)); err == nil {
			t.Errorf("%s is kept", name)
		}
	}
	if _, err := os.Stat(run); err == nil {
		t.Error("sockets without a kernel are kept")
	}
	if err := os.Remove(foreign); err != nil {
		t.Error("another state directory's sockets were removed")
	}
	if err := os.Remove(warm); err != nil {
		t.Error("the sockets of a warm kernel that was just taken were removed")
	}
}
