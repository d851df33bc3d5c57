package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// read counts what is read of records.
type read struct {
	*launchertest.MemoryRecords
	bytes atomic.Int64
}

func (c *read) Record(ctx context.Context, kind, id string) (launcher.Record, error) {
	r, err := c.MemoryRecords.Record(ctx, kind, id)
	c.bytes.Add(int64(len(r.Data)))
	return r, err
}

func (c *read) Records(context.Context, string) ([]launcher.Record, error) {
	return nil, errors.New("all records are read at once")
}

func (c *read) taken() int64 { return c.bytes.Swap(0) }

// heavy is a job with many variables and parameters.
func heavy(owner, name string) Submission {
	s := submission(owner, name)
	s.Start.Env = map[string]string{"V": strings.Repeat("v", 512<<10)}
	s.Parameters = json.RawMessage(`{"x": "` + strings.Repeat("x", 50<<10) + `"}`)
	return s
}

// TestManager_ListCosts: what one user has stored costs another user's list nothing, and a list costs what has changed.
func TestManager_ListCosts(t *testing.T) {
	cost := func(jobs int) (first, second, others, own int64) {
		synctest.Test(t, func(t *testing.T) {
			records := &read{MemoryRecords: &launchertest.MemoryRecords{}}
			m, end := gatewayOf(records, newCluster(0), Policy{}, time.Second)
			for i := range jobs {
				id := submit(t, m, heavy("eve", strconv.Itoa(i)))
				if _, err := m.Stop(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Minute)
			end()
			submit(t, m, submission("bob", "his"))
			m = New(records, newCluster(0), Policy{}, slog.New(slog.DiscardHandler))
			records.taken()
			list := func(owner string, want int) int64 {
				got, err := m.List(t.Context(), func(j *Job) bool { return j.Owner == owner })
				if err != nil || len(got) != want {
					t.Fatalf("%s has %d jobs, %v; want %d", owner, len(got), err, want)
				}
				for i := range got {
					if owner == "eve" && len(got[i].Parameters) < 50<<10 {
						t.Errorf("a job in a list has the parameters %.50s", got[i].Parameters)
					}
				}
				return records.taken()
			}
			first, second = list("ann", 0), list("ann", 0)
			submit(t, m, submission("bob", "another"))
			records.taken()
			others, own = list("bob", 2), list("eve", jobs)
			for id, k := range m.index.known {
				if text, err := json.Marshal(k.value.entry); err != nil || len(text) > 2<<10 {
					t.Errorf("the index has %d bytes of job %s, %v", len(text), id, err)
				}
			}
		})
		return first, second, others, own
	}
	few, none, changed, own := cost(10)
	many, still, alike, owns := cost(40)
	if none != 0 || still != 0 {
		t.Errorf("a list without changes reads %d bytes of 10 jobs, %d of 40", none, still)
	}
	if changed != alike || changed > 2<<10 {
		t.Errorf("a list after one small change reads %d bytes among 10 jobs, %d among 40", changed, alike)
	}
	if many > 5*few || owns > 5*own {
		t.Errorf("10 jobs cost %d and %d bytes, 40 cost %d and %d", few, own, many, owns)
	}
}

// TestManager_DefinitionCosts: the same for definitions.
func TestManager_DefinitionCosts(t *testing.T) {
	records := &read{MemoryRecords: &launchertest.MemoryRecords{}}
	m := New(records, newCluster(0), Policy{}, slog.New(slog.DiscardHandler))
	for i := range 5 {
		if _, _, err := m.Define(t.Context(), heavy("eve", strconv.Itoa(i)), Change{}); err != nil {
			t.Fatal(err)
		}
	}
	list := func() int64 {
		if all, err := m.Definitions(t.Context(), func(d *Definition) bool { return d.Owner == "ann" }); err != nil ||
			len(all) != 0 {
			t.Fatalf("ann has %d definitions, %v", len(all), err)
		}
		return records.taken()
	}
	list()
	if again := list(); again != 0 {
		t.Errorf("a list without changes reads %d bytes", again)
	}
	for id, k := range m.defines.known {
		if text, err := json.Marshal(k.value); err != nil || len(text) > 2<<10 {
			t.Errorf("the index has %d bytes of definition %s, %v", len(text), id, err)
		}
	}
	own, err := m.Definitions(t.Context(), func(d *Definition) bool { return d.Owner == "eve" })
	if err != nil || len(own) != 5 || len(own[0].Parameters) < 50<<10 {
		t.Errorf("eve has %d definitions, %v, without their parameters", len(own), err)
	}
}

// held counts listings, and keeps each until pass is closed.
type held struct {
	*launchertest.MemoryRecords
	listings atomic.Int64
	pass     chan struct{}
}

func (h *held) RecordStamps(ctx context.Context, kind string, open bool) (map[string]string, error) {
	h.listings.Add(1)
	select {
	case <-h.pass:
		return h.MemoryRecords.RecordStamps(ctx, kind, open)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestManager_ListsAtOnce: lists that wait for a slow one share the next, which has all that was stored before. One
// whose client leaves keeps no other, whether it reads or waits.
func TestManager_ListsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := &held{MemoryRecords: &launchertest.MemoryRecords{}, pass: make(chan struct{})}
		m := New(records, newCluster(0), Policy{}, slog.New(slog.DiscardHandler))
		var done sync.WaitGroup
		list := func(ctx context.Context, want int) {
			done.Go(func() {
				got, err := m.List(ctx, func(j *Job) bool { return j.Owner == "bob" })
				if len(got) != want || !errors.Is(err, ctx.Err()) {
					t.Errorf("%d jobs, %v; want %d", len(got), err, want)
				}
			})
			synctest.Wait()
		}
		slow, leave := context.WithCancel(t.Context())
		list(slow, 0)
		for i := range 3 { // the first of them reads after the slow one, and leaves, too
			submit(t, m, submission("bob", strconv.Itoa(i)))
		}
		first, leaveFirst := context.WithCancel(t.Context())
		list(first, 0)
		for range 50 {
			list(t.Context(), 3)
		}
		leave()
		synctest.Wait()
		leaveFirst()
		synctest.Wait()
		last, leaveLast := context.WithCancel(t.Context())
		for range 3 {
			list(last, 0)
		}
		leaveLast() // while others read for them
		close(records.pass)
		done.Wait()
		// Those who wait for a reading that was left may join one of two. Each of the last may begin one as it leaves.
		if n := records.listings.Load(); n > 7 {
			t.Errorf("the records were listed %d times", n)
		}
	})
}

// TestStore_Light: what an index holds is never written over the whole record.
func TestStore_Light(t *testing.T) {
	m := New(&launchertest.MemoryRecords{}, newCluster(0), Policy{}, slog.New(slog.DiscardHandler))
	submit(t, m, heavy("eve", "job"))
	all, _, err := m.readable(t.Context(), true)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d jobs, %v", len(all), err)
	}
	if err := m.store.write(t.Context(), &all[0]); !errors.Is(err, errLight) {
		t.Errorf("it was written: %v", err)
	}
}

// BenchmarkManager_List is the list of a user with one job beside so many jobs of another user.
func BenchmarkManager_List(b *testing.B) {
	for _, jobs := range []int{100, 1000, 4000} {
		b.Run(strconv.Itoa(jobs), func(b *testing.B) {
			m := New(&launchertest.MemoryRecords{}, newCluster(0), Policy{}, slog.New(slog.DiscardHandler))
			for i := range jobs + 1 {
				owner := []string{"ann", "eve"}[min(i, 1)]
				if _, _, err := m.Submit(b.Context(), submission(owner, strconv.Itoa(i))); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				got, err := m.List(b.Context(), func(j *Job) bool { return j.Owner == "ann" })
				if err != nil || len(got) != 1 {
					b.Fatal(len(got), err)
				}
			}
		})
	}
}
