package supervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/parking"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gpumemory"
)

// standInWatch stands for ekg-gpu watch. The file "state" has the state of the kernel's CUDA. The file "does" says what
// becomes of the next command of a kind, in lines such as "save die", and is used up.
const standInWatch = `#!/usr/bin/env python3
import json, os, sys
os.chdir(os.path.dirname(os.path.abspath(sys.argv[0])))
print(json.dumps({"seconds": 0, "devices": [{"uuid": "GPU-1", "memory_used": 1 << 20, "utilization": 0}]}), flush=True)
after = {"save": {"running": "saved", "locked": "saved"}, "restore": {"saved": "running", "locked": "running"}}
for line in sys.stdin:
    command = json.loads(line)
    state = open("state").read()
    with open("asked", "a") as f:
        f.write(command["do"] + " ")
    fault = ""
    if os.path.exists("does") and open("does").read().split(" ", 1)[0] == command["do"]:
        fault = open("does").read().split(" ", 1)[1]
        os.remove("does")
    if fault.startswith("state "):
        state = fault.split(" ")[1]
    elif not fault.startswith("fails") and not fault.startswith("dies before"):
        state = after.get(command["do"], {}).get(state, state)
    with open("state.new", "w") as f:
        f.write(state)
    os.rename("state.new", "state")
    if fault.startswith("dies"):
        sys.exit(1)
    answer = {"answer": command["id"], "state": state, "seconds": 0.1}
    if fault.startswith("fails"):
        answer["failure"] = {"call": "cuCheckpointProcess" + command["do"].title(), "code": 999, "text": "of the tests"}
    print(json.dumps(answer), flush=True)
`

// testSeat is a seat at a GPU that others may have or want.
type testSeat struct {
	mu                    sync.Mutex
	own, taken, wanted    bool
	line                  int // kernels that wait
	returned, took, looks int
	kept                  time.Time // as those who wait know it
	saved                 int64     // bytes
}

func (s *testSeat) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *testSeat) Owns() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = !s.taken
	return s.own, nil
}

func (s *testSeat) TakeFree() (bool, error) { return s.Owns() }

func (s *testSeat) Return() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = false
	s.returned++
	return nil
}

func (s *testSeat) Wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	return s.wanted
}

func (s *testSeat) Keep(until time.Time) error {
	s.set(func() { s.kept = until })
	return nil
}

func (s *testSeat) Kept() (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken {
		return s.kept, nil
	}
	return time.Time{}, nil
}

func (s *testSeat) Saved() (int64, error) { return 0, nil }

func (s *testSeat) NoteSaved(_ int, bytes int64) error {
	s.set(func() { s.saved = bytes })
	return nil
}

func (s *testSeat) ForgetSaved() error { return s.NoteSaved(0, 0) }

func (s *testSeat) Exclusive(context.Context) (func(), error) { return func() {}, nil }

func (s *testSeat) Wait(time.Time) (gpumemory.Turn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line++
	return testTurn{s}, nil
}

type testTurn struct{ *testSeat }

func (t testTurn) Take() (bool, int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken {
		return false, 0, nil
	}
	t.own = true
	t.took++
	return true, 0, nil
}

func (t testTurn) Leave() { t.set(func() { t.line-- }) }

// parkable is a kernel that may be parked, with all around it.
type parkable struct {
	*running
	*client
	seat *testSeat
	dir  string
	skip *atomic.Int64 // nanoseconds that its clock is ahead
}

func startParkable(t *testing.T, state string) *parkable {
	t.Helper()
	p := &parkable{seat: &testSeat{}, dir: t.TempDir(), skip: new(atomic.Int64)}
	program := filepath.Join(p.dir, "ekg-gpu")
	if err := errors.Join(os.WriteFile(program, []byte(standInWatch), 0o700),
		os.WriteFile(filepath.Join(p.dir, "state"), []byte(state), 0o600)); err != nil {
		t.Fatal(err)
	}
	p.running = startSupervisorTuned(t, func(c *api.Config) {
		c.GPUProgram, c.GPUSamples = program, api.GPUSamples{Every: time.Second, Devices: []string{"GPU-1"}}
		c.GPUSamples.Park, c.Cull.KeepLimit = api.Park{Idle: time.Second}, 10*time.Hour
	}, func(s *Supervisor) {
		s.now = func() time.Time { return time.Now().Add(time.Duration(p.skip.Load())) }
		s.SetSeat(p.seat)
	}).ready()
	p.is(api.GPUHeld, "")
	p.until("sampled", func(s api.Status) bool { return len(s.GPU) == 1 })
	p.client = p.dial(dialOption{session: "one"})
	p.says("print 1")
	return p
}

// is waits for a state of the kernel's GPU, with a reason that contains a text.
func (p *parkable) is(state api.ParkState, reason string) {
	p.running.t.Helper()
	p.until(string(state)+" "+reason, func(s api.Status) bool {
		return s.Parked.State == state && strings.Contains(s.Parked.Reason, reason) && s.Parked.Since != ""
	})
}

// rest lets time pass, while another kernel waits for the GPU.
func (p *parkable) rest() {
	p.seat.set(func() { p.seat.wanted = true })
	p.skip.Add(int64(2 * time.Minute))
	p.s.parker.Changed()
}

func (p *parkable) says(code string) {
	p.running.t.Helper()
	id := p.execute(code)
	if r, ok := find(p.result(id), "execute_reply", id); !ok || jupyter.StringField(r.Content, "status") != "ok" {
		p.running.t.Fatalf("%q is answered with %s", code, r.Content)
	}
}

func (p *parkable) does(what string) {
	p.running.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, "does"), []byte(what), 0o600); err != nil {
		p.running.t.Fatal(err)
	}
}

// A kernel that does nothing gives its GPU to one that waits, and its next cell takes it again. The cell shows why it
// waits. What an editor asks meanwhile is answered at once, and the order stays.
func TestParking(t *testing.T) {
	p := startParkable(t, "running")
	p.skip.Add(int64(time.Hour))
	p.s.parker.Changed()
	eventually(t, "it looks whether another kernel waits", func() bool {
		p.seat.mu.Lock()
		defer p.seat.mu.Unlock()
		return p.seat.looks > 0
	})
	p.is(api.GPUHeld, "")
	p.rest()
	p.is(api.GPUParked, "")
	p.collect("the line under the last cell", func(g got) bool {
		return strings.Contains(string(g.Content), "has given its GPU back at")
	})
	p.result(p.send(jupyter.Shell, "history_request", map[string]any{"hist_access_type": "tail", "n": 1}))
	p.is(api.GPUParked, "") // that needs no GPU
	p.skip.Add(int64(time.Hour))
	parked := func() time.Duration {
		st, _ := p.s.Status()
		return st.GPUUse.Parked.Truncate(time.Hour)
	}
	if got := parked(); got != time.Hour {
		t.Errorf("it was parked for an hour, and tells %s", got)
	}

	p.seat.set(func() {
		if p.seat.saved != parking.HostMemory(1<<20) {
			t.Errorf("parked, it has noted %d bytes", p.seat.saved)
		}
		p.seat.taken = true
	})
	cell := p.execute("print 3")
	p.collect("the reason of the wait", func(g got) bool {
		return strings.Contains(string(g.Content), "This cell waits for its GPU: another kernel has it")
	})
	p.is(api.GPUWaking, "another kernel")
	asks := p.send(jupyter.Shell, "complete_request", map[string]any{"code": "pri", "cursor_pos": 3})
	if r, _ := find(p.result(asks), "complete_reply", asks); !strings.Contains(string(r.Content), `"matches":[]`) {
		t.Errorf("a completion waits for a GPU, or is answered with %s", r.Content)
	}
	second := p.execute("print 2")
	p.seat.set(func() { p.seat.taken, p.seat.wanted = false, false })
	all := p.result(cell, second)
	if output(all, cell) == "" || output(all, second) == "" {
		t.Errorf("the cells that waited printed %q", output(all, ""))
	}
	first := true
	for _, g := range all {
		if g.msgType == "execute_input" && first != (g.parent == cell) {
			t.Error("the cells ran in another order")
		}
		first = first && g.msgType != "execute_input"
	}
	p.is(api.GPUHeld, "")
	p.skip.Add(int64(time.Hour))
	if got := parked(); got != time.Hour {
		t.Errorf("it was parked for an hour, is awake for another, and tells %s", got)
	}
	if b, err := os.ReadFile(filepath.Join(p.dir, "asked")); err != nil || string(b) != "look save restore " {
		t.Errorf("ekg-gpu was asked for %q, %v", b, err)
	}
	p.seat.set(func() {
		if p.seat.line != 0 || p.seat.returned != 1 || p.seat.took != 1 || !p.seat.own || p.seat.saved != 0 {
			t.Errorf("the seat: %+v", p.seat)
		}
	})
}

// An owner keeps a GPU until a time. The kernel is not parked for another one before. The other one says that time.
func TestParking_Keep(t *testing.T) {
	p := startParkable(t, "running")
	keep := func(until string) {
		t.Helper()
		if code, body := p.request("PATCH", "", `{"keep_gpu_until": `+until+`}`); code != 200 {
			t.Fatalf("%d %s", code, body)
		}
	}
	told := func(until time.Time) {
		t.Helper()
		eventually(t, "those who wait know it", func() bool {
			p.seat.mu.Lock()
			defer p.seat.mu.Unlock()
			return p.seat.kept.Equal(until)
		})
	}
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	keep(until.Format(`"` + time.RFC3339 + `"`))
	told(until)
	p.until("kept", func(st api.Status) bool { return st.Parked.KeepGPUUntil == api.Timestamp(until) })
	p.rest()
	p.is(api.GPUHeld, "")
	keep("null")
	told(time.Time{})
	p.is(api.GPUParked, "")

	p.seat.set(func() { p.seat.taken, p.seat.kept = true, until })
	cell := p.execute("print 3")
	p.is(api.GPUWaking, "another kernel has it, and it is kept until "+api.ShownTime(until))
	p.seat.set(func() { p.seat.taken, p.seat.wanted = false, false })
	p.result(cell)
	p.is(api.GPUHeld, "")
}

// A parked kernel answers a debugger with the reason, since a call of CUDA would block the control channel. It takes a
// free GPU for the next question.
func TestParking_Debugger(t *testing.T) {
	p := startParkable(t, "running")
	p.rest()
	p.is(api.GPUParked, "")
	asks := p.send(jupyter.Control, "debug_request", map[string]any{"type": "request", "command": "evaluate"})
	r, _ := find(p.result(asks), "debug_reply", asks)
	if !strings.Contains(string(r.Content), "has given its GPU back") {
		t.Errorf("answered with %s", r.Content)
	}
	p.is(api.GPUParked, "") // another kernel waits for the GPU
	p.seat.set(func() { p.seat.wanted = false })
	p.is(api.GPUHeld, "")
	asks = p.send(jupyter.Control, "debug_request", map[string]any{"type": "request", "command": "evaluate"})
	if r, _ := find(p.result(asks), "debug_reply", asks); strings.Contains(string(r.Content), "GPU") {
		t.Errorf("with its GPU it is answered with %s", r.Content)
	}
}

// callsCUDA says what Process says while a call of CUDA waits.
func (p *parkable) callsCUDA() { p.s.parker.Called() }

// Kernels that never used CUDA have nothing to save. Their cells need no GPU, but calls of CUDA do.
func TestParking_NoCUDA(t *testing.T) {
	p := startParkable(t, "none")
	p.rest()
	p.is(api.GPUNone, "")
	p.seat.set(func() { p.seat.taken = true })
	p.says("print 1")
	asks := p.send(jupyter.Control, "debug_request", map[string]any{"type": "request", "command": "evaluate"})
	if r, _ := find(p.result(asks), "debug_reply", asks); strings.Contains(string(r.Content), "its GPU") {
		t.Errorf("the debugger is refused: %s", r.Content)
	}
	p.is(api.GPUNone, "")
	p.callsCUDA()
	p.is(api.GPUWaking, "another kernel")
	p.seat.set(func() { p.seat.taken = false })
	p.is(api.GPUHeld, "")
}

// A completion alone leaves the kernel parked while its GPU is busy, and wakes it for nothing else.
func TestParking_Completion(t *testing.T) {
	p := startParkable(t, "running")
	p.rest()
	p.is(api.GPUParked, "")
	p.seat.set(func() { p.seat.taken = true })
	asks := p.send(jupyter.Shell, "inspect_request", map[string]any{"code": "pri", "cursor_pos": 3, "detail_level": 0})
	if r, _ := find(p.result(asks), "inspect_reply", asks); !strings.Contains(string(r.Content), `"found":false`) {
		t.Errorf("answered with %s", r.Content)
	}
	p.is(api.GPUParked, "")
	p.seat.set(func() { p.seat.taken = false })
	p.says("print 1")
	p.is(api.GPUHeld, "")
}

// Each fault of the driver or of ekg-gpu leaves the kernel whole, or ends it with a reason. None leaves it half.
func TestParking_Faults(t *testing.T) {
	for does, want := range map[string]struct {
		state  api.ParkState
		reason string
		ends   string // the reason of the kernel's end
	}{
		"save fails":           {api.GPUFailed, "cuCheckpointProcessSave with 999 (of the tests)", ""},
		"save dies before":     {api.GPUFailed, "the attempt to save its GPU memory has failed", ""},
		"save dies after":      {api.GPUParked, "", ""},
		"save state locked":    {api.GPUFailed, "the attempt to save its GPU memory has failed", ""},
		"save state failed":    {"", "", "variables there are lost"},
		"restore dies":         {api.GPUHeld, "", ""},
		"restore fails":        {api.GPUHeld, "", ""},
		"restore dies again":   {api.GPUHeld, "", ""},
		"restore state failed": {"", "", "variables there are lost"},
	} {
		t.Run(does, func(t *testing.T) {
			t.Parallel()
			p := startParkable(t, "running")
			if strings.HasPrefix(does, "save") {
				p.does(does)
			}
			p.rest()
			if strings.HasPrefix(does, "restore") {
				p.is(api.GPUParked, "")
				p.does(does)
				p.seat.set(func() { p.seat.wanted = false })
				cell := p.execute("print 1")
				if want.ends == "" {
					p.result(cell)
				}
			}
			if want.ends != "" {
				p.until("died", func(s api.Status) bool { return strings.Contains(s.LastDeath.Reason, want.ends) })
				p.is(api.GPUHeld, "")
				return
			}
			p.is(want.state, want.reason)
			p.seat.set(func() { p.seat.wanted = false })
			p.says("print 1")
			state := "running"
			eventually(t, "its CUDA runs", func() bool {
				b, err := os.ReadFile(filepath.Join(p.dir, "state"))
				return err == nil && string(b) == state
			})
		})
	}
}

// The end of a parked kernel's process gives its next life no GPU that another kernel has. Its first call of CUDA
// takes it.
func TestParking_Dies(t *testing.T) {
	p := startParkable(t, "running")
	p.rest()
	p.is(api.GPUParked, "")
	p.seat.set(func() { p.seat.taken = true })
	st, _ := p.s.Status()
	if code, body := p.request("POST", "/restart", ""); code != 200 {
		t.Fatalf("restart: %d %s", code, body)
	}
	p.until("restarted", func(s api.Status) bool { return s.Epoch > st.Epoch && s.State == api.Idle })
	p.is(api.GPUNone, "")
	p.says("print 1")
	p.callsCUDA()
	p.is(api.GPUWaking, "another kernel")
	p.seat.set(func() { p.seat.taken, p.seat.wanted = false, false })
	p.is(api.GPUHeld, "")
	if p.seat.line != 0 {
		t.Errorf("%d wait", p.seat.line)
	}
}
