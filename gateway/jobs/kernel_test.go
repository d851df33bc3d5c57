package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

func submissionIn(kernel string, then Then) Submission {
	s := submission("ann", "rest")
	s.Kernel, s.Then, s.Start = kernel, then, kernels.Wish{}
	return s
}

func (c *cluster) lives(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, there := c.alive[id]
	return there
}

// A job goes on in its author's kernel: it starts none, another job has to wait for its end, and the kernel lives on if
// its author wants that.
func TestManager_InKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernels := newCluster(0) // a job with a kernel of its own would wait
		kernels.alive["k"], kernels.alive["l"] = "ann", "ann"
		m, end := gatewayOf(&launchertest.MemoryRecords{}, kernels, Policy{}, time.Minute)
		defer end()
		submit(t, m, submission("ann", "waits"))
		keeps, ends := submit(t, m, submissionIn("k", ThenKeep)), submit(t, m, submissionIn("l", ThenEnd))
		if _, _, err := m.Submit(t.Context(), submissionIn("k", ThenKeep)); !errors.Is(err, ErrOccupied) {
			t.Errorf("a second job in the kernel: %v", err)
		}
		time.Sleep(10 * time.Second)
		if j := wantState(t, m, keeps, Running, ""); j.Kernel != "k" || j.FromCell != 1 || j.Attempt != 1 {
			t.Errorf("the job is %+v", j)
		}
		if j, there, err := m.In(t.Context(), "k"); err != nil || !there || j.ID != keeps {
			t.Errorf("the job in the kernel: %v, %v, %v", j.ID, there, err)
		}
		time.Sleep(2 * time.Minute)
		wantState(t, m, keeps, Succeeded, "")
		wantState(t, m, ends, Succeeded, "")
		if !kernels.lives("k") || kernels.living() != 1 || len(kernels.started()) != 0 {
			t.Errorf("%d kernels live, started were %v", kernels.living(), kernels.started())
		}
		again := submit(t, m, submissionIn("k", ThenKeep))
		if _, err := m.Stop(t.Context(), again); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		wantState(t, m, again, Stopped, "on request")
		if !kernels.lives("k") {
			t.Error("the stop of a job has ended a kernel that is kept")
		}
	})
}

// A job that is stopped before it has begun ends its author's kernel, too, if its author wants that.
func TestManager_InKernelStoppedInQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(0)
		kernels.alive["k"], kernels.alive["l"] = "ann", "ann"
		m := New(records, kernels, Policy{}, slog.New(slog.DiscardHandler)) // it does not run yet
		keeps, ends := submit(t, m, submissionIn("k", ThenKeep)), submit(t, m, submissionIn("l", ThenEnd))
		for _, id := range []string{keeps, ends} {
			if _, err := m.Stop(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
		wantState(t, m, keeps, Stopped, "on request")
		if j := wantState(t, m, ends, Queued, ""); !j.Stopping {
			t.Error("the end of the job is not wanted")
		}
		m, end := gatewayOf(records, kernels, Policy{}, time.Minute)
		defer end()
		time.Sleep(10 * time.Second)
		if j := wantState(t, m, ends, Stopped, "on request"); j.Attempt != 0 || j.Ended.IsZero() {
			t.Errorf("the stopped job is %+v", j)
		}
		if !kernels.lives("k") || kernels.lives("l") {
			t.Errorf("k lives: %v, l lives: %v", kernels.lives("k"), kernels.lives("l"))
		}
	})
}

// gathering is records whose jobs are created together, when all have been checked.
type gathering struct {
	*launchertest.MemoryRecords
	all sync.WaitGroup
}

func (g *gathering) CreateRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	if r.Kind == kindJob {
		g.all.Done()
		g.all.Wait()
	}
	return g.MemoryRecords.CreateRecord(ctx, r)
}

// rounded is records that keep a gateway until it has looked at all jobs, between its new job and its look at others.
type rounded struct {
	*gathering
	m *Manager
}

func (r *rounded) CreateRecord(ctx context.Context, rec launcher.Record) (launcher.Record, error) {
	created, err := r.gathering.CreateRecord(ctx, rec)
	if rec.Kind == kindJob {
		r.m.look()
		time.Sleep(time.Millisecond) // virtual: all goroutines do what they can first
	}
	return created, err
}

// A gateway that looks at all jobs does not take the job that it is about to refuse.
func TestManager_InKernelRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &gathering{MemoryRecords: &launchertest.MemoryRecords{}}, newCluster(0)
		records.all.Add(2)
		kernels.alive["k"] = "ann"
		results := make(chan error)
		for range 2 {
			seen := &rounded{gathering: records}
			seen.m = New(seen, kernels, Policy{}, slog.New(slog.DiscardHandler))
			defer start(seen.m, time.Hour)()
			go submitTo(t, seen.m, results)
		}
		acceptsOne(t, records, results, 2)
	})
}

// submitTo submits a job for the kernel "k".
func submitTo(t *testing.T, m *Manager, results chan<- error) {
	_, _, err := m.Submit(t.Context(), submissionIn("k", ThenKeep))
	results <- err
}

// acceptsOne checks that at most one of n submissions was accepted, and that no other one is stored.
func acceptsOne(t *testing.T, records launcher.RecordKeeper, results <-chan error, n int) {
	t.Helper()
	accepted := 0
	for range n {
		if err := <-results; err == nil {
			accepted++
		} else if !errors.Is(err, ErrOccupied) {
			t.Error(err)
		}
	}
	ids, err := records.RecordIDs(t.Context(), kindJob)
	if err != nil || accepted > 1 || len(ids) != accepted {
		t.Errorf("%d jobs were accepted, and %d are stored: %v", accepted, len(ids), err)
	}
}

// Gateways that get jobs for one kernel at once accept at most one.
func TestManager_InKernelAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &gathering{MemoryRecords: &launchertest.MemoryRecords{}}, newCluster(0)
		records.all.Add(8)
		kernels.alive["k"] = "ann"
		results := make(chan error)
		for range 8 {
			m, end := gatewayOf(records, kernels, Policy{}, time.Hour)
			defer end()
			go submitTo(t, m, results)
		}
		acceptsOne(t, records, results, 8)
	})
}

// A gateway dies after it has stored a job for a kernel that another job has, and before it refuses the job. The job
// does not run. One for a kernel without a job does.
func TestManager_InKernelPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(0)
		kernels.alive["k"], kernels.alive["l"] = "ann", "ann"
		m, end := gatewayOf(records, kernels, Policy{}, time.Hour)
		defer end()
		first := submit(t, m, submissionIn("k", ThenKeep))
		ids := map[string]string{}
		for _, kernel := range []string{"k", "l"} {
			dead := New(&mortal{MemoryRecords: records, left: 2}, kernels, Policy{}, slog.New(slog.DiscardHandler))
			sub := submissionIn(kernel, ThenEnd)
			source, err := dead.store.keep(t.Context(), kindNotebook, kernel, sub.Notebook)
			if err != nil {
				t.Fatal(err)
			}
			s := stored{entry: entry{Form: form, Job: Job{ID: uuid.NewString(), Template: sub.Template, State: Queued,
				Kernel: kernel, Then: ThenEnd}, Author: sub.Author, Start: sub.Start, Source: source, Holder: "dead",
				Pending: true}}
			if err := dead.store.write(t.Context(), &s); err != nil {
				t.Fatal(err)
			}
			ids[kernel] = s.ID
		}
		time.Sleep(time.Minute)
		wantState(t, m, first, Running, "")
		if j := wantState(t, m, ids["k"], Failed, "another job runs in its kernel"); j.Attempt != 0 {
			t.Errorf("the job that was not accepted has run: %+v", j)
		}
		wantState(t, m, ids["l"], Running, "")
		if !kernels.lives("k") {
			t.Error("the kernel of the other job was ended")
		}
	})
}

func TestSubmission_InKernel(t *testing.T) {
	for name, change := range map[string]func(*Submission){
		"retries":    func(s *Submission) { s.Retries = 1 },
		"parameters": func(s *Submission) { s.Parameters = json.RawMessage(`{"x":1}`) },
		"then":       func(s *Submission) { s.Then = "forget" },
		"cell":       func(s *Submission) { s.From = "no such cell" },
	} {
		s := submissionIn("k", ThenKeep)
		change(&s)
		var invalid *InvalidError
		if _, err := s.check(); !errors.As(err, &invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
