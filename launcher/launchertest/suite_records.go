package launchertest

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// records checks launcher.RecordKeeper with two launchers.
func (s suite) records(t *testing.T) {
	Records(t, s.launcher(t), s.launcher(t))
}

// Records is the part of the suite about records. Both launchers keep the same records, and none of the kind "test".
func Records(t *testing.T, a, b launcher.RecordKeeper) {
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
	stamp(t, a, b)
	countTogether(t, a, b)
	watch(t, a, b)
	settle(t, a, b)
	first.Data = []byte("late")
	if _, err := a.ReplaceRecord(ctx, first); !errors.Is(err, launcher.ErrRecordChanged) {
		t.Errorf("a changed record was replaced: %v", err)
	}
	replaceLarge(t, a, b)
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

// stamp checks that one launcher sees by a record's stamp that the other one has replaced it, also many times in a row.
func stamp(t *testing.T, a, b launcher.RecordKeeper) {
	t.Helper()
	ctx := limited(t)
	r, err := a.CreateRecord(ctx, launcher.Record{Kind: "stamped", ID: "one", Data: []byte("0")})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i := range 20 {
		stamps, err := b.RecordStamps(ctx, "stamped", i%2 == 0)
		if at, there := stamps["one"]; err != nil || !there || len(stamps) != 1 || at != "" && seen[at] {
			t.Fatalf("stamps %v after %d changes, %v", stamps, i, err)
		}
		seen[stamps["one"]] = true
		r.Data = []byte(strconv.Itoa(i % 10))
		r.Settled = i == 19
		if r, err = a.ReplaceRecord(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	open, err := b.RecordStamps(ctx, "stamped", true)
	all, allErr := b.RecordStamps(ctx, "stamped", false)
	if len(open) != 0 || len(all) != 1 || err != nil || allErr != nil {
		t.Errorf("of a settled record: %v, %v, %v, %v", open, all, err, allErr)
	}
	if err := a.RemoveRecord(ctx, "stamped", "one"); err != nil {
		t.Error(err)
	}
}

// watch checks that the list of one launcher shows each change that the other makes by another version. A version is
// not used again.
func watch(t *testing.T, a, b launcher.RecordKeeper) {
	t.Helper()
	ctx := limited(t)
	r, err := a.CreateRecord(ctx, launcher.Record{Kind: "lease", ID: "one", Data: []byte("0")})
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]bool{}
	for i := range 5 {
		all, err := b.Records(ctx, "lease")
		if err != nil || len(all) != 1 || all[0].Version != r.Version || r.Version == "" || versions[r.Version] {
			t.Errorf("after %d changes to version %q: %+v, %v", i, r.Version, all, err)
		}
		versions[r.Version] = true
		r.Data = []byte{'1' + byte(i)}
		if r, err = a.ReplaceRecord(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.RemoveRecord(ctx, "lease", "one"); err != nil {
		t.Error(err)
	}
}

// settle checks that a settled record is kept, and can be opened again.
func settle(t *testing.T, a, b launcher.RecordKeeper) {
	t.Helper()
	ctx := limited(t)
	r, err := a.CreateRecord(ctx, launcher.Record{Kind: "test", ID: "settled", Data: []byte("1"), Settled: true})
	if err != nil || !r.Settled {
		t.Fatalf("a settled record: %+v, %v", r, err)
	}
	open, err := b.RecordStamps(ctx, "test", true)
	if _, there := open["one"]; err != nil || len(open) != 1 || !there {
		t.Errorf("open records: %v, %v", open, err)
	}
	if one, err := b.Record(ctx, "test", "one"); err != nil || one.Settled || string(one.Data) != "60" {
		t.Errorf("the open record: %+v, %v", one, err)
	}
	if r, err = b.Record(ctx, "test", "settled"); err != nil || !r.Settled {
		t.Errorf("the settled record: %+v, %v", r, err)
	}
	if all, err := b.Records(ctx, "test"); err != nil || len(all) != 2 {
		t.Errorf("all records: %+v, %v", all, err)
	}
	r.Settled = false
	if _, err := b.ReplaceRecord(ctx, r); err != nil {
		t.Errorf("the settled record is not opened: %v", err)
	}
	if open, err := a.RecordStamps(ctx, "test", true); err != nil || len(open) != 2 {
		t.Errorf("open records, after one was opened: %v, %v", open, err)
	}
	if err := a.RemoveRecord(ctx, "test", "settled"); err != nil {
		t.Error(err)
	}
}

// replaceLarge checks records that no single object of a cluster holds, also after compression.
func replaceLarge(t *testing.T, a, b launcher.RecordKeeper) {
	t.Helper()
	ctx := limited(t)
	large := make([]byte, 2<<20)
	rand.Read(large) // never fails
	r, err := a.CreateRecord(ctx, launcher.Record{Kind: "test", ID: "two", Data: large})
	if err != nil {
		t.Fatalf("a large record: %v", err)
	}
	for _, size := range []int{2 << 20, 3 << 20, 10, 1 << 20} {
		got, err := b.Record(ctx, "test", "two")
		if err != nil || !bytes.Equal(got.Data, large) || got.Version != r.Version {
			t.Errorf("a large record has %d bytes, version %q, wanted %q: %v", len(got.Data), got.Version, r.Version, err)
		}
		large = make([]byte, size)
		rand.Read(large)
		r.Data = large
		if r, err = a.ReplaceRecord(ctx, r); err != nil {
			t.Fatalf("a large record of %d bytes: %v", size, err)
		}
	}
	if r, err := b.Record(ctx, "test", "two"); err != nil || !bytes.Equal(r.Data, large) {
		t.Errorf("a large record has %d bytes, %v", len(r.Data), err)
	}
	if n := a.MaxRecord(); n < 4<<20 {
		t.Errorf("a record can have %d bytes", n)
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
