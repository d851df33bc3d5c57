package supervisor

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestEnding_usage: how long a kernel lived is counted to its death, however late a dead one is removed, and anew when it is started again.
func TestEnding_usage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ended.json")
	s := New(Config{KernelID: testKernelID, EndFile: file}, "test", slog.New(slog.DiscardHandler))
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := start.Add(time.Hour)
	s.now, s.started = func() time.Time { return now }, start
	written := func(e Ending, want Ending) {
		t.Helper()
		if err := s.writeEnding(e); err != nil {
			t.Fatal(err)
		}
		var got Ending
		if b, err := os.ReadFile(file); err != nil || json.Unmarshal(b, &got) != nil {
			t.Fatalf("%s, %v", b, err)
		}
		want.KernelID, want.Reason, want.Stopped = testKernelID, e.Reason, e.Stopped
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	written(Ending{Reason: "it died"}, Ending{At: now, Started: start, Seconds: 3600})
	now = now.Add(10 * time.Minute)
	written(Ending{Reason: "it was shut down", Stopped: true}, Ending{At: now, Started: start, Seconds: 3600})
	if err := s.removeEnding(); err != nil {
		t.Fatal(err)
	}
	s.started = now
	now = now.Add(time.Minute)
	written(Ending{Reason: "it died again"}, Ending{At: now, Started: s.started, Seconds: 60})
}
