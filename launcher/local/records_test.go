package local

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// BenchmarkRecords reads ten open records of a kind that has a thousand settled ones.
func BenchmarkRecords(b *testing.B) {
	l, err := Open(b.Context(), Options{StateDir: b.TempDir(), RuntimeDir: b.TempDir(), Supervisor: os.Args[0]})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			b.Error(err)
		}
	}()
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
			if open, err := l.OpenRecords(b.Context(), "test"); err != nil || len(open) != 10 {
				b.Fatal(len(open), err)
			}
		}
	})
}
