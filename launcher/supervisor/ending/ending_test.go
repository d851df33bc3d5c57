package ending

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestRecord_Usage: a kernel's lifetime ends with its death, however late the dead kernel is removed. A new start
// begins another lifetime.
func TestRecord_Usage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ended.json")
	const id = "3c9c0d9f-0b0c-4a87-9d2c-0e6a7e0f5c11"
	r := New(&api.Config{KernelID: id, EndFile: file})
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := start.Add(time.Hour)
	written := func(e api.Ending, want api.Ending) {
		t.Helper()
		e.At, e.Started = now, start
		if err := r.Write(e); err != nil {
			t.Fatal(err)
		}
		var got api.Ending
		if b, err := os.ReadFile(file); err != nil || json.Unmarshal(b, &got) != nil {
			t.Fatalf("%s, %v", b, err)
		}
		want.KernelID, want.Stopped = id, e.Stopped
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	first := api.Ending{Reason: "it died", At: now, Started: start, Seconds: 3600}
	written(api.Ending{Reason: "it died"}, first)
	now = now.Add(10 * time.Minute)
	written(api.Ending{Reason: "it was shut down", Stopped: true}, first.Removed())
	if err := r.Remove(); err != nil {
		t.Fatal(err)
	}
	start = now
	now = now.Add(time.Minute)
	written(api.Ending{Reason: "it died again"},
		api.Ending{Reason: "it died again", At: now, Started: start, Seconds: 60})
}
