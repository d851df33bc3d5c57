package local

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// warmPlace makes a place whose launchers keep so many warm kernels.
func warmPlace(t *testing.T, count *atomic.Int64) *place {
	p := newPlace(t)
	p.change = func(o *Options, tm *timing) {
		o.Warm = func() []launcher.Warm {
			if count.Load() == 0 {
				return nil
			}
			return []launcher.Warm{{Start: launcher.Request{Spec: realSpec()}, Count: int(count.Load())}}
		}
		tm.warmPause, tm.warmFinish = 20*time.Millisecond, 200*time.Millisecond
	}
	return p
}

// warm waits until so many warm kernels are there, and no more.
func (p *place) warm(n int, launchers ...*Launcher) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%d warm kernels", n), func() bool {
		entries, err := os.ReadDir(filepath.Join(p.state, "warm"))
		waiting := 0
		for _, l := range launchers { // one of them keeps the warm kernels
			for _, c := range l.Measure().Warm {
				waiting += c.Waiting
			}
		}
		return err == nil && len(entries) == n && waiting == n
	})
}

// anyStart is a start whose client has not chosen an id.
func anyStart(owner string) launcher.Request {
	return launcher.Request{ID: uuid.NewString(), AnyID: true, Owner: owner, Spec: realSpec(),
		Env: map[string]string{"KERNEL_USERNAME": owner}}
}

// Several gateways take warm kernels at the same time. None is taken for two owners, and each has its owner's
// variables.
func TestWarm_OneOwner(t *testing.T) {
	var count atomic.Int64
	count.Store(4)
	p := warmPlace(t, &count)
	launchers := []*Launcher{p.launcher(), p.launcher(), p.launcher()}
	p.warm(4, launchers...)
	if all, err := launchers[1].Kernels(t.Context()); err != nil || len(all) != 0 {
		t.Fatalf("warm kernels are listed: %v %v", all, err)
	}
	var mu sync.Mutex
	owners := map[string]string{}
	var starts sync.WaitGroup
	for i := range 12 {
		starts.Go(func() {
			owner := fmt.Sprintf("user-%d", i)
			k, created, err := launchers[i%len(launchers)].Start(t.Context(), anyStart(owner))
			if err != nil || !created || k.Owner != owner {
				t.Errorf("start of %s: %v, created %v, %v", owner, k, created, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if before := owners[k.ID]; before != "" {
				t.Errorf("kernel %s is of %s and %s", k.ID, before, owner)
			}
			owners[k.ID] = owner
		})
	}
	starts.Wait()
	taken := 0
	for _, l := range launchers {
		for of, n := range l.Measure().WarmClaims {
			if of.Result == launcher.ClaimTaken {
				taken += int(n)
			}
		}
	}
	if taken < 4 {
		t.Errorf("%d starts took a warm kernel", taken)
	}
	for _, l := range launchers {
		all, err := l.Kernels(t.Context())
		if err != nil || len(all) != len(owners) {
			t.Fatalf("%d kernels are listed, %v", len(all), err)
		}
		for _, k := range all {
			if owners[k.ID] != k.Owner {
				t.Errorf("kernel %s of %s has the owner %s", k.ID, owners[k.ID], k.Owner)
			}
		}
	}
	for id, owner := range owners {
		eventually(t, "the kernel has its owner's variables", func() bool {
			var ps processIDs
			if files.ReadJSON(filepath.Join(p.state, "kernels", id, processFile), &ps) != nil || ps.Kernel == 0 {
				return false
			}
			env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", ps.Kernel))
			return err == nil && slices.Contains(strings.Split(string(env), "\x00"), "KERNEL_USERNAME="+owner)
		})
	}
	count.Store(0)
	p.warm(0, launchers...)
}

// A kernel that was taken by a gateway which died before it assigned the kernel is ended, and never taken again. Nobody
// can use it meanwhile.
func TestWarm_HalfTaken(t *testing.T) {
	var count atomic.Int64
	count.Store(1)
	p := warmPlace(t, &count)
	l := p.launcher()
	p.warm(1, l)
	entries, err := l.warm.entries()
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	rec, err := l.layout.readRecord(entries[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	rec.Owner = "ann"
	var k *kernel
	eventually(t, "it is taken, and the gateway dies", func() bool { // the launcher may look at it at this moment
		if k, err = l.warm.claim(t.Context(), entries[0], rec); err != nil {
			t.Fatal(err)
		}
		return k != nil
	})
	if again, err := l.warm.claim(t.Context(), entries[0], rec); again != nil || err != nil {
		t.Errorf("it was taken twice: %v %v", again, err)
	}
	eventually(t, "it is ended", func() bool {
		_, err := l.Kernel(t.Context(), k.id)
		return err != nil
	})
	count.Store(0)
	p.warm(0, l)
}

// A supervisor accepts one assignment, again and again, and no other.
func TestWarm_AssignedOnce(t *testing.T) {
	var count atomic.Int64
	count.Store(1)
	p := warmPlace(t, &count)
	l := p.launcher()
	p.warm(1, l)
	k, _, err := l.Start(t.Context(), anyStart("ann"))
	if err != nil {
		t.Fatal(err)
	}
	var stored struct {
		api.Assignment
		Done bool `json:"done"`
	}
	if err := files.ReadJSON(filepath.Join(p.state, "kernels", k.ID, api.AssignmentFile), &stored); err != nil ||
		!stored.Done || stored.Owner != "ann" {
		t.Fatalf("%+v, %v", stored, err)
	}
	known, err := l.find(t.Context(), k.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := known.client().Assign(t.Context(), stored.Assignment); err != nil {
		t.Errorf("the same assignment: %v", err)
	}
	other := stored.Assignment
	other.ID, other.Owner = uuid.NewString(), "ben"
	if err := known.client().Assign(t.Context(), other); err == nil || !strings.Contains(err.Error(), "assigned before") {
		t.Errorf("another assignment: %v", err)
	}
	count.Store(0)
	p.warm(0, l)
}

// Requests that a warm kernel cannot fulfil get ordinary kernels.
func TestWarm_Unfit(t *testing.T) {
	var count atomic.Int64
	count.Store(1)
	p := warmPlace(t, &count)
	l := p.launcher()
	p.warm(1, l)
	own := anyStart("ann")
	own.AnyID = false
	if k, _, err := l.Start(t.Context(), own); err != nil || k.ID != own.ID {
		t.Errorf("with an id of its own: %v %v", k, err)
	}
	other := anyStart("ann")
	other.Spec.InterruptMode = "message"
	if k, _, err := l.Start(t.Context(), other); err != nil || k.ID != other.ID {
		t.Errorf("with another mode: %v %v", k, err)
	}
	if n := l.Measure().WarmClaims[launcher.WarmClaim{SpecName: realSpec().Name, Result: launcher.ClaimUnfit}]; n != 2 {
		t.Errorf("%d starts did not fit", n)
	}
	count.Store(0)
	p.warm(0, l)
}
