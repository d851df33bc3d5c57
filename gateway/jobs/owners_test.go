package jobs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// people are the users of a test. Who is not named is unlisted.
type people struct {
	mu    sync.Mutex
	known map[string]identity.Standing
	seen  map[string]bool
}

func (p *people) Standing(_ context.Context, name string) (identity.Standing, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	standing, listed := p.known[name]
	switch {
	case !listed:
		return identity.Unlisted, nil
	case standing == identity.Undecided:
		return standing, errors.New("the hub is away")
	}
	return standing, nil
}

func (p *people) Seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer clear(p.seen)
	return slices.Collect(maps.Keys(p.seen))
}

func (p *people) set(name string, s identity.Standing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known[name] = s
}

// see verifies a token.
func (p *people) see(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[name] = true
}

// peopled is gatewayAt for a gateway with users.
func peopled(
	at timing, records *launchertest.MemoryRecords, kernels Kernels, users Users, policy Policy,
) (m *Manager, end func()) {
	m, end = gatewayAt(at, records, kernels, policy, time.Minute)
	end() // it has not been asked for anything
	m.Ask(users)
	return m, started(m)
}

func newPeople(known ...string) *people {
	p := &people{known: map[string]identity.Standing{}, seen: map[string]bool{}}
	for _, name := range known {
		p.known[name] = identity.Known
	}
	return p
}

// TestManager_OwnerGone: of an owner who was removed, no job starts: none that waits, none of a schedule, none on
// request, none that begins again, and none in a kernel of the owner. What runs goes on. The others' jobs start.
func TestManager_OwnerGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		users, kernels := newPeople("ann", "bob"), newCluster(1)
		m, end := peopled(realTiming, &launchertest.MemoryRecords{}, kernels, users, Policy{})
		defer end()
		hers, his := define(t, m, "ann", "hours", "0 * * * *", ""), define(t, m, "bob", "hours", "0 * * * *", "")
		runs := submit(t, m, submission("ann", "runs"))
		time.Sleep(time.Millisecond)
		waits := submit(t, m, submission("ann", "waits"))
		time.Sleep(12 * time.Second) // not in the moment in which it is tried again
		wantState(t, m, runs, Running, "")
		wantState(t, m, waits, Queued, "enough kernels")
		users.set("ann", identity.Gone)
		inKernel := submit(t, m, submissionIn("k", ThenKeep))
		time.Sleep(12 * time.Second)
		wantState(t, m, waits, Failed, reasonGone)
		wantState(t, m, inKernel, Failed, reasonGone)
		time.Sleep(time.Minute)
		wantState(t, m, runs, Succeeded, "")
		by, _, err := m.RunDefinition(t.Context(), hers, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		wantState(t, m, by.ID, Failed, reasonGone)
		wantDues(t, m, his, "01-01 01:00")
		d, err := m.Definition(t.Context(), hers)
		if err != nil || d.Active || d.Reason != "it is paused: "+reasonGone || !d.Due.IsZero() {
			t.Errorf("the definition is %+v, %v", d, err)
		}
		if got := kernels.started(); !slices.Equal(got, []string{"ann", "bob"}) || kernels.living() != 0 {
			t.Errorf("kernels of %v were started, %d live", got, kernels.living())
		}
		// The owner is back, and resumes the definition.
		users.set("ann", identity.Known)
		yes := true
		if d, err = m.ChangeDefinition(t.Context(), hers, Change{Active: &yes}); err != nil || d.Reason != "" {
			t.Errorf("resumed: %+v, %v", d, err)
		}
		time.Sleep(time.Hour)
		if d, err = m.Definition(t.Context(), hers); err != nil || d.Due.Format("15:04") != "02:00" {
			t.Errorf("after it was resumed: %+v, %v", d, err)
		}
	})
}

// TestManager_OwnerUndecided: while it is not known whether an owner is still a user, jobs wait, and none is lost.
func TestManager_OwnerUndecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		users, kernels := newPeople("ann", "bob"), newCluster(9)
		m, end := peopled(realTiming, &launchertest.MemoryRecords{}, kernels, users, Policy{})
		defer end()
		users.set("ann", identity.Undecided)
		id := define(t, m, "ann", "hours", "0 * * * *", "")
		job, inKernel := submit(t, m, submission("ann", "waits")), submit(t, m, submissionIn("k", ThenKeep))
		time.Sleep(3*time.Hour + time.Minute)
		wantState(t, m, job, Queued, reasonUndecided)
		wantState(t, m, inKernel, Queued, reasonUndecided)
		if n := len(kernels.started()); n != 0 {
			t.Errorf("%d kernels were started", n)
		}
		submit(t, m, submission("bob", "another's"))
		time.Sleep(10 * time.Second)
		if got := kernels.started(); !slices.Equal(got, []string{"bob"}) {
			t.Errorf("kernels of %v were started", got)
		}
		users.set("ann", identity.Known)
		time.Sleep(10 * time.Minute)
		wantState(t, m, job, Succeeded, "")
		wantState(t, m, inKernel, Succeeded, "")
		wantDues(t, m, id, "01-01 01:00", "01-01 02:00", "01-01 03:00")
	})
}

// TestManager_OwnerAbsent: where only tokens tell who is a user, the last one that any gateway has verified counts. An
// owner who was never seen, as after an upgrade, is seen when the first job is due. The days are short ones.
func TestManager_OwnerAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const unit = 96 * time.Minute // of which 30 are two days
		records, kernels, policy := &launchertest.MemoryRecords{}, newCluster(9), Policy{OwnerAbsence: 30 * unit, Keep: 1}
		doors, other := newPeople(), newPeople()
		first, endFirst := peopled(calm, records, kernels, doors, policy)
		m, end := peopled(calm, records, kernels, other, policy)
		ids := map[string]string{}
		for _, owner := range []string{"ann", "bob", "cat"} {
			ids[owner] = define(t, first, owner, "hours", "0 * * * *", "")
		}
		doors.see("cat") // and never again
		for range 20 {
			doors.see("ann")
			doors.see("eve") // who has no jobs
			time.Sleep(unit)
		}
		endFirst()
		active := func(days string) (names string) {
			for _, owner := range []string{"ann", "bob", "cat"} {
				d, err := m.Definition(t.Context(), ids[owner])
				if err != nil {
					t.Fatal(err)
				}
				if d.Active {
					names += owner + " "
				} else if want := "it is paused: no token of its owner was verified for 2 days"; d.Reason != want {
					t.Errorf("day %s, %s: %q", days, owner, d.Reason)
				}
			}
			return names
		}
		time.Sleep(9*unit + time.Minute)
		if got := active("29"); got != "ann bob cat " {
			t.Errorf("after 29 days: %s", got)
		}
		time.Sleep(2 * unit)
		if got := active("31"); got != "ann " {
			t.Errorf("after 31 days: %s", got)
		}
		time.Sleep(17 * unit)
		if got := active("48"); got != "ann " {
			t.Errorf("after 48 days: %s", got)
		}
		time.Sleep(3 * unit)
		if got := active("51"); got != "" {
			t.Errorf("after 51 days: %s", got)
		}
		sightings := func(want int) {
			t.Helper()
			if ids, err := records.RecordIDs(t.Context(), kindOwner); err != nil || len(ids) != want {
				t.Errorf("%d sightings, want %d: %v", len(ids), want, err)
			}
		}
		sightings(3)
		for _, id := range ids {
			if err := m.RemoveDefinition(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(3 * calm.sweep)
		end()
		list, err := m.List(t.Context(), func(*Job) bool { return true })
		if err != nil || slices.ContainsFunc(list, func(j Job) bool { return strings.Contains(j.Reason, "owner") }) {
			t.Errorf("jobs: %+v, %v", list, err)
		}
		sightings(0)
	})
}
