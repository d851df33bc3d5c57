package endings

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func numberedID(n int) string { return fmt.Sprintf("cccccccc-0000-4000-8000-%012d", n) }

// newTest returns a Store of a cluster that a gateway has opened an hour ago.
func newTest(t *testing.T, c *fake.Clientset) *Store {
	t.Helper()
	s, err := New(Options{
		ConfigMaps: c.CoreV1().ConfigMaps,
		Timeout:    time.Minute,
		Now:        time.Now,
		Opened:     func() time.Time { return time.Now().Add(-time.Hour) },
		Log:        slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestStore: what one gateway records and writes, a later one reads. Each cull is counted once by the gateway that
// lived then.
func TestStore(t *testing.T) {
	c := fake.NewSimpleClientset()
	s := newTest(t, c)
	now := time.Now().UTC()
	culled := Ending{Reason: "it was idle", At: now, Culled: true, CulledFor: api.LimitIdle, Spec: "python3", Pod: "a",
		GPUUse: api.GPUUse{Busy: time.Minute}}
	old := culled
	old.At = now.Add(-2 * time.Hour)
	refused := Ending{Reason: "there are too many", At: now, Limit: "user", Pod: "b"}
	for range 2 { // notifications may be repeated
		s.Record(numberedID(1), "ns", culled, false)
		s.Record(numberedID(2), "ns", old, false)
	}
	s.Record(numberedID(3), "ns", refused, true)
	s.Record(numberedID(1), "ns", refused, false) // a restart
	if end, ok := s.Get(numberedID(1)); !ok || end.Reason != culled.Reason || end.Pod != "b" {
		t.Errorf("after a restart that a limit has refused: %+v", end)
	}
	removed := culled
	removed.Stopped, removed.GPUUse = true, api.GPUUse{}
	s.Record(numberedID(1), "ns", removed, false)
	want := map[launcher.CullLabels]int64{{SpecName: "python3", Limit: "idle"}: 1}
	if got := s.Culls(); len(got) != 1 || got[launcher.CullLabels{SpecName: "python3", Limit: "idle"}] != 1 {
		t.Errorf("counted are %v, want %v", got, want)
	}
	if err := s.Store(t.Context(), numberedID(2), "ns", "other"); err == nil {
		t.Error("the ending of another pod is stored")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s.Write(ended)

	later := newTest(t, c)
	later.Read(t.Context(), "ns")
	read := map[string]*Ending{}
	later.Each(func(id string, end *Ending) { read[id] = end })
	one := read[numberedID(1)]
	if len(read) != 2 || one == nil || !one.Stopped || one.GPUUse != culled.GPUUse || read[numberedID(2)] == nil {
		t.Errorf("read are %+v", read)
	}
	later.opts.Now = func() time.Time { return now.Add(Kept + 2*time.Hour) }
	later.Each(func(id string, _ *Ending) { t.Errorf("%s is kept for too long", id) })
}

// TestRecord_Many: a bounded number of endings waits to be written.
func TestRecord_Many(t *testing.T) {
	s := newTest(t, fake.NewSimpleClientset())
	for n := range maxUnwritten + 10 {
		s.Record(numberedID(n), "ns", Ending{Reason: "killed", At: time.Now()}, false)
	}
	if n := len(s.unwritten); n != maxUnwritten {
		t.Errorf("%d wait", n)
	}
}

// TestStore_Unknown: the ending of an unknown kernel is not stored.
func TestStore_Unknown(t *testing.T) {
	err := newTest(t, fake.NewSimpleClientset()).Store(t.Context(), numberedID(1), "ns", "a")
	if err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestHourOf(t *testing.T) {
	for name, want := range map[string]string{
		"ekg-endings-2026112123":    "ekg-endings-2026112123",
		"ekg-endings-2026112123-f":  "ekg-endings-2026112123",
		"ekg-endings-20261121234":   "",
		"ekg-endings-20261121":      "",
		"other-endings-20261121235": "",
	} {
		if got, ok := hourOf(name); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", name, got, ok)
		}
	}
	if got := fmt.Sprint(shardOf("h", numberedID(1))); got != shardOf("h", numberedID(1)) || len(got) != 3 {
		t.Error(got)
	}
}
