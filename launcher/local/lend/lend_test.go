package lend

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// machine is a machine with GPUs, and the kernels of one launcher that wait for them.
type machine struct {
	t   *testing.T
	l   *Lender
	now time.Time

	tried []string                 // kernels that had a turn
	locks map[string]bool          // kernels at which another gateway works
	loans map[string]*devices.Loan // of the kernels that were started
}

func newMachine(t *testing.T, gpus ...string) *machine {
	t.Helper()
	m := &machine{t: t, now: time.Now(), locks: map[string]bool{}, loans: map[string]*devices.Loan{}}
	var list gpu.List
	for _, uuid := range gpus {
		list.Devices = append(list.Devices, gpu.Listed{UUID: uuid, Model: "T4", Healthy: true, MemoryTotal: 16 << 30})
	}
	l, err := New(t.Context(), Options{Dir: t.TempDir(), Now: func() time.Time { return m.now },
		Log: slog.New(slog.DiscardHandler), CatchUp: func(context.Context) error { return nil }, Try: m.try})
	if err != nil {
		t.Fatal(err)
	}
	l.list, l.asked = &list, time.Now()
	close(l.listed)
	m.l = l
	return m
}

func (m *machine) try(turn Turn) bool {
	m.tried = append(m.tried, turn.ID())
	if m.locks[turn.ID()] {
		return false
	}
	if turn.Hopeless() {
		return true
	}
	loan, err := m.l.LendTo(m.t.Context(), turn)
	if err != nil {
		turn.Enter(turn.since, err)
		return true
	}
	m.loans[turn.ID()] = loan
	turn.Leave()
	return true
}

// place makes a kernel, which waits if it gets no GPU.
func (m *machine) place(id string, job bool) *Place {
	m.t.Helper()
	p := m.l.Place(devices.Borrower{Kernel: id, Job: job}, m.t.TempDir(), &devices.Want{})
	loan, err := m.l.Lend(m.t.Context(), p, nil)
	if err == nil {
		m.loans[id] = loan
		return p
	}
	if !errors.As(err, new(*devices.BusyError)) {
		m.t.Fatal(err)
	}
	m.now = m.now.Add(time.Second)
	since, storeErr := p.Store()
	if first, changed := p.Enter(since, err); storeErr != nil || !first || !changed {
		m.t.Fatal(storeErr, first, changed)
	}
	return p
}

// end ends a kernel that has a GPU. The kernels that have a turn in the next round are wanted.
func (m *machine) end(id string, want ...string) {
	m.t.Helper()
	m.loans[id].Return()
	delete(m.loans, id)
	m.tried = nil
	m.l.Round()
	if !slices.Equal(m.tried, want) {
		m.t.Errorf("after the end of %s there are turns of %v, not %v", id, m.tried, want)
	}
}

// TestLender_Order: kernels get a GPU in the order of their arrival, those of jobs last.
func TestLender_Order(t *testing.T) {
	m := newMachine(t, "GPU-a")
	m.place("a", false)
	job, b, c := m.place("job", true), m.place("b", false), m.place("c", false)
	if m.l.Round() != true || len(m.loans) != 1 {
		t.Errorf("%v have the GPU", m.loans)
	}
	if people := m.l.People(); len(people) != 2 || !job.Waits() {
		t.Errorf("those that wait are %+v", people)
	}
	m.end("a", "b", "c", "job")
	if b.Waits() || !c.Waits() || m.loans["b"] == nil {
		t.Error("the first that has waited does not have the GPU")
	}
	m.end("b", "c", "job")
	m.end("c", "job")
	if m.l.Waits() || m.l.Round() {
		t.Error("one waits without need")
	}
}

// TestLender_Promised: a kernel that waits keeps the GPUs that would do, also before the first look. A job keeps none
// from a kernel of a person.
func TestLender_Promised(t *testing.T) {
	m := newMachine(t, "GPU-a", "GPU-b")
	job := m.l.Place(devices.Borrower{Kernel: "job", Job: true}, t.TempDir(), &devices.Want{})
	job.Enter(m.now, nil)
	person := m.l.Place(devices.Borrower{Kernel: "p"}, "", &devices.Want{})
	other := m.l.Place(devices.Borrower{Kernel: "j", Job: true}, "", &devices.Want{})
	if len(m.l.promised(person)) != 0 || len(m.l.promised(other)) != 2 {
		t.Errorf("a job keeps %v from a person, and %v from a job", m.l.promised(person), m.l.promised(other))
	}
	job.Enter(m.now, &devices.BusyError{Candidates: []string{"GPU-b"}})
	if kept := m.l.promised(other); len(kept) != 1 || !kept["GPU-b"] {
		t.Errorf("after a look a job keeps %v", kept)
	}
	if !(Turn{job, map[string]bool{"GPU-b": true}}).Hopeless() || (Turn{job, map[string]bool{"GPU-a": true}}).Hopeless() {
		t.Error("what is hopeless")
	}
	job.Leave()
	if len(m.l.promised(other)) != 0 {
		t.Error("a kernel that does not wait keeps a GPU")
	}
}

// TestLender_Busy: a kernel at which another gateway works keeps its GPU, but not for longer than BusyLimit.
func TestLender_Busy(t *testing.T) {
	m := newMachine(t, "GPU-a")
	m.place("a", false)
	b, c := m.place("b", false), m.place("c", false)
	m.locks["b"] = true
	m.end("a", "b", "c")
	if !b.Waits() || !c.Waits() {
		t.Error("a later kernel has the GPU of one that is worked on")
	}
	m.now = m.now.Add(BusyLimit)
	m.l.Round()
	if c.Waits() || m.loans["c"] == nil {
		t.Error("a kernel keeps its GPU for longer")
	}
}

// TestPlace_Stored: a kernel keeps its place by a file of its folder. One without a place never waits.
func TestPlace_Stored(t *testing.T) {
	m := newMachine(t, "GPU-a")
	p := m.l.Place(devices.Borrower{Kernel: "a"}, t.TempDir(), &devices.Want{})
	if _, stored := p.Stored(); stored || p.Waits() || p.Leave() {
		t.Error("it waits")
	}
	stored, err := p.Store()
	if since, is := p.Stored(); err != nil || !is || !since.Equal(stored) {
		t.Errorf("it waits since %v, %v, not %v, %v", since, is, stored, err)
	}
	p.Enter(stored, nil)
	if first, changed := p.Enter(stored, nil); first || changed || p.Reason() != unknownWait {
		t.Errorf("entered again: %v, %v, %q", first, changed, p.Reason())
	}
	if first, changed := p.Enter(stored, errors.New("other")); first || !changed || p.Reason() != "other" {
		t.Errorf("with a reason: %v, %v, %q", first, changed, p.Reason())
	}
	p.Erase()
	if _, stored := p.Stored(); stored || !p.Leave() || p.Waits() {
		t.Error("it waits still")
	}
	if err := os.WriteFile(filepath.Join(p.dir, WaitFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stored := p.Stored(); stored {
		t.Error("a file that cannot be read makes a kernel wait")
	}
	none := m.l.Place(devices.Borrower{Kernel: "b"}, "", nil)
	if _, stored := none.Stored(); none != nil || stored || none.Waits() || none.Leave() {
		t.Error("a kernel without a place waits")
	}
}

// A start of a kernel that may be parked does not wait, if this launcher parks kernels at all.
func TestLender_Parks(t *testing.T) {
	for name, c := range map[string]struct {
		park    api.Park
		program string
		pinned  bool
	}{
		"parked": {api.Park{Idle: time.Minute}, "/ekg-gpu", true}, "not parked": {api.Park{}, "/ekg-gpu", false},
		"cannot be measured": {api.Park{Idle: time.Minute}, "", false},
	} {
		m := newMachine(t, "GPU-a")
		m.l.opts.Park, m.l.opts.Program = c.park, c.program
		m.place("job", true)
		p := m.l.Place(devices.Borrower{Kernel: "p", Parks: true}, t.TempDir(), &devices.Want{})
		loan, err := m.l.Lend(t.Context(), p, nil)
		if c.pinned != (err == nil) || c.pinned && !loan.Pinned {
			t.Errorf("%s: %+v, %v", name, loan, err)
		}
		// One that waits is pinned too, as when the launcher before did not park.
		p.Enter(m.now, errors.New("it waits"))
		if m.l.Round(); p.Waits() == c.pinned {
			t.Errorf("%s: it waits: %v", name, p.Waits())
		}
	}
}
