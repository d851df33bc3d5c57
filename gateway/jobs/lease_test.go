package jobs

import (
	"context"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// pausable is records as a gateway sees them that is paused now and then, as a virtual machine is: before a request to
// the records, and before it reads the answer.
type pausable struct {
	*launchertest.MemoryRecords
	name   string // of the gateway
	paused atomic.Pointer[chan struct{}]
	ran    atomic.Int64 // since when it is not paused, in nanoseconds
	wrote  func(by *pausable, before, now launcher.Record)
}

func (p *pausable) pause() {
	c := make(chan struct{})
	p.paused.Store(&c)
}

func (p *pausable) goOn() {
	p.ran.Store(time.Now().UnixNano())
	close(*p.paused.Swap(nil))
}

func (p *pausable) pass() {
	if c := p.paused.Load(); c != nil {
		<-*c
	}
}

func (p *pausable) Record(ctx context.Context, kind, id string) (launcher.Record, error) {
	p.pass()
	defer p.pass()
	return p.MemoryRecords.Record(ctx, kind, id)
}

func (p *pausable) Records(ctx context.Context, kind string) ([]launcher.Record, error) {
	p.pass()
	defer p.pass()
	return p.MemoryRecords.Records(ctx, kind)
}

func (p *pausable) RecordStamps(ctx context.Context, kind string, open bool) (map[string]string, error) {
	p.pass()
	defer p.pass()
	return p.MemoryRecords.RecordStamps(ctx, kind, open)
}

func (p *pausable) CreateRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	p.pass()
	defer p.pass()
	now, err := p.MemoryRecords.CreateRecord(ctx, r)
	if err == nil && p.wrote != nil {
		p.wrote(p, launcher.Record{}, now)
	}
	return now, err
}

func (p *pausable) ReplaceRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	p.pass()
	defer p.pass()
	before, _ := p.MemoryRecords.Record(ctx, r.Kind, r.ID)
	now, err := p.MemoryRecords.ReplaceRecord(ctx, r)
	if err == nil && p.wrote != nil {
		p.wrote(p, before, now)
	}
	return now, err
}

// holderOf returns who holds a job.
func holderOf(t *testing.T, m *Manager, id string) string {
	t.Helper()
	s, err := m.store.job(t.Context(), id)
	if err != nil {
		t.Error(err)
	}
	return s.Holder
}

// A gateway that was paused while a cell computed has lost the job. It lets go of it within one look at all jobs, and
// has written nothing to the job's record.
func TestLease_Paused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernel := &launchertest.MemoryRecords{}, newPrinter(5, 100)
		kernel.quiet = 10 * time.Minute
		slow := &pausable{MemoryRecords: records}
		var lost atomic.Bool
		slow.wrote = func(_ *pausable, _, now launcher.Record) {
			if lost.Load() && now.Kind == kindJob {
				t.Errorf("the paused gateway has written %s", now.Data)
			}
		}
		a, endA := kernel.newRunner(slow)
		id := submit(t, a, cells(2))
		time.Sleep(5 * time.Minute)
		b, endB := kernel.newRunner(records)
		time.Sleep(time.Minute)
		if holderOf(t, a, id) != a.name {
			t.Error("a job of a living gateway was taken")
		}
		slow.pause()
		lost.Store(true)
		time.Sleep(realTiming.lease + 3*realTiming.scan)
		if a.hold(id) == nil || holderOf(t, b, id) != b.name {
			t.Error("the job of a paused gateway was not taken")
		}
		slow.goOn()
		time.Sleep(realTiming.scan + time.Second)
		if a.hold(id) != nil {
			t.Error("the gateway that was paused still holds the job")
		}
		time.Sleep(time.Hour)
		endA()
		if j := wantState(t, b, id, Succeeded, ""); j.Attempt != 1 {
			t.Errorf("the job had %d attempts", j.Attempt)
		}
		endB()
		kernel.check(t, b, id, 2)
		wantIDs(t, records, kindLease) // gateways that end in order remove theirs
	})
}

// A gateway that is paused between its look at the leases and what follows takes no job of a living gateway.
func TestLease_SlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernel := &launchertest.MemoryRecords{}, newPrinter(5, 100)
		kernel.quiet = time.Hour
		a, endA := kernel.newRunner(records)
		defer endA()
		id := submit(t, a, cells(1))
		time.Sleep(time.Minute)
		slow := &pausable{MemoryRecords: records}
		_, endB := kernel.newRunner(slow)
		defer endB()
		for range 20 {
			time.Sleep(2*realTiming.scan + time.Second)
			slow.pause()
			time.Sleep(2 * realTiming.lease)
			slow.goOn()
			time.Sleep(time.Second)
			if holderOf(t, a, id) != a.name || a.hold(id) == nil {
				t.Fatal("the job was taken")
			}
		}
		time.Sleep(2 * time.Hour)
		wantState(t, a, id, Succeeded, "")
	})
}

// A gateway does not compare clocks. The lease of a dead gateway whose clock was ahead ends after the same time as any
// other.
func TestLease_OtherClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(9)
		dead, end := gatewayOf(&mortal{MemoryRecords: records, left: 7}, kernels, Policy{}, time.Hour)
		id := submit(t, dead, submission("ann", "job"))
		time.Sleep(time.Minute)
		end()
		r, err := records.Record(t.Context(), kindLease, dead.name)
		if err != nil {
			t.Fatal(err)
		}
		if r.Data, err = json.Marshal(time.Now().Add(1000 * time.Hour)); err != nil {
			t.Fatal(err)
		}
		if _, err := records.ReplaceRecord(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		m, end := gatewayOf(records, kernels, Policy{}, time.Second)
		defer end()
		time.Sleep(realTiming.lease + 3*realTiming.scan)
		wantState(t, m, id, Succeeded, "")
		time.Sleep(3 * realTiming.sweep)
		wantIDs(t, records, kindLease) // what no job names was swept
	})
}

// A job that a living gateway could not give back is taken again, also while the gateway's other jobs go on.
func TestLease_NotGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(9)
		m, end := gatewayOf(records, kernels, Policy{}, time.Hour)
		defer end()
		submit(t, m, submission("ann", "long"))
		s, err := m.store.job(t.Context(), submit(t, m, submission("bob", "left")))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		h := m.hold(s.ID)
		m.mu.Lock()
		delete(m.holds, s.ID) // as if it had ended, and its last write had failed
		m.mu.Unlock()
		time.Sleep(realTiming.lease + 3*realTiming.scan)
		if now := m.hold(s.ID); now == nil || now == h {
			t.Errorf("the job has the hold %p, and had %p", now, h)
		}
	})
}

// A lease that was removed while its gateway lives comes back, and the gateway keeps its jobs.
func TestLease_Removed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(9)
		a, endA := gatewayOf(records, kernels, Policy{}, time.Hour)
		defer endA()
		id := submit(t, a, submission("ann", "job"))
		time.Sleep(time.Second) // a holds it
		b, endB := gatewayOf(records, kernels, Policy{}, time.Hour)
		defer endB()
		for range 20 {
			time.Sleep(23 * time.Second)
			if err := records.RemoveRecord(t.Context(), kindLease, a.name); err != nil {
				t.Fatal(err)
			}
		}
		if h := holderOf(t, b, id); h != a.name {
			t.Errorf("the job is held by %q", h)
		}
	})
}

// Gateways are paused at random. A job is taken only from a gateway that has not renewed its lease for its time, and
// only the holder writes to the job's record. Each cell is run once, and no output is lost.
func TestLease_RandomPauses(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	synctest.Test(t, func(t *testing.T) {
		records, kernel := &launchertest.MemoryRecords{}, newPrinter(10, 100)
		kernel.quiet = 20 * time.Second
		var mu sync.Mutex
		renewed, taken := map[string]time.Time{}, 0
		wrote := func(by *pausable, before, now launcher.Record) {
			mu.Lock()
			defer mu.Unlock()
			if now.Kind == kindLease {
				renewed[now.ID] = time.Now()
			}
			if now.Kind != kindJob || before.Data == nil {
				return
			}
			was, err := decode(before)
			is, errNow := decode(now)
			if err != nil || errNow != nil {
				t.Error(err, errNow)
			}
			if was.Holder == "" || was.Holder == by.name {
				return
			}
			taken++
			age, lived := time.Since(renewed[was.Holder]), time.Since(time.Unix(0, by.ran.Load()))
			// A taker that was just paused has read older leases.
			if is.Holder != by.name || age < realTiming.lease && lived > time.Second {
				t.Errorf("%s has written to a job of %s, whose lease was renewed %v ago", by.name, was.Holder, age)
			}
		}
		var gateways []*pausable
		var ends []func()
		var last *Manager
		for range 3 {
			p := &pausable{MemoryRecords: records, wrote: wrote}
			last = New(p, kernel, Policy{}, slog.New(slog.DiscardHandler))
			p.name = last.name
			kernel.runs(last)
			gateways, ends = append(gateways, p), append(ends, started(last))
		}
		id := submit(t, last, cells(30))
		for range 40 {
			time.Sleep(time.Duration(r.IntN(20000)) * time.Millisecond)
			p := gateways[r.IntN(len(gateways))]
			if holder := holderOf(t, last, id); r.IntN(2) == 0 {
				for _, g := range gateways {
					if g.name == holder {
						p = g
					}
				}
			}
			p.pause()
			time.Sleep(time.Duration(r.IntN(60000)) * time.Millisecond)
			p.goOn()
		}
		time.Sleep(10 * time.Minute)
		for _, end := range ends {
			end()
		}
		if j := wantState(t, last, id, Succeeded, ""); j.Attempt != 1 || taken == 0 {
			t.Errorf("the job had %d attempts, and was taken %d times", j.Attempt, taken)
		}
		kernel.check(t, last, id, 30)
		onlyNamed(t, last, id)
	})
}
