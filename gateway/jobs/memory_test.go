package jobs

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// TestManager_NotebookRoom: notebooks of running jobs share the gateway's budget. A job without room waits and says so.
// It goes on when another one has ended, and can be stopped before. Small notebooks do not wait.
func TestManager_NotebookRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, cluster := &launchertest.MemoryRecords{}, newCluster(9)
		m := New(records, cluster, Policy{}, slog.New(slog.DiscardHandler))
		m.budget = notebook.NewBudget(8 << 20) // 1 MiB for notebooks
		end := start(m, time.Hour)
		large := func(owner string) string {
			s := submission(owner, owner+"'s")
			s.Notebook = []byte(strings.Replace(source, "x = 1", strings.Repeat("x", 700<<10), 1))
			id := submit(t, m, s)
			time.Sleep(time.Minute)
			return id
		}
		first := large("ann")
		stopped, second := large("bob"), large("cid")
		late := submission("dan", "late")
		late.Timeout = 120
		late.Notebook = []byte(strings.Replace(source, "x = 1", strings.Repeat("x", 900<<10), 1))
		third := submit(t, m, late)
		small := submit(t, m, submission("bob", "small"))
		time.Sleep(time.Minute)
		wantState(t, m, first, Running, "")
		for _, id := range []string{stopped, second, third} {
			wantState(t, m, id, Running, reasonMemory)
		}
		if j := wantState(t, m, small, Running, ""); j.Reason != "" {
			t.Errorf("a small notebook waits: %s", j.Reason)
		}
		if _, err := m.Stop(t.Context(), stopped); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		wantState(t, m, stopped, Stopped, reasonStopped)
		wantState(t, m, third, Failed, "it ran longer than its timeout")
		time.Sleep(time.Hour)
		wantState(t, m, first, Succeeded, "")
		if j := wantState(t, m, second, Running, ""); j.Reason != "" {
			t.Errorf("the second one still waits: %s", j.Reason)
		}
		end()

		b, end := gatewayOf(records, cluster, Policy{}, time.Minute)
		defer end()
		time.Sleep(5 * time.Minute)
		if j := wantState(t, b, second, Succeeded, ""); j.Attempt != 1 || cluster.living() != 0 {
			t.Errorf("it had %d attempts, and %d kernels live", j.Attempt, cluster.living())
		}
	})
}
