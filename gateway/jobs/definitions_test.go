package jobs

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// calm is for tests of whole days: the gateway looks at its jobs less often.
var calm = timing{scan: 5 * time.Minute, beat: 10 * time.Second, lease: time.Minute, again: time.Minute,
	sweep: 100 * time.Hour}

func define(t *testing.T, m *Manager, owner, name, cron, zone string) string {
	t.Helper()
	d, created, err := m.Define(t.Context(), submission(owner, name), Change{Schedule: &cron, Timezone: &zone})
	if err != nil || !created || !d.Active {
		t.Fatalf("define: %+v, %v, %v", d, created, err)
	}
	return d.ID
}

// dues returns the times for which a definition's jobs were made, in order. Each of them has succeeded.
func dues(t *testing.T, m *Manager, definition string) (all []string) {
	t.Helper()
	list, err := m.List(t.Context(), func(j *Job) bool { return j.Definition == definition })
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range list {
		wantState(t, m, j.ID, Succeeded, "")
		all = append(all, j.Due.Format("01-02 15:04"))
	}
	slices.Sort(all)
	return all
}

func wantDues(t *testing.T, m *Manager, definition string, want ...string) {
	t.Helper()
	if got := dues(t, m, definition); !slices.Equal(got, want) {
		t.Errorf("jobs are due at %q, want %q", got, want)
	}
}

// A day with two gateways, of which one or the other is away: each time has one job. The clock is a fake one.
func TestManager_Day(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(9)
		start := func() (*Manager, func()) { return gatewayAt(calm, records, kernels, Policy{}, time.Minute) }
		a, endA := start()
		b, endB := start()
		hours := define(t, a, "ann", "hours", "0 * * * *", "")
		daily := define(t, b, "bob", "daily", "0 6 * * *", "Europe/Berlin")
		for range 12 {
			time.Sleep(55 * time.Minute)
			endA()
			time.Sleep(10 * time.Minute)
			_, endA = start()
			time.Sleep(50 * time.Minute)
			endB()
			time.Sleep(5 * time.Minute)
			b, endB = start()
		}
		time.Sleep(10 * time.Minute)
		got := dues(t, b, hours)
		if len(got) != 24 || len(slices.Compact(slices.Clone(got))) != 24 {
			t.Errorf("%d jobs of a day's hours: %q", len(got), got)
		}
		wantDues(t, b, daily, "01-01 05:00")
		endA()
		endB()
		if n := kernels.living(); n != 0 || len(kernels.started()) != 25 {
			t.Errorf("%d kernels live of %d", n, len(kernels.started()))
		}
	})
}

// A time that a change of the clock leaves out is replaced, and one that it repeats is due once.
func TestManager_ClocksChange(t *testing.T) {
	for _, test := range []struct {
		from time.Time
		want []string
	}{
		{time.Date(2000, 3, 25, 0, 0, 0, 0, time.UTC), []string{"03-25 01:30", "03-26 01:00", "03-27 00:30"}},
		{time.Date(2000, 10, 28, 0, 0, 0, 0, time.UTC), []string{"10-28 00:30", "10-29 00:30", "10-30 01:30"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(test.from))
			m, end := gatewayAt(calm, &launchertest.MemoryRecords{}, newCluster(9), Policy{}, time.Second)
			defer end()
			id := define(t, m, "ann", "early", "30 2 * * *", "Europe/Berlin")
			time.Sleep(72 * time.Hour)
			wantDues(t, m, id, test.want...)
		})
	}
}

// A gateway that is killed before any of its writes makes no job of a schedule twice, and none is missing.
func TestManager_ScheduleKilledAnywhere(t *testing.T) {
	for writes := range 40 {
		synctest.Test(t, func(t *testing.T) {
			records, kernels := &launchertest.MemoryRecords{}, newCluster(9)
			first, endFirst := gatewayOf(records, kernels, Policy{}, time.Second)
			id := define(t, first, "ann", "often", "*/10 * * * *", "")
			endFirst()
			_, endA := gatewayOf(&mortal{MemoryRecords: records, left: writes}, kernels, Policy{}, time.Second)
			defer endA()
			time.Sleep(24 * time.Minute)
			b, endB := gatewayOf(records, kernels, Policy{}, time.Second)
			defer endB()
			time.Sleep(3 * time.Minute)
			got := dues(t, b, id)
			if twice := len(slices.Compact(slices.Clone(got))) != len(got); twice || !slices.Contains(got, "01-01 00:20") {
				t.Errorf("after %d writes: jobs are due at %q", writes, got)
			}
			if n := kernels.living(); n != 0 || len(kernels.started()) != len(got) {
				t.Errorf("after %d writes: %d kernels live of %d", writes, n, len(kernels.started()))
			}
		})
	}
}

// A gateway dies when it has made a job, and before the definition says so. The job ends and is removed: it is not made
// again.
func TestManager_RemovedBeforeItIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := &launchertest.MemoryRecords{}
		m, end := gatewayAt(calm, records, newCluster(9), Policy{}, time.Second)
		defer end()
		id := define(t, m, "ann", "daily", "@daily", "")
		d, err := m.store.definition(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(24*time.Hour + time.Minute)
		wantDues(t, m, id, "01-02 00:00")
		now, err := m.store.definition(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		d.version = now.version // as if it were not noted
		if err := m.store.writeDefinition(t.Context(), &d); err != nil {
			t.Fatal(err)
		}
		if err := m.Remove(t.Context(), now.Job); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		wantDues(t, m, id)
	})
}

// TestManager_EarlierSchedule: a stored schedule that an earlier release took is paused, and its owner reads why. The
// others go on. It cannot be resumed as it is.
func TestManager_EarlierSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, end := gatewayAt(calm, &launchertest.MemoryRecords{}, newCluster(9), Policy{}, time.Second)
		defer end()
		id, other := define(t, m, "ann", "last day", "@daily", ""), define(t, m, "bob", "hours", "0 * * * *", "")
		_, err := m.store.changeDefinition(t.Context(), id, func(d *definition) error {
			d.Schedule = "0 0 L * *"
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(61 * time.Minute)
		d, err := m.Definition(t.Context(), id)
		if err != nil || d.Active || !strings.Contains(d.Reason, "paused: ") || !strings.Contains(d.Reason, "L, W or #") {
			t.Errorf("it is %+v, %v", d, err)
		}
		wantDues(t, m, other, "01-01 01:00")
		yes, cron := true, "0 0 28 * *"
		var invalid *InvalidError
		if _, err := m.ChangeDefinition(t.Context(), id, Change{Active: &yes}); !errors.As(err, &invalid) {
			t.Errorf("resumed as it is: %v", err)
		}
		d, err = m.ChangeDefinition(t.Context(), id, Change{Active: &yes, Schedule: &cron})
		if err != nil || !d.Active || d.Reason != "" {
			t.Errorf("resumed with another schedule: %+v, %v", d, err)
		}
	})
}

func TestManager_Definitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(9)
		m, end := gatewayOf(records, kernels, Policy{Definitions: 2, PerUser: 1}, time.Second)
		defer end()
		id := define(t, m, "ann", "hours", "0 * * * *", "")
		change := func(c Change) Definition {
			t.Helper()
			d, err := m.ChangeDefinition(t.Context(), id, c)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		no, yes := false, true
		if d := change(Change{Active: &no}); !d.Next.IsZero() {
			t.Errorf("a paused definition is due at %s", d.Next)
		}
		time.Sleep(150 * time.Minute)
		wantDues(t, m, id)
		if d := change(Change{Active: &yes}); d.Next.Format("15:04") != "03:00" {
			t.Errorf("a resumed definition is due at %s", d.Next)
		}
		time.Sleep(35 * time.Minute)
		wantDues(t, m, id, "01-01 03:00")

		sub, cron := submission("root", "other"), "30 * * * *"
		sub.Notebook = []byte(strings.Replace(source, "x = 1", "x = 2", 1))
		if d := change(Change{Submission: &sub, Schedule: &cron}); d.Owner != "ann" || d.Name != "other" {
			t.Errorf("a changed definition: %+v", d)
		}
		time.Sleep(30 * time.Minute)
		wantDues(t, m, id, "01-01 03:00", "01-01 03:30")
		d, err := m.Definition(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		b, err := notebookText(t.Context(), m, d.Job, true)
		if err != nil || !strings.Contains(b, "x = 2") {
			t.Errorf("the notebook of a changed definition: %s, %v", b, err)
		}
		runNow(t, m, id)
		tooMany(t, m, kernels, id)

		for _, wrong := range []struct{ cron, zone string }{{"0 0 * *", ""}, {"@daily", "Nowhere/X"}, {"", "UTC"}} {
			var invalid *InvalidError
			_, err := m.ChangeDefinition(t.Context(), id, Change{Schedule: &wrong.cron, Timezone: &wrong.zone})
			if !errors.As(err, &invalid) {
				t.Errorf("%+v: %v", wrong, err)
			}
		}
		if err := m.RemoveDefinition(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Definition(t.Context(), id); !errors.Is(err, launcher.ErrNoRecord) {
			t.Errorf("a removed definition: %v", err)
		}
		time.Sleep(3 * time.Hour)
		for kind, want := range map[string]int{kindDefinition: 1, kindDefinitionNotebook: 1} {
			if left, _ := records.RecordIDs(t.Context(), kind); len(left) != want {
				t.Errorf("%s that are left: %q", kind, left)
			}
		}
	})
}

// runNow makes jobs of a definition on request.
func runNow(t *testing.T, m *Manager, id string) {
	t.Helper()
	other := json.RawMessage(`{"x": 7}`)
	job, created, err := m.RunDefinition(t.Context(), id, other, "once")
	if err != nil || !created || string(job.Parameters) != string(other) || job.Definition != id || !job.Due.IsZero() {
		t.Errorf("run now: %+v, %v, %v", job, created, err)
	}
	if again, created, err := m.RunDefinition(t.Context(), id, nil, "once"); err != nil || created || again.ID != job.ID {
		t.Errorf("run now again: %+v, %v, %v", again, created, err)
	}
	time.Sleep(10 * time.Second)
	wantState(t, m, job.ID, Succeeded, "")
	if err := m.Remove(t.Context(), job.ID); err != nil {
		t.Error(err)
	}
}

// tooMany reaches the limits of jobs and of definitions. A firing over the limit is left out, and the reason is shown.
func tooMany(t *testing.T, m *Manager, kernels *cluster, id string) {
	t.Helper()
	kernels.setRoom(0)
	waits := submit(t, m, submission("ann", "waits"))
	time.Sleep(57 * time.Minute)
	d, err := m.Definition(t.Context(), id)
	if err != nil || !strings.Contains(d.Reason, "You have 1 jobs") || d.Job != "" {
		t.Errorf("a firing over the limit: %+v, %v", d, err)
	}
	if _, err := m.Stop(t.Context(), waits); err != nil {
		t.Error(err)
	}
	define(t, m, "ann", "second", "@yearly", "")
	var many *TooManyError
	if _, _, err := m.Define(t.Context(), submission("ann", "third"), Change{}); !errors.As(err, &many) {
		t.Errorf("a third definition: %v", err)
	}
}
