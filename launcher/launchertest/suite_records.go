package launchertest

import (
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// records checks launcher.RecordKeeper with two launchers.
func (s suite) records(t *testing.T) {
	a, ok := s.launcher(t).(launcher.RecordKeeper)
	if !ok {
		t.Skip("the launcher keeps no records")
	}
	b := s.launcher(t).(launcher.RecordKeeper)
	ctx := limited(t)
	if ids, err := a.RecordIDs(ctx, "test"); err != nil || len(ids) != 0 {
		t.Fatalf("before any record: %v, %v", ids, err)
	}
	first, err := a.CreateRecord(ctx, launcher.Record{Kind: "test", ID: "one", Data: []byte("0"), Version: "any"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.CreateRecord(ctx, first); !errors.Is(err, launcher.ErrRecordChanged) {
		t.Errorf("a record was created twice: %v", err)
	}
	if r, err := b.Record(ctx, "test", "one"); err != nil || string(r.Data) != "0" || r.Version != first.Version {
		t.Errorf("the other launcher reads %+v, %v", r, err)
	}
	if _, err := b.Record(ctx, "other", "one"); !errors.Is(err, launcher.ErrNoRecord) {
		t.Errorf("a record of another kind: %v", err)
	}
	countTogether(t, a, b)
	first.Data = []byte("late")
	if _, err := a.ReplaceRecord(ctx, first); !errors.Is(err, launcher.ErrRecordChanged) {
		t.Errorf("a changed record was replaced: %v", err)
	}
	large := slices.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB
	if _, err := a.CreateRecord(ctx, launcher.Record{Kind: "test", ID: "two", Data: large}); err != nil {
		t.Errorf("a large record: %v", err)
	}
	if r, err := b.Record(ctx, "test", "two"); err != nil || !slices.Equal(r.Data, large) {
		t.Errorf("a large record has %d bytes, %v", len(r.Data), err)
	}
	all, err := b.Records(ctx, "test")
	if err != nil || len(all) != 2 {
		t.Errorf("%d records, %v", len(all), err)
	}
	for _, id := range []string{"one", "two", "two"} { // the last is removed already
		if err := b.RemoveRecord(ctx, "test", id); err != nil {
			t.Errorf("remove %s: %v", id, err)
		}
	}
	if ids, err := a.RecordIDs(ctx, "test"); err != nil || len(ids) != 0 {
		t.Errorf("after all were removed: %v, %v", ids, err)
	}
	if _, err := a.ReplaceRecord(ctx, first); !errors.Is(err, launcher.ErrRecordChanged) {
		t.Errorf("a removed record was replaced: %v", err)
	}
	for _, id := range []string{"", "../x", "A", ".lock"} {
		if _, err := a.CreateRecord(ctx, launcher.Record{Kind: "test", ID: id}); err == nil {
			t.Errorf("a record has the id %q", id)
		}
	}
}

// countTogether counts a record up from both launchers at once. No count is lost.
func countTogether(t *testing.T, a, b launcher.RecordKeeper) {
	t.Helper()
	const each = 15
	var all sync.WaitGroup
	for _, k := range []launcher.RecordKeeper{a, b, a, b} {
		all.Go(func() {
			for n := 0; n < each; {
				r, err := k.Record(limited(t), "test", "one")
				if err != nil {
					t.Error(err)
					return
				}
				var count int
				if err := json.Unmarshal(r.Data, &count); err != nil {
					t.Error(err)
					return
				}
				r.Data, _ = json.Marshal(count + 1)
				switch _, err := k.ReplaceRecord(limited(t), r); {
				case err == nil:
					n++
				case !errors.Is(err, launcher.ErrRecordChanged):
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if r, err := a.Record(limited(t), "test", "one"); err != nil || string(r.Data) != "60" {
		t.Errorf("after 60 counts: %s, %v", r.Data, err)
	}
}
