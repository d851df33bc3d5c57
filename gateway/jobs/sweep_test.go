package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// faulty keeps records. Some of them are damaged, and some cannot be removed. Tests set both before the records are
// read.
type faulty struct {
	*launchertest.MemoryRecords
	damaged, stuck string // ids
}

func (f *faulty) Record(ctx context.Context, kind, id string) (launcher.Record, error) {
	if id == f.damaged {
		return launcher.Record{}, launcher.ErrRecordDamaged
	}
	return f.MemoryRecords.Record(ctx, kind, id)
}

func (f *faulty) Records(ctx context.Context, kind string) ([]launcher.Record, error) {
	all, err := f.MemoryRecords.Records(ctx, kind)
	for i := range all {
		if all[i].ID == f.damaged {
			all[i].Data = nil
		}
	}
	return all, err
}

func (f *faulty) RemoveRecord(ctx context.Context, kind, id string) error {
	if id == f.stuck {
		return launcher.ErrUnavailable
	}
	return f.MemoryRecords.RemoveRecord(ctx, kind, id)
}

// spoil replaces the content of a record by what is not JSON.
func (f *faulty) spoil(t *testing.T, kind, id string) {
	t.Helper()
	r, err := f.Record(t.Context(), kind, id)
	if err != nil {
		t.Fatal(err)
	}
	r.Data = []byte("{")
	if _, err := f.ReplaceRecord(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func wantIDs(t *testing.T, records launcher.RecordKeeper, kind string, want ...string) {
	t.Helper()
	ids, err := records.RecordIDs(t.Context(), kind)
	slices.Sort(ids)
	slices.Sort(want)
	if err != nil || !slices.Equal(ids, want) {
		t.Errorf("%s are %q, %v; want %q", kind, ids, err, want)
	}
}

// A job of a definition that cannot be read can be removed.
func TestManager_RemoveOfDamagedDefinition(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			records := &faulty{MemoryRecords: &launchertest.MemoryRecords{}}
			m, end := gatewayAt(calm, records, newCluster(9), Policy{}, time.Second)
			id := define(t, m, "ann", "hourly", "@hourly", "")
			time.Sleep(time.Hour + time.Minute)
			wantDues(t, m, id, "01-01 01:00")
			d, err := m.Definition(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			end()
			if records.spoil(t, kindDefinition, id); sealed {
				records.damaged = id
			}
			if err := m.Remove(t.Context(), d.Job); err != nil {
				t.Errorf("remove: %v", err)
			}
			wantIDs(t, records, kindJob)
		})
	}
}

// A job that cannot be removed does not keep other jobs and notebooks. The error names it.
func TestManager_SweepGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := &faulty{MemoryRecords: &launchertest.MemoryRecords{}}
		m, end := gatewayOf(records, newCluster(9), Policy{KeepFor: time.Hour}, time.Second)
		var ids []string
		for i := range 3 {
			ids = append(ids, submit(t, m, submission("ann", fmt.Sprint(i))))
			time.Sleep(time.Minute)
		}
		end()
		lost, err := m.store.keep(t.Context(), kindNotebook, "lost", []byte("{}"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		s, err := m.store.job(t.Context(), ids[2]) // the sweep begins with it
		if err != nil {
			t.Fatal(err)
		}
		records.stuck = s.ID
		if err := m.sweep(t.Context()); !errors.Is(err, launcher.ErrUnavailable) || !strings.Contains(err.Error(), s.ID) {
			t.Errorf("sweep: %v", err)
		}
		wantIDs(t, records, kindJob, s.ID)
		named, err := s.pieces()
		if err != nil {
			t.Fatal(err)
		}
		kept := slices.Collect(maps.Keys(named))
		if len(kept) != 2 {
			t.Errorf("the job has the pieces %q", kept)
		}
		wantIDs(t, records, kindNotebook, append(slices.Clone(kept), lost)...)
		if err := m.sweep(t.Context()); err == nil {
			t.Error("the sweep reported no error about a job that cannot be removed")
		}
		wantIDs(t, records, kindNotebook, kept...)
	})
}

// A damaged job or definition keeps its own notebooks, and no others.
func TestManager_SweepBesideDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := &faulty{MemoryRecords: &launchertest.MemoryRecords{}}
		m := New(records, newCluster(9), Policy{}, slog.New(slog.DiscardHandler)) // it does not run
		job := submit(t, m, submission("ann", "job"))
		s, err := m.store.job(t.Context(), job)
		if err != nil {
			t.Fatal(err)
		}
		d, err := m.store.definition(t.Context(), define(t, m, "ann", "daily", "@daily", ""))
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{kindNotebook, kindDefinitionNotebook} {
			if _, err := m.store.keep(t.Context(), kind, "lost", []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
		records.damaged = job
		records.spoil(t, kindDefinition, d.ID)
		for range 2 {
			if err := errors.Join(m.sweep(t.Context()), m.sweepDefinitions(t.Context())); err != nil {
				t.Error(err)
			}
		}
		wantIDs(t, records, kindNotebook, s.Source)
		wantIDs(t, records, kindDefinitionNotebook, d.Source)
	})
}

// again is records in which a job that has ended is removed and submitted again, when it is read.
type again struct {
	*launchertest.MemoryRecords
	before func()
}

func (a *again) Record(ctx context.Context, kind, id string) (launcher.Record, error) {
	if before := a.before; kind == kindJob && before != nil {
		a.before = nil
		before()
	}
	return a.MemoryRecords.Record(ctx, kind, id)
}

// A job that was submitted again under the id of one that is too many stays.
func TestManager_TrimSubmittedAgain(t *testing.T) {
	records := &again{MemoryRecords: &launchertest.MemoryRecords{}}
	m := New(records, newCluster(0), Policy{Keep: 1}, slog.New(slog.DiscardHandler))
	once := submission("ann", "once")
	once.Token = "t"
	id := submit(t, m, once)
	if _, err := m.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Stop(t.Context(), submit(t, m, submission("ann", "newer"))); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.readable(t.Context(), false); err != nil { // the trim reads only the job that it removes
		t.Fatal(err)
	}
	records.before = func() {
		if err := m.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
		submit(t, m, once)
	}
	if err := m.trim(t.Context()); err != nil {
		t.Error(err)
	}
	wantState(t, m, id, Queued, "")
}

// listings counts how often all records of jobs are listed.
type listings struct {
	*launchertest.MemoryRecords
	all atomic.Int64
}

func (l *listings) RecordStamps(ctx context.Context, kind string, onlyOpen bool) (map[string]string, error) {
	if kind == kindJob && !onlyOpen {
		l.all.Add(1)
	}
	return l.MemoryRecords.RecordStamps(ctx, kind, onlyOpen)
}

// Jobs that end one after the other do not each cost a list of all that is kept.
func TestManager_TrimSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := &listings{MemoryRecords: &launchertest.MemoryRecords{}}
		m, end := gatewayOf(records, newCluster(1), Policy{Keep: 5}, time.Second)
		defer end()
		for i := range 60 {
			if _, err := m.Stop(t.Context(), submit(t, m, submission("ann", fmt.Sprint(i)))); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := records.all.Load(); n == 0 || n > 3 {
			t.Errorf("all records were listed %d times in a minute", n)
		}
		time.Sleep(time.Minute)
		if ids, err := records.RecordIDs(t.Context(), kindJob); err != nil || len(ids) != 5 {
			t.Errorf("%d jobs are kept, %v", len(ids), err)
		}
	})
}
