package jobs

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// counting is records that counts what is written.
type counting struct {
	*launchertest.MemoryRecords
	bytes, writes atomic.Int64
}

func (c *counting) CreateRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	c.bytes.Add(int64(len(r.Data)))
	c.writes.Add(1)
	return c.MemoryRecords.CreateRecord(ctx, r)
}

func (c *counting) ReplaceRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	c.bytes.Add(int64(len(r.Data)))
	c.writes.Add(1)
	return c.MemoryRecords.ReplaceRecord(ctx, r)
}

// What a job writes grows with its output, and not with the output of the cells before. Each cell prints 200 KB in
// a minute.
func TestPieces_Bytes(t *testing.T) {
	written := func(n int) (bytes int64) {
		synctest.Test(t, func(t *testing.T) {
			records, kernel := &counting{MemoryRecords: &launchertest.MemoryRecords{}}, newPrinter(60, 200_000/60)
			m := New(records, kernel, Policy{}, slog.New(slog.DiscardHandler))
			kernel.runs(m)
			perform := m.perform
			m.perform = func(ctx context.Context, r *notebook.Run) (notebook.Result, error) {
				r.OutputLimit = 1 << 30
				return perform(ctx, r)
			}
			end := started(m)
			id := submit(t, m, cells(n))
			time.Sleep(time.Duration(n)*time.Minute + 20*time.Second)
			wantState(t, m, id, Succeeded, "")
			end()
			bytes = records.bytes.Load()
			t.Logf("%d cells: %d writes, %.1f MB", n, records.writes.Load(), float64(bytes)/1e6)
		})
		return bytes
	}
	if few, many := written(4), written(16); many > 5*few {
		t.Errorf("4 cells write %d bytes, and 16 write %d", few, many)
	}
}

// A job whose cell prints nothing writes only the gateway's lease, which is small. With output, its record is written
// at the pace of the records.
func TestLease_Writes(t *testing.T) {
	const minutes = 2
	for what, c := range map[string]struct {
		kernel        *printer
		writes, bytes int64 // a minute, at most
	}{
		"prints":   {newPrinter(240, 200_000/60), 24, 230_000},
		"computes": {newPrinter(30, 1000), 12, 1000},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				records := &counting{MemoryRecords: &launchertest.MemoryRecords{}}
				kernel := newPrinter(c.kernel.lines, c.kernel.width)
				kernel.quiet = 240*time.Second - time.Duration(kernel.lines)*time.Second
				m, end := kernel.newRunner(records)
				id := submit(t, m, cells(1))
				time.Sleep(time.Minute + 2500*time.Millisecond) // between two writes, which are at whole seconds
				writes, bytes := records.writes.Load(), records.bytes.Load()
				time.Sleep(minutes * time.Minute)
				writes, bytes = records.writes.Load()-writes, records.bytes.Load()-bytes
				t.Logf("%d writes and %d bytes a minute", writes/minutes, bytes/minutes)
				if writes > c.writes*minutes || bytes > c.bytes*minutes {
					t.Errorf("%d writes and %d bytes in %d minutes", writes, bytes, minutes)
				}
				time.Sleep(2 * time.Minute)
				end()
				wantState(t, m, id, Succeeded, "")
			})
		})
	}
}
