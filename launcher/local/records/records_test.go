package records

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// TestStore: a record is replaced only by a writer that has seen it, and what is settled is left out of the open ones.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	s, other, ctx := NewStore(dir), NewStore(dir), t.Context()
	if ids, err := s.RecordIDs(ctx, "run"); len(ids) != 0 || err != nil {
		t.Errorf("before the first record: %v, %v", ids, err)
	}
	if err := s.RemoveRecord(ctx, "run", "a"); err != nil {
		t.Error(err)
	}
	first, err := s.CreateRecord(ctx, launcher.Record{Kind: "run", ID: "a", Data: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.CreateRecord(ctx, first); !errors.Is(err, launcher.ErrRecordChanged) {
		t.Errorf("it was created twice: %v", err)
	}
	second := first
	second.Data, second.Settled = []byte("2"), true
	if second, err = other.ReplaceRecord(ctx, second); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReplaceRecord(ctx, first); !errors.Is(err, launcher.ErrRecordChanged) {
		t.Errorf("a record that has changed was replaced: %v", err)
	}
	if got, err := s.Record(ctx, "run", "a"); err != nil || !reflect.DeepEqual(got, second) {
		t.Errorf("%+v, %v, want %+v", got, err, second)
	}
	if open, err := s.RecordStamps(ctx, "run", true); len(open) != 0 || err != nil {
		t.Errorf("a settled record is open: %v, %v", open, err)
	}
	for _, bad := range []string{"", "../a", ".lock"} {
		if _, err := s.Record(ctx, "run", bad); err == nil || errors.Is(err, launcher.ErrNoRecord) {
			t.Errorf("id %q: %v", bad, err)
		}
	}
	if err := errors.Join(s.RemoveRecord(ctx, "run", "a"), s.RemoveRecord(ctx, "run", "a")); err != nil {
		t.Error(err)
	}
	if _, err := s.Record(ctx, "run", "a"); !errors.Is(err, launcher.ErrNoRecord) {
		t.Errorf("a removed record: %v", err)
	}
}

// BenchmarkRecords reads the records of a kind, and finds the ten open ones beside a thousand settled ones.
func BenchmarkRecords(b *testing.B) {
	l := NewStore(b.TempDir())
	for i := range 1010 {
		r := launcher.Record{Kind: "test", ID: fmt.Sprint("r-", i), Data: bytes.Repeat([]byte("x"), 3000), Settled: i >= 10}
		if _, err := l.CreateRecord(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			if all, err := l.Records(b.Context(), "test"); err != nil || len(all) != 1010 {
				b.Fatal(len(all), err)
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			if open, err := l.RecordStamps(b.Context(), "test", true); err != nil || len(open) != 10 {
				b.Fatal(len(open), err)
			}
		}
	})
}
