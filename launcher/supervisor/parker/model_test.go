package parker

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gate"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gpumemory"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/notices"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

// TestParker_Model: three kernels share one GPU by the real locks of package devices. Cells, typing, interrupts, killed
// supervisors and kernels, and faults of ekg-gpu come in random order, in virtual time. At each moment at most one
// kernel computes, and it holds the GPU. GPU memory is saved when the GPU is given back. Each cell is run once and in
// order, or it was interrupted, or its supervisor or kernel was killed. Every wait ends.
func TestParker_Model(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		acts := rapid.SliceOfN(rapid.Custom(drawAct), 1, 40).Draw(rt, "acts")
		var wrong []string
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) { wrong = runModel(t, dir, acts) })
		if len(wrong) > 0 {
			rt.Fatalf("%q of %+v", wrong, acts)
		}
	})
}

// act is one step of the model.
type act struct {
	Kernel int
	What   string
	Takes  time.Duration // of a cell, or of the next command of ekg-gpu
	Move   bool          // a fault waits for a command that saves or restores
	Then   time.Duration // the pause behind it
}

func drawAct(t *rapid.T) act {
	times := []time.Duration{0, 10 * time.Millisecond, time.Second, 3 * time.Second, 15 * time.Second}
	return act{
		Kernel: rapid.IntRange(0, 2).Draw(t, "kernel"),
		What: rapid.SampledFrom([]string{"cell", "cuda", "cuda", "cuda", "complete", "types", "interrupt", "keep",
			"kill kernel", "kill supervisor", "not run", "dies", "silent", "fails"}).Draw(t, "what"),
		Takes: rapid.SampledFrom(times).Draw(t, "takes"),
		Move:  rapid.Bool().Draw(t, "move"),
		Then:  rapid.SampledFrom(times).Draw(t, "then"),
	}
}

// modelMachine is a machine with one GPU.
type modelMachine struct {
	pool    *devices.Pool
	mu      sync.Mutex // held only briefly
	wrong   []string
	compute string // the kernel that computes
}

func (m *modelMachine) says(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wrong = append(m.wrong, fmt.Sprintf(format, args...))
}

var modelGPU = gpu.List{Devices: []gpu.Listed{{UUID: "GPU-1", MemoryTotal: 80 << 30, Healthy: true}}}

// holder returns the kernel that has the GPU, or "".
func (m *modelMachine) holder() string {
	held, err := m.pool.Held(context.Background(), modelGPU)
	if err != nil {
		m.says("%v", err)
	} else if len(held[0].Holders) > 0 {
		return held[0].Holders[0].Kernel
	}
	return ""
}

// modelCell is a cell, or what an editor asks.
type modelCell struct {
	id, msgType string
	cuda        bool
	takes       time.Duration
}

// modelKernel is the kernel's process, its supervisor and the files that they share.
type modelKernel struct {
	*modelMachine
	name string
	lock *os.File
	sent []string

	// Guarded by modelMachine.mu.
	cells       map[string]modelCell
	inbox       []modelCell
	arrived     chan struct{} // capacity 1
	running     *modelCell
	ran         []string
	dropped     map[string]bool // by an interrupt, or with a supervisor or kernel that was killed
	cuda        gpu.CUDAState
	holds       bool // first calls of CUDA are held
	callWaits   bool
	interrupted bool
	fault       act // of ekg-gpu
	commands    chan process.GPUCommand
	supervisor  *modelSupervisor
	end         func() // ends the process
}

// modelSupervisor is what the Parker's supervisor has.
type modelSupervisor struct {
	*Parker
	mu       sync.Mutex
	use      activity.Use
	table    requests.Table
	sessions session.Table
	cancel   func()
	end      func()
	sends    sync.WaitGroup
}

func (k *modelKernel) PID() int { return 1 }

func (k *modelKernel) HoldsGPUCalls() (holds bool, why string) { return k.holds, "" }

func (k *modelKernel) PassGPUCalls() {
	k.modelMachine.mu.Lock()
	defer k.modelMachine.mu.Unlock()
	k.callWaits = false
}

func (k *modelKernel) AskGPU(c process.GPUCommand) { k.commands <- c }

// drive is ekg-gpu and the driver's part of the process.
func (k *modelKernel) drive(ctx context.Context) {
	for {
		var c process.GPUCommand
		select {
		case c = <-k.commands:
		case <-ctx.Done():
			return
		}
		k.modelMachine.mu.Lock()
		fault, pause := "", time.Duration(0)
		if !k.fault.Move || c.Do != gpu.Look {
			fault, pause = k.fault.What, k.fault.Takes
			k.fault = act{}
		}
		k.modelMachine.mu.Unlock()
		if fault == "not run" {
			k.answer(gpu.Answer{ID: c.ID, State: gpu.CUDAUnknown, Failure: &gpu.CUDAError{Text: process.NoGPUProgram}})
			continue
		}
		if goroutines.Sleep(ctx, pause) != nil {
			return
		}
		holder := k.holder()
		k.modelMachine.mu.Lock()
		a := gpu.Answer{ID: c.ID}
		switch {
		case fault == "fails":
			a.Failure = &gpu.CUDAError{Call: "cuCheckpointProcess", Code: 999, Text: "of the model"}
		case c.Do == gpu.Save && k.compute == k.name:
			a.Failure = &gpu.CUDAError{Call: "cuCheckpointProcessLock", Code: 600, Text: "not ready"}
		case c.Do == gpu.Save && k.cuda == gpu.CUDARunning:
			k.cuda = gpu.CUDASaved
		case c.Do == gpu.Restore && k.cuda == gpu.CUDASaved:
			if k.cuda = gpu.CUDARunning; holder != k.name {
				k.wrong = append(k.wrong, fmt.Sprintf("%s is restored while %q has the GPU", k.name, holder))
			}
		}
		a.State = k.cuda
		k.modelMachine.mu.Unlock()
		switch fault {
		case "silent":
		case "dies":
			k.answer(gpu.Answer{ID: c.ID, State: gpu.CUDAUnanswered, Failure: &gpu.CUDAError{Text: "it has ended"}})
		default:
			k.answer(a)
		}
	}
}

func (k *modelKernel) answer(a gpu.Answer) {
	k.modelMachine.mu.Lock()
	s := k.supervisor
	k.modelMachine.mu.Unlock()
	if s != nil {
		s.Answered(a)
	}
}

// live is the kernel's process. It runs what comes, in order.
func (k *modelKernel) live(ctx context.Context) {
	for ctx.Err() == nil {
		k.modelMachine.mu.Lock()
		if len(k.inbox) == 0 {
			k.modelMachine.mu.Unlock()
			select {
			case <-k.arrived:
			case <-ctx.Done():
			}
			continue
		}
		c := k.inbox[0]
		k.inbox, k.running, k.interrupted = k.inbox[1:], &c, false
		k.modelMachine.mu.Unlock()
		k.tell(c, api.Busy)
		if c.cuda {
			k.computes(ctx, c.takes)
		} else {
			k.rests(ctx, c.takes)
		}
		if ctx.Err() != nil {
			return
		}
		k.modelMachine.mu.Lock()
		k.running, k.ran = nil, append(k.ran, c.id)
		k.modelMachine.mu.Unlock()
		k.tell(c, api.Idle)
	}
}

// until waits until the kernel's state is so. It reports false if the cell was interrupted, or the process was killed.
func (k *modelKernel) until(ctx context.Context, is func() bool) bool {
	for at := 0; ; at++ {
		k.modelMachine.mu.Lock()
		done, stop, s, waits := is(), k.interrupted, k.supervisor, k.callWaits
		k.modelMachine.mu.Unlock()
		if done || stop {
			return done && !stop
		}
		if waits && s != nil && at%10 == 0 {
			s.Called() // as process 1 or the parent tells, again and again
		}
		if goroutines.Sleep(ctx, 100*time.Millisecond) != nil {
			return false
		}
	}
}

// rests runs a cell that does not compute.
func (k *modelKernel) rests(ctx context.Context, takes time.Duration) {
	ends := time.Now().Add(takes)
	k.until(ctx, func() bool { return !time.Now().Before(ends) })
}

// computes makes calls of CUDA. The first one is held, and all wait while GPU memory is saved.
func (k *modelKernel) computes(ctx context.Context, takes time.Duration) {
	k.modelMachine.mu.Lock()
	k.callWaits = k.cuda == gpu.CUDANone && k.holds
	k.modelMachine.mu.Unlock()
	passed := k.until(ctx, func() bool { return !k.callWaits })
	k.modelMachine.mu.Lock()
	k.callWaits = false
	k.modelMachine.mu.Unlock()
	if !passed {
		return
	}
	ends := time.Now()
	if !k.until(ctx, func() bool {
		if k.cuda == gpu.CUDANone {
			k.cuda = gpu.CUDARunning
		}
		if k.cuda != gpu.CUDARunning {
			return false
		}
		if k.compute != "" {
			k.wrong = append(k.wrong, k.name+" computes beside "+k.compute)
		}
		k.compute, ends = k.name, time.Now().Add(takes)
		return true
	}) {
		return
	}
	if h := k.holder(); h != k.name {
		k.says("%s computes while %q has the GPU", k.name, h)
	}
	k.rests(ctx, time.Until(ends))
	k.modelMachine.mu.Lock()
	defer k.modelMachine.mu.Unlock()
	k.compute = ""
}

// tell tells the supervisor of a status.
func (k *modelKernel) tell(c modelCell, state api.State) {
	k.modelMachine.mu.Lock()
	s := k.supervisor
	k.modelMachine.mu.Unlock()
	if s == nil {
		return
	}
	s.mu.Lock()
	s.use.Observe("status", jupyter.Header{MsgID: c.id, MsgType: c.msgType}, state)
	if state == api.Idle {
		for _, r := range slices.Clone(s.table.ByID(c.id)) {
			s.table.Finish(r)
		}
	}
	s.mu.Unlock()
	s.Changed()
}

// abort notes that a message is answered in place of the kernel.
func (k *modelKernel) abort(s *modelSupervisor, r *requests.Request) {
	s.table.Finish(r)
	s.use.Done(r.ID, r.Type)
	k.modelMachine.mu.Lock()
	defer k.modelMachine.mu.Unlock()
	k.dropped[r.ID] = true
}

// modelSeat is the seat with a check: nothing of the kernel may be on the GPU when it is given back.
type modelSeat struct {
	*devices.Seat
	k *modelKernel
}

func (s modelSeat) Wait(since time.Time) (gpumemory.Turn, error) { return s.Seat.Wait(since, false) }

func (s modelSeat) Return() error {
	s.k.modelMachine.mu.Lock()
	cuda := s.k.cuda
	s.k.modelMachine.mu.Unlock()
	if cuda != gpu.CUDASaved && cuda != gpu.CUDANone {
		s.k.says("%s gives the GPU back, and its memory there is %s", s.k.name, cuda)
	}
	return s.Seat.Return()
}

// supervise starts a supervisor.
func (k *modelKernel) supervise(adopted bool) {
	s := &modelSupervisor{table: requests.NewTable(), sessions: session.NewTable(func(*session.Session) {}),
		use: activity.NewUse(time.Now, &api.Cull{})}
	log := messagelog.New(messagelog.Options{Stamp: func([]byte) messagelog.Stamp { return messagelog.Stamp{} }})
	s.use.GPUs.Devices = []api.GPU{{UUID: "GPU-1", MemoryUsed: 1 << 20, Utilization: new(float64)}}
	s.use.Ready()
	s.Parker = New(Options{Mu: &s.mu, Use: &s.use, Shell: gate.New(), Log: log, Notices: notices.New(log, "own"),
		Requests: &s.table, Sessions: &s.sessions, Warm: func() bool { return false }, Now: time.Now,
		Abort:  func(r *requests.Request, _, _, _ string) { k.abort(s, r) },
		Logger: slog.New(slog.DiscardHandler)})
	s.SetSeat(modelSeat{devices.NewSeat(k.name, []*os.File{k.lock}), k}, api.Park{Idle: time.Second})
	k.modelMachine.mu.Lock()
	if c := k.running; c != nil {
		s.use.Adopt(c.id, c.msgType, time.Now())
	}
	k.supervisor = s
	k.modelMachine.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.end = s.Begin(ctx, k, adopted, func(why string) { k.says("%s is given up: %s", k.name, why) })
	s.sends.Go(func() {
		for {
			m, err := s.Shell.Take(ctx)
			if err != nil {
				return
			}
			k.modelMachine.mu.Lock()
			k.inbox = append(k.inbox, k.cells[m.Req.ID])
			k.modelMachine.mu.Unlock()
			goroutines.Wake(k.arrived)
		}
	})
}

// unsupervise ends the supervisor. What waits in it is lost.
func (k *modelKernel) unsupervise() {
	s := k.supervisor
	s.cancel()
	s.sends.Wait()
	s.end()
	k.modelMachine.mu.Lock()
	defer k.modelMachine.mu.Unlock()
	k.supervisor = nil
	s.Shell.Drop(func(m *gate.Message) bool { k.dropped[m.Req.ID] = true; return true })
}

// begin starts the process.
func (k *modelKernel) begin() {
	k.cuda = gpu.CUDANone
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { k.live(ctx) })
	done.Go(func() { k.drive(ctx) })
	k.end = func() { cancel(); done.Wait() }
}

// die kills the process, and what it runs with it.
func (k *modelKernel) die() {
	k.end()
	k.modelMachine.mu.Lock()
	defer k.modelMachine.mu.Unlock()
	for _, c := range k.inbox {
		k.dropped[c.id] = true
	}
	if k.running != nil {
		k.dropped[k.running.id] = true
	}
	if k.compute == k.name {
		k.compute = ""
	}
	k.inbox, k.running, k.callWaits = nil, nil, false
}

// send sends a message to the supervisor.
func (k *modelKernel) send(a act) {
	c := modelCell{fmt.Sprint(k.name, "-", len(k.sent)), "execute_request", a.What == "cuda", a.Takes}
	if a.What == "complete" {
		c.msgType = "complete_request"
	}
	m := jupyter.New(jupyter.Shell, c.msgType, "one", nil, struct{}{})
	r := &requests.Request{ID: c.id, Type: c.msgType, Header: m.Header, Channel: jupyter.Shell, Main: true}
	k.modelMachine.mu.Lock()
	k.sent, k.cells[c.id] = append(k.sent, c.id), c
	k.modelMachine.mu.Unlock()
	s := k.supervisor
	s.mu.Lock()
	s.Hold(&m, c.msgType)
	s.table.Add(r)
	s.use.Await(r.ID, r.Type)
	if err := s.Shell.Push(m, r); err != nil {
		k.says("%v", err)
	}
	s.mu.Unlock()
	s.Changed()
}

// does does one step.
func (k *modelKernel) does(a act) {
	switch a.What {
	case "cell", "cuda", "complete":
		k.send(a)
	case "interrupt":
		s := k.supervisor
		s.mu.Lock()
		only := s.Interrupt()
		s.mu.Unlock()
		k.modelMachine.mu.Lock()
		k.interrupted = k.interrupted || !only
		k.modelMachine.mu.Unlock()
	case "types":
		k.supervisor.mu.Lock()
		k.supervisor.ExpectCell()
		k.supervisor.mu.Unlock()
	case "keep":
		k.supervisor.mu.Lock()
		k.supervisor.use.KeepGPUUntil = time.Now().Add(a.Takes)
		k.supervisor.mu.Unlock()
		k.supervisor.Changed()
	case "kill supervisor":
		k.unsupervise()
		time.Sleep(a.Takes)
		k.supervise(true)
	case "kill kernel":
		k.die()
		k.unsupervise()
		k.begin()
		k.supervise(false)
	default:
		k.modelMachine.mu.Lock()
		k.fault = a
		k.modelMachine.mu.Unlock()
	}
}

// finished reports whether all that was sent was run or dropped.
func (k *modelKernel) finished() bool {
	k.modelMachine.mu.Lock()
	defer k.modelMachine.mu.Unlock()
	return len(k.ran)+len(k.dropped) >= len(k.sent)
}

// check compares what was run with what was sent.
func (k *modelKernel) check() {
	k.modelMachine.mu.Lock()
	defer k.modelMachine.mu.Unlock()
	var want []string
	for _, id := range k.sent {
		if !k.dropped[id] {
			want = append(want, id)
		}
	}
	if !slices.Equal(k.ran, want) {
		k.wrong = append(k.wrong, fmt.Sprintf("%s has run %v, want %v", k.name, k.ran, want))
	}
}

func runModel(t *testing.T, dir string, acts []act) []string {
	t.Helper()
	pool, err := devices.NewPool(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := &modelMachine{pool: pool}
	var kernels []*modelKernel
	for i := range 3 {
		lock, err := os.OpenFile(dir+"/GPU-1", os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		k := &modelKernel{modelMachine: m, name: fmt.Sprint("kernel", i), lock: lock, cells: map[string]modelCell{},
			arrived: make(chan struct{}, 1), dropped: map[string]bool{}, holds: i > 0,
			commands: make(chan process.GPUCommand, 4)}
		k.begin()
		k.supervise(false)
		kernels = append(kernels, k)
	}
	for _, a := range acts {
		kernels[a.Kernel].does(a)
		time.Sleep(a.Then)
	}
	for _, k := range kernels { // no fault is left, and everything works
		k.does(act{})
		k.supervisor.mu.Lock()
		k.supervisor.use.KeepGPUUntil = time.Time{}
		k.supervisor.mu.Unlock()
		k.send(act{What: "cuda", Takes: time.Second})
	}
	for limit := time.Now().Add(40 * time.Minute); ; time.Sleep(time.Second) {
		if !slices.ContainsFunc(kernels, func(k *modelKernel) bool { return !k.finished() }) {
			break
		}
		if time.Now().After(limit) {
			for _, k := range kernels {
				k.supervisor.mu.Lock()
				m.says("after 40 minutes %s is %+v, and its CUDA is %s", k.name, k.supervisor.Shown(time.Time{}), k.cuda)
				k.supervisor.mu.Unlock()
			}
			break
		}
	}
	for _, k := range kernels {
		k.check()
		k.end()
		k.unsupervise()
		_ = k.lock.Close()
	}
	return m.wrong
}
