package jobs

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// A job begins again with the cell that its author has named, if a kernel that was lost had reached it, also if another
// kernel is lost before that.
func TestManager_RestartFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(9)
		m := New(records, kernels, Policy{}, slog.New(slog.DiscardHandler))
		var begun []string
		m.perform = func(ctx context.Context, r *notebook.Run) (notebook.Result, error) {
			attempt := len(begun)
			how := "from the first"
			if r.Again {
				how = "again"
			}
			begun = append(begun, how)
			reached := attempt == 1 || attempt == 3
			state := notebook.State{Cursor: "c", Reached: reached}
			text := strings.Replace(source, "x = 1", "x = "+string(rune('0'+attempt)), 1)
			if err := saves(ctx, r, text, state); err != nil {
				return notebook.Result{}, err
			}
			if attempt == 3 {
				return notebook.Result{Status: notebook.Completed}, nil
			}
			return notebook.Result{Status: notebook.Failed, Cell: 1, Reason: "lost", Lost: true}, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			m.Run(ctx)
			close(done)
		}()
		s := submission("ann", "job")
		s.RestartFrom = "1"
		if _, _, err := m.Submit(ctx, s); !errors.As(err, new(*InvalidError)) {
			t.Errorf("without retries: %v", err)
		}
		s.Retries, s.RestartFrom = 3, "2"
		if _, _, err := m.Submit(ctx, s); !errors.As(err, new(*InvalidError)) {
			t.Errorf("a cell that does not exist was accepted: %v", err)
		}
		s.RestartFrom = "a"
		id := submit(t, m, s)
		time.Sleep(12 * time.Second) // the second attempt has ended, and the third waits
		if b, err := notebookText(ctx, m, id, false); len(begun) == 2 && (err != nil || !strings.Contains(b, "x = 1")) {
			t.Errorf("while it waits, its notebook is %s, %v", b, err)
		}
		if err := errors.Join(m.sweep(ctx), m.sweep(ctx)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if j := wantState(t, m, id, Succeeded, ""); j.Attempt != 4 ||
			strings.Join(begun, ", ") != "from the first, from the first, again, again" {
			t.Errorf("%d attempts, which began %v", j.Attempt, begun)
		}
		cancel()
		<-done
		if err := errors.Join(m.Remove(t.Context(), id), m.sweep(t.Context()), m.sweep(t.Context())); err != nil {
			t.Error(err)
		}
		if left, err := records.RecordIDs(t.Context(), kindNotebook); err != nil || len(left) != 0 {
			t.Errorf("notebooks of a removed job are left: %v, %v", left, err)
		}
	})
}
