package supervisor

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestEnding_Usage: a kernel's lifetime ends with its death, however late the dead kernel is removed. A new start
// begins another lifetime.
func TestEnding_Usage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ended.json")
	s := New(api.Config{KernelID: testKernelID, EndFile: file}, "test", slog.New(slog.DiscardHandler))
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := start.Add(time.Hour)
	s.now, s.started = func() time.Time { return now }, start
	written := func(e api.Ending, want api.Ending) {
		t.Helper()
		if err := s.recordEnding(e); err != nil {
			t.Fatal(err)
		}
		var got api.Ending
		if b, err := os.ReadFile(file); err != nil || json.Unmarshal(b, &got) != nil {
			t.Fatalf("%s, %v", b, err)
		}
		want.KernelID, want.Stopped = testKernelID, e.Stopped
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	first := api.Ending{Reason: "it died", At: now, Started: start, Seconds: 3600}
	written(api.Ending{Reason: "it died"}, first)
	now = now.Add(10 * time.Minute)
	written(api.Ending{Reason: "it was shut down", Stopped: true}, first.Removed())
	if err := s.removeEndingRecord(); err != nil {
		t.Fatal(err)
	}
	s.started = now
	now = now.Add(time.Minute)
	written(api.Ending{Reason: "it died again"},
		api.Ending{Reason: "it died again", At: now, Started: s.started, Seconds: 60})
}
