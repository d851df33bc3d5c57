package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// mortal is records as one gateway sees them. The gateway dies before one of its writes.
type mortal struct {
	*launchertest.MemoryRecords
	mu   sync.Mutex
	left int // writes
	dead bool
}

var errDead = errors.New("the gateway is dead")

func (m *mortal) dies() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left--
	m.dead = m.dead || m.left < 0
	return m.dead
}

func (m *mortal) CreateRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	if m.dies() {
		return r, errDead
	}
	return m.MemoryRecords.CreateRecord(ctx, r)
}

func (m *mortal) ReplaceRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	if m.dies() {
		return r, errDead
	}
	return m.MemoryRecords.ReplaceRecord(ctx, r)
}

func (m *mortal) RemoveRecord(ctx context.Context, kind, id string) error {
	if m.dies() {
		return errDead
	}
	return m.MemoryRecords.RemoveRecord(ctx, kind, id)
}

// cluster is the kernels of a test. It survives gateways.
type cluster struct {
	mu     sync.Mutex
	room   int               // kernels that may live, of each author
	alive  map[string]string // by id: the author
	starts []string          // names of the authors, in the order of their kernels
	waits  []launcher.GPUWait
	gave   []string // kernels that were ended for others
}

func newCluster(room int) *cluster { return &cluster{room: room, alive: map[string]string{}} }

// setRoom changes how many kernels each author may have.
func (c *cluster) setRoom(room int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.room = room
}

// started returns the authors of all kernels that were ever started.
func (c *cluster) started() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.starts)
}

func (c *cluster) Start(_ context.Context, author Author, id string, wish kernels.Wish) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, there := c.alive[id]; there {
		return nil
	}
	if wish.Name == "broken" {
		return errors.New("its image does not exist")
	}
	living := 0
	for _, of := range c.alive {
		if of == author.Name {
			living++
		}
	}
	if living >= c.room {
		return &WaitError{Reason: "there are enough kernels"}
	}
	c.alive[id] = author.Name
	c.starts = append(c.starts, author.Name)
	return nil
}

func (c *cluster) Up(context.Context, string, func(string)) error { return nil }

func (c *cluster) Lost(context.Context, string) string { return "" }

func (c *cluster) Dial(context.Context, Author, string, url.Values) (*websocket.Conn, error) {
	return nil, errors.New("cells are not run by this test")
}

// GPUSeconds says that each kernel that lives has held GPUs for seven seconds.
func (c *cluster) GPUSeconds(_ context.Context, _, id string, _ time.Time) (float64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, there := c.alive[id]; there {
		return 7, nil
	}
	return 0, nil
}

func (c *cluster) Interrupt(context.Context, Author, string) error { return nil }

func (c *cluster) Stop(_ context.Context, _ Author, id, _ string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.alive, id)
	return nil
}

// setWaits changes which kernels wait for GPUs.
func (c *cluster) setWaits(waits ...launcher.GPUWait) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits = waits
}

func (c *cluster) GPUWaits(context.Context) ([]launcher.GPUWait, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.waits), nil
}

func (c *cluster) Starts(_ context.Context, id string) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.waits, func(w launcher.GPUWait) bool { return w.Kernel == id }), nil
}

func (c *cluster) GaveWay(_ context.Context, _ Author, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gave = append(c.gave, id)
}

func (c *cluster) gaveWay() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.gave)
}

func (c *cluster) living() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.alive)
}

const source = `{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[` +
	`{"cell_type":"code","id":"a","metadata":{},"source":"x = 1","outputs":[],"execution_count":null}]}`

func submission(owner, name string) Submission {
	return Submission{Template: Template{Name: name, Owner: owner, Kernelspec: "python3"}, Notebook: []byte(source),
		Author: Author{Name: owner}, Start: kernels.Wish{Name: "python3"}, Language: "python"}
}

// saves stores a notebook as a run does.
func saves(ctx context.Context, r *notebook.Run, text string, s notebook.State) (err error) {
	if s.Skeleton, err = r.Pieces.Put(ctx, []byte(text)); err != nil {
		return err
	}
	return r.Save(ctx, &s, notebook.Progress{Cell: 1, Cells: 1})
}

// notebookText returns a job's notebook.
func notebookText(ctx context.Context, m *Manager, id string, source bool) (string, error) {
	var b strings.Builder
	err := m.WriteNotebook(ctx, &b, id, source)
	return b.String(), err
}

// runFor stands for a run that takes a time and saves at the beginning.
func runFor(d time.Duration) func(context.Context, *notebook.Run) (notebook.Result, error) {
	return func(ctx context.Context, r *notebook.Run) (notebook.Result, error) {
		if r.Resume != nil {
			if _, err := r.Pieces.Get(ctx, r.Resume.Skeleton); err != nil {
				return notebook.Result{}, err
			}
		}
		if err := saves(ctx, r, source, notebook.State{Cursor: "c"}); err != nil {
			return notebook.Result{}, err
		}
		select {
		case <-ctx.Done():
			return notebook.Result{}, ctx.Err()
		case <-r.Stop:
			return notebook.Result{Status: notebook.Stopped}, nil
		case <-time.After(d):
			return notebook.Result{Status: notebook.Completed}, nil
		}
	}
}

// gatewayOf runs a manager until end is called.
func gatewayOf(
	keeper launcher.RecordKeeper, kernels Kernels, policy Policy, run time.Duration,
) (m *Manager, end func()) {
	return gatewayAt(realTiming, keeper, kernels, policy, run)
}

func gatewayAt(
	at timing, keeper launcher.RecordKeeper, kernels Kernels, policy Policy, run time.Duration,
) (m *Manager, end func()) {
	m = New(keeper, kernels, policy, slog.New(slog.DiscardHandler))
	m.timing = at
	return m, start(m, run)
}

// start is started with runs that take a time.
func start(m *Manager, run time.Duration) (end func()) {
	m.perform = runFor(run)
	return started(m)
}

// started runs a manager until end is called.
func started(m *Manager) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { m.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

func submit(t *testing.T, m *Manager, s Submission) string {
	t.Helper()
	j, created, err := m.Submit(t.Context(), s)
	if err != nil || !created {
		t.Fatalf("submit: %v, %v", created, err)
	}
	return j.ID
}

func wantState(t *testing.T, m *Manager, id string, want State, reason string) Job {
	t.Helper()
	j, err := m.Get(t.Context(), id)
	if err != nil || j.State != want || !strings.Contains(j.Reason, reason) {
		t.Errorf("job %s is %s (%s), %v; want %s (%s)", j.Name, j.State, j.Reason, err, want, reason)
	}
	return j
}

// A user's jobs start by priority and in their order. Another user's do not wait for them.
func TestManager_Order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernels := newCluster(0)
		m, end := gatewayOf(&launchertest.MemoryRecords{}, kernels, Policy{}, time.Minute)
		defer end()
		first := submit(t, m, submission("ann", "first"))
		time.Sleep(time.Millisecond)
		submit(t, m, submission("ann", "second"))
		urgent := submission("ann", "urgent")
		urgent.Priority = 1
		quick := submit(t, m, urgent)
		submit(t, m, submission("bob", "bob's"))
		time.Sleep(time.Second)
		wantState(t, m, quick, Queued, "there are enough kernels")
		kernels.setRoom(1)
		time.Sleep(30 * time.Second)
		wantState(t, m, quick, Running, "")
		wantState(t, m, first, Queued, "")
		if of := kernels.started(); !slices.Contains(of, "bob") || len(of) != 2 {
			t.Errorf("kernels were started for %v", of)
		}
		time.Sleep(10 * time.Minute)
		wantState(t, m, first, Succeeded, "")
		if n := kernels.living(); n != 0 {
			t.Errorf("%d kernels live after all jobs", n)
		}
	})
}

// Another gateway takes the jobs of one that has died, and not those of a living one.
func TestManager_Takeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(9)
		dying := &mortal{MemoryRecords: records, left: 1 << 30}
		a, endA := gatewayOf(dying, kernels, Policy{}, time.Hour)
		id := submit(t, a, submission("ann", "long"))
		time.Sleep(time.Minute)
		b, endB := gatewayOf(records, kernels, Policy{}, time.Second)
		defer endB()
		time.Sleep(10 * time.Minute)
		wantState(t, b, id, Running, "")
		dying.mu.Lock()
		dying.dead = true
		dying.mu.Unlock()
		time.Sleep(40 * time.Second)
		wantState(t, b, id, Succeeded, "")
		endA()
		if j := wantState(t, b, id, Succeeded, ""); j.Attempt != 1 || len(kernels.started()) != 1 {
			t.Errorf("the job had %d attempts and %d kernels", j.Attempt, len(kernels.started()))
		}
	})
}

// A gateway that is killed before any of its writes loses no job, and leaves no kernel.
func TestManager_KilledAnywhere(t *testing.T) {
	for writes := range 25 {
		synctest.Test(t, func(t *testing.T) {
			records, kernels := &launchertest.MemoryRecords{}, newCluster(9)
			dying := &mortal{MemoryRecords: records, left: writes}
			a, endA := gatewayOf(dying, kernels, Policy{}, 10*time.Second)
			s := submission("ann", "job")
			s.Token = "once"
			_, _, submitted := a.Submit(t.Context(), s)
			time.Sleep(time.Minute)
			b, endB := gatewayOf(records, kernels, Policy{}, 10*time.Second)
			defer endB()
			j, created, err := b.Submit(t.Context(), s)
			if err != nil || created && submitted == nil {
				t.Fatalf("after %d writes: %v, created again: %v", writes, err, created)
			}
			time.Sleep(2 * time.Minute)
			endA()
			if j := wantState(t, b, j.ID, Succeeded, ""); j.Attempt != 1 {
				t.Errorf("after %d writes: %d attempts", writes, j.Attempt)
			}
			if n := kernels.living(); n != 0 || len(kernels.started()) != 1 {
				t.Errorf("after %d writes: %d kernels live of %d", writes, n, len(kernels.started()))
			}
		})
	}
}

// Many gateways that die at random moments end each job once.
func TestManager_Random(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(3)
		last, endLast := gatewayOf(records, kernels, Policy{}, 5*time.Second)
		defer endLast()
		var ids []string
		for i := range 20 {
			ids = append(ids, submit(t, last, submission([]string{"ann", "bob"}[i%2], fmt.Sprint(i))))
		}
		for range 15 {
			_, end := gatewayOf(&mortal{MemoryRecords: records, left: r.IntN(40)}, kernels, Policy{}, 5*time.Second)
			time.Sleep(time.Duration(r.IntN(20000)) * time.Millisecond)
			end()
		}
		time.Sleep(20 * time.Minute)
		for _, id := range ids {
			wantState(t, last, id, Succeeded, "")
		}
		if n := kernels.living(); n != 0 {
			t.Errorf("%d kernels live", n)
		}
	})
}

// One place for kernels: jobs that are released together run in the order of their submission.
func TestManager_OneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernels := newCluster(0)
		m, end := gatewayOf(&launchertest.MemoryRecords{}, kernels, Policy{}, time.Second)
		defer end()
		var ids []string
		for i := range 5 {
			ids = append(ids, submit(t, m, submission("ann", fmt.Sprint(i))))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute)
		kernels.setRoom(1)
		time.Sleep(10 * time.Minute)
		ended := time.Time{}
		for _, id := range ids {
			j := wantState(t, m, id, Succeeded, "")
			if j.Ended.Before(ended) {
				t.Errorf("job %s ended before an earlier one", j.Name)
			}
			ended = j.Ended
		}
	})
}

// A job whose notebook is gone fails, and is not tried for ever.
func TestManager_Broken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(1)
		m, end := gatewayOf(records, kernels, Policy{}, time.Hour)
		first := submit(t, m, submission("ann", "job"))
		time.Sleep(time.Second)
		end()
		ids, err := records.RecordIDs(t.Context(), kindNotebook)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if err := records.RemoveRecord(t.Context(), kindNotebook, id); err != nil {
				t.Fatal(err)
			}
		}
		m, end = gatewayOf(records, kernels, Policy{}, time.Hour)
		defer end()
		time.Sleep(time.Minute)
		wantState(t, m, first, Failed, reasonInternal)
		if n := kernels.living(); n != 0 {
			t.Errorf("%d kernels live", n)
		}
		large := submission("ann", "large")
		large.Parameters = json.RawMessage(`{"x": "` + strings.Repeat("x", maxValues) + `"}`)
		var invalid *InvalidError
		if _, _, err := m.Submit(t.Context(), large); !errors.As(err, &invalid) {
			t.Errorf("large parameters: %v", err)
		}
	})
}

func TestManager_EndsOfJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernels := newCluster(9)
		m, end := gatewayOf(&launchertest.MemoryRecords{}, kernels, Policy{PerUser: 4}, time.Hour)
		defer end()
		short := submission("ann", "short")
		short.Timeout = 60
		timeout := submit(t, m, short)
		stopped := submit(t, m, submission("ann", "stopped"))
		broken := submission("ann", "broken")
		broken.Start.Name, broken.Retries = "broken", 2
		failed := submit(t, m, broken)
		time.Sleep(30 * time.Second)
		if err := m.Remove(t.Context(), stopped); !errors.Is(err, ErrRuns) {
			t.Errorf("a running job was removed: %v", err)
		}
		if _, err := m.Stop(t.Context(), stopped); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		wantState(t, m, stopped, Stopped, "on request")
		if j := wantState(t, m, failed, Failed, "its image does not exist"); j.Attempt != 3 {
			t.Errorf("a start that fails has %d attempts", j.Attempt)
		}
		time.Sleep(time.Minute)
		wantState(t, m, timeout, Failed, "timeout of 60 s")
		for range 4 {
			submit(t, m, submission("ann", "more"))
		}
		var many *TooManyError
		if _, _, err := m.Submit(t.Context(), submission("ann", "too many")); !errors.As(err, &many) {
			t.Errorf("a fifth job: %v", err)
		}
		if _, _, err := m.Submit(t.Context(), submission("bob", "another's")); err != nil {
			t.Errorf("another user's job: %v", err)
		}
	})
}

// Jobs that have ended are removed by age and by number, with their notebooks. So are notebooks that no job names.
func TestManager_Sweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := &launchertest.MemoryRecords{}
		m, end := gatewayOf(records, newCluster(9), Policy{Keep: 2, KeepFor: 24 * time.Hour}, time.Second)
		defer end()
		if _, err := (store{records}).keep(t.Context(), kindNotebook, "lost", []byte("{}")); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for i := range 4 {
			ids = append(ids, submit(t, m, submission("ann", fmt.Sprint(i))))
			time.Sleep(time.Minute)
		}
		count := func(jobs, notebooks int) {
			t.Helper()
			list, err := m.List(t.Context(), func(*Job) bool { return true })
			kept, _ := records.RecordIDs(t.Context(), kindNotebook)
			if err != nil || len(list) != jobs || len(kept) != notebooks {
				t.Errorf("%d jobs and %d notebooks, %v; want %d and %d", len(list), len(kept), err, jobs, notebooks)
			}
		}
		count(2, 5) // those that are too many go at once, the notebook without a job does not
		time.Sleep(3 * time.Hour)
		count(2, 4)
		if b, err := notebookText(t.Context(), m, ids[3], false); err != nil || !strings.Contains(b, "x = 1") {
			t.Errorf("the notebook of a kept job: %s, %v", b, err)
		}
		time.Sleep(26 * time.Hour)
		count(0, 0)
	})
}

// late is records in which something happens before the open ones are listed for the first time.
type late struct {
	*launchertest.MemoryRecords
	before func()
}

func (l *late) RecordStamps(ctx context.Context, kind string, open bool) (map[string]string, error) {
	if before := l.before; before != nil {
		l.before = nil
		before()
	}
	return l.MemoryRecords.RecordStamps(ctx, kind, open)
}

// A job that another gateway makes meanwhile, and that is the last one allowed, is returned and not refused.
func TestManager_RoomForTheSameJob(t *testing.T) {
	records := &launchertest.MemoryRecords{}
	slow := &late{MemoryRecords: records}
	policy, log := Policy{PerUser: 1}, slog.New(slog.DiscardHandler)
	a, b := New(records, newCluster(9), policy, log), New(slow, newCluster(9), policy, log)
	s, id := submission("ann", "job"), ""
	s.Token = "once"
	slow.before = func() { id = submit(t, a, s) }
	if j, created, err := b.Submit(t.Context(), s); err != nil || created || j.ID != id {
		t.Errorf("the same job: %q, %v, %v; want %q", j.ID, created, err, id)
	}
	s.Token = "another"
	var many *TooManyError
	if _, _, err := b.Submit(t.Context(), s); !errors.As(err, &many) {
		t.Errorf("another job: %v", err)
	}
}
