package jobs

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/schedule"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// TestManager_ScheduleThatPanics: a stored schedule that makes its reader panic, or the computing of its times, pauses
// its definition, and the stack is logged. The other definitions go on, and lists show the paused ones.
func TestManager_ScheduleThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		m := New(&launchertest.MemoryRecords{}, newCluster(9), Policy{}, slog.New(slog.NewTextHandler(&logged, nil)))
		unread := define(t, m, "ann", "unread", "@daily", "")
		endless := define(t, m, "bob", "endless", "@weekly", "")
		good := define(t, m, "cat", "good", "0 * * * *", "")
		s := &scheduled{m: m, parse: func(d *definition) (*schedule.Schedule, error) {
			switch d.ID {
			case unread:
				panic("a schedule that cannot be read")
			case endless:
				return &schedule.Schedule{}, nil // it has no time zone, and panics
			}
			return d.parsed()
		}}
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { (&schedule.Firer{Store: s, Changed: m.defined, Log: m.log}).Run(ctx) })
		time.Sleep(61 * time.Minute)
		cancel()
		done.Wait()
		for id, stack := range map[string]string{unread: "firing_test.go", endless: "schedule.go"} {
			d, err := m.Definition(t.Context(), id)
			if want := "it is paused: " + reasonSchedule; err != nil || d.Active || d.Reason != want || !d.Next.IsZero() {
				t.Errorf("%s is %+v, %v", d.Name, d, err)
			}
			if text := logged.String(); !strings.Contains(text, id) || !strings.Contains(text, stack) {
				t.Errorf("the log of %s lacks its stack:\n%s", d.Name, text)
			}
		}
		d, err := m.Definition(t.Context(), good)
		if err != nil || !d.Active || d.Due.Format("15:04") != "01:00" || d.Job == "" {
			t.Errorf("the other definition is %+v, %v", d, err)
		}
	})
}
