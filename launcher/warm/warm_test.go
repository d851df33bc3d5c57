package warm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// fake is a Store in memory. A kind is the content itself.
type fake struct {
	mu      sync.Mutex
	content string
	kernels []Kernel
	deleted []string
	stays   bool // deleted ones count until they have gone
	whyNot  string
	fails   error // of Create
	result  string
	made    int
}

func (f *fake) Kind(start launcher.Request) (string, string, error) {
	if start.Spec.Name == "bad" {
		return "", "", errors.New("it cannot wait")
	}
	return f.content, f.content, nil
}

func (f *fake) List(context.Context) ([]Kernel, error) { return slices.Clone(f.kernels), nil }

func (f *fake) WhyNot(string) string { return f.whyNot }

func (f *fake) Create(_ context.Context, kind string) error {
	if f.fails != nil {
		return f.fails
	}
	f.made++
	f.kernels = append(f.kernels, Kernel{ID: fmt.Sprint("k", f.made), SpecName: "a", Content: kind})
	return nil
}

func (f *fake) Claim(context.Context, string, launcher.Request) (launcher.Kernel, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return launcher.Kernel{ID: "k"}, f.result, nil
}

func (f *fake) Delete(_ context.Context, k Kernel) bool {
	f.deleted = append(f.deleted, k.ID)
	f.kernels = slices.DeleteFunc(f.kernels, func(o Kernel) bool { return o.ID == k.ID })
	return f.stays
}

// newTest returns a pool that wants so many warm kernels of the kernelspec "a", and its store and clock.
func newTest(count int) (p *Pool[string], f *fake, now *time.Time) {
	f, now = &fake{content: "1"}, new(time.Now())
	wanted := func() []launcher.Warm {
		return []launcher.Warm{{Start: launcher.Request{Spec: kernelspecs.Spec{Name: "a"}}, Count: count}}
	}
	return NewPool(wanted, f, func() time.Time { return *now }, slog.New(slog.DiscardHandler)), f, now
}

// round runs one round and returns the numbers of the kernelspec "a".
func round(t *testing.T, p *Pool[string]) launcher.WarmCount {
	t.Helper()
	if err := p.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	var m launcher.Measures
	p.Measure(&m)
	return m.Warm["a"]
}

// A few are created at once, and the next round is asked for until there are all.
func TestPool_Creates(t *testing.T) {
	p, f, _ := newTest(3)
	if c := round(t, p); c != (launcher.WarmCount{Wanted: 3, Waiting: 2}) || len(p.Woken()) != 1 {
		t.Errorf("%+v, woken %d", c, len(p.Woken()))
	}
	<-p.Woken()
	for range 2 {
		if c := round(t, p); c != (launcher.WarmCount{Wanted: 3, Waiting: 3}) || len(p.Woken()) != 0 || f.made != 3 {
			t.Errorf("%+v, woken %d, made %d", c, len(p.Woken()), f.made)
		}
	}
}

// Those of another version, those that have failed and those that are too many end. What is leaving keeps its place.
func TestPool_Ends(t *testing.T) {
	p, f, _ := newTest(2)
	f.stays = true
	f.kernels = []Kernel{{ID: "old", SpecName: "a", Content: "0"}, {ID: "ok", SpecName: "a", Content: "1"},
		{ID: "failed", SpecName: "a", Content: "0", State: Failed, Reason: "it ended"},
		{ID: "other", SpecName: "b", Content: "1"}, {ID: "leaves", SpecName: "a", Content: "1", State: Leaving}}
	if c := round(t, p); c.Waiting != 1 || f.made != 0 || !slices.Equal(f.deleted, []string{"old", "failed", "other"}) {
		t.Errorf("%+v, made %d, deleted %v", c, f.made, f.deleted)
	}
	f.kernels = append(f.kernels[:1], Kernel{ID: "made", SpecName: "a", State: Created}, f.kernels[0])
	if c := round(t, p); c.Waiting != 2 || f.deleted[3] != "ok" {
		t.Errorf("%+v, deleted %v", c, f.deleted)
	}
}

// A kernelspec whose warm kernels fail is held back for longer and longer, until one has run. Another version of it is
// tried at once.
func TestPool_Pauses(t *testing.T) {
	p, f, now := newTest(1)
	f.fails = errors.New("no such program")
	for _, pause := range []time.Duration{firstPause, 2 * firstPause} {
		if c := round(t, p); c.Waiting != 0 || c.Reason != "no such program" {
			t.Errorf("%+v", c)
		}
		f.fails = nil
		*now = now.Add(pause - time.Nanosecond)
		if c := round(t, p); c.Waiting != 0 || c.Reason != "no such program" {
			t.Errorf("before the end of %s: %+v", pause, c)
		}
		*now = now.Add(time.Nanosecond)
		f.fails = errors.New("no such program")
	}
	f.fails = nil
	if c := round(t, p); c.Waiting != 1 || c.Reason != "" {
		t.Errorf("after the pause: %+v", c)
	}
	f.kernels[0].State, f.kernels[0].Reason = Failed, "it ended"
	if c := round(t, p); c.Waiting != 0 || c.Reason != "it ended" {
		t.Errorf("after another failure: %+v", c)
	}
	f.content = "2"
	if c := round(t, p); c.Waiting != 1 {
		t.Errorf("another version: %+v", c)
	}
	f.kernels[0].State = Proven
	round(t, p)
	if len(p.pauses) != 0 {
		t.Errorf("%+v", p.pauses)
	}
}

// Where no warm kernel may be created, the reason says so, and the kernelspec is not held back.
func TestPool_NotNow(t *testing.T) {
	p, f, _ := newTest(1)
	f.whyNot = launcher.WaitsForGPU
	if c := round(t, p); c.Reason != launcher.WaitsForGPU || f.made != 0 || p.Ahead()[0].Reason != launcher.WaitsForGPU {
		t.Errorf("%+v, made %d, %+v", c, f.made, p.Ahead())
	}
	f.whyNot, f.fails = "", fmt.Errorf("create: %w", NotNow(launcher.NoGPUIsFree))
	if c := round(t, p); c.Reason != launcher.NoGPUIsFree {
		t.Errorf("%+v", c)
	}
	f.fails = nil
	if c := round(t, p); c.Waiting != 1 || c.Reason != "" {
		t.Errorf("%+v", c)
	}
}

// Starts are counted by their result, also at the same time. One that takes a kernel asks for the next round.
func TestPool_Take(t *testing.T) {
	p, f, _ := newTest(1)
	take := func(spec string, anyID bool) bool {
		_, taken, err := p.Take(t.Context(), launcher.Request{AnyID: anyID, Spec: kernelspecs.Spec{Name: spec}})
		return taken && err == nil
	}
	f.result = launcher.ClaimEmpty
	if take("b", true) || take("a", false) || take("a", true) || len(p.Woken()) != 0 {
		t.Error("a kernel was taken")
	}
	f.result = launcher.ClaimTaken
	var starts sync.WaitGroup
	for range 4 {
		starts.Go(func() {
			if !take("a", true) {
				t.Error("no kernel was taken")
			}
		})
	}
	starts.Wait()
	var m launcher.Measures
	p.Measure(&m)
	for result, n := range map[string]int64{launcher.ClaimTaken: 4, launcher.ClaimEmpty: 1, launcher.ClaimUnfit: 1} {
		if got := m.WarmClaims[launcher.WarmClaim{SpecName: "a", Result: result}]; got != n {
			t.Errorf("%s: %d, want %d", result, got, n)
		}
	}
	if len(m.WarmClaims) != 3 || len(p.Woken()) != 1 {
		t.Errorf("%v, woken %d", m.WarmClaims, len(p.Woken()))
	}
	none := NewPool[string](nil, f, time.Now, slog.New(slog.DiscardHandler))
	if _, taken, err := none.Take(t.Context(), launcher.Request{AnyID: true}); taken || err != nil || none.Ahead() != nil {
		t.Error("a pool without warm kernels has some")
	}
}
