package main

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/parking"
)

// epoch is the time at which the simulation begins. The policy takes the zero time for none.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// sharing is how kernels share GPUs.
type sharing struct {
	machine int  // GPUs of a machine
	perGPU  int  // sessions for each GPU
	moves   bool // a kernel may use any GPU of its machine
	typing  bool // kernels are woken ahead of their cells
}

// outcome is what a policy costs its operator and its users.
type outcome struct {
	held   time.Duration   // GPUs are lent to kernels
	waits  []time.Duration // of each cell, until it has its GPU and its memory there
	parked int             // cells of kernels that were parked when their user began to type
	hidden int             // those of them that found their kernel awake
	lost   int             // cells whose kernel was ended before, with its variables
}

// kernel is a kernel in the simulation.
type kernel struct {
	parking.Kernel
	*session
	machine *machine
	next    int           // the cell that is sent next, or that waits
	sent    time.Duration // when the last cell was sent
	woken   bool          // the kernel was parked since its last cell
	since   time.Duration // the GPU was lent
	busy    time.Duration // of all its cells until now
}

// machine has the kernels that share GPUs.
type machine struct {
	kernels []*kernel
	again   time.Duration // when its next decision is due; zero: not known
}

// event is something that happens at a time.
type event struct {
	at    time.Duration
	order int // of events at the same time
	do    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// world is a run of the simulation.
type world struct {
	parking.Settings
	sharing
	outcome
	now    time.Duration
	events events
	count  int
	// What decide passes to the policy. It is kept, so that it is not allocated each time.
	kernels []parking.Kernel
}

// park runs the policy of package parking over a trace.
func park(trace []session, settings parking.Settings, how sharing) outcome {
	w := &world{Settings: settings, sharing: how}
	machines := make([]*machine, max(1, len(trace)/(how.machine*how.perGPU)))
	for i := range machines {
		machines[i] = &machine{}
	}
	for i := range trace {
		m := machines[i%len(machines)]
		w.at(trace[i].start, func() { w.starts(fmt.Sprint(i), &trace[i], m) })
	}
	for len(w.events) > 0 {
		e := heap.Pop(&w.events).(event)
		if e.at >= horizon {
			break
		}
		w.now = e.at
		e.do()
	}
	for _, m := range machines {
		for _, k := range m.kernels {
			if k.GPU != "" {
				w.held += horizon - k.since
			}
			if !k.Asked.IsZero() && !k.Ahead { // it waits still
				w.waits = append(w.waits, horizon-k.sent)
			}
		}
	}
	return w.outcome
}

// at plans an event.
func (w *world) at(t time.Duration, do func()) {
	w.count++
	heap.Push(&w.events, event{t, w.count, do})
}

// clock returns the policy's time.
func (w *world) clock() time.Time { return epoch.Add(w.now) }

// starts starts a kernel on the GPU that its kernels use least.
func (w *world) starts(id string, s *session, m *machine) {
	uses := map[string][]float64{}
	gpus := make([]string, w.machine)
	for i := range gpus {
		gpus[i] = fmt.Sprint(i)
		uses[gpus[i]] = nil
	}
	for _, k := range m.kernels {
		uses[k.GPUs[0]] = append(uses[k.GPUs[0]], float64(k.busy)/float64(w.now-k.start+1))
	}
	if !w.moves {
		gpus = []string{leastUsed(uses)}
	}
	k := &kernel{session: s, machine: m, sent: s.start, Kernel: parking.Kernel{ID: id, State: parking.None, GPUs: gpus,
		Use: parking.Use{IdleSince: w.clock(), Memory: s.memory}}}
	m.kernels = append(m.kernels, k)
	w.plan(k)
}

// leastUsed chooses the GPU of a kernel that starts: the one that its kernels use least. It gets the GPUs, and the part
// of the time in which each kernel of a GPU uses it. A kernel counts a little even if it has not used its GPU yet.
func leastUsed(uses map[string][]float64) string {
	const least = 0.01
	load := func(gpu string) (sum float64) {
		for _, use := range uses[gpu] {
			sum += max(use, least)
		}
		return sum
	}
	gpus := slices.Sorted(maps.Keys(uses))
	if len(gpus) == 0 {
		return ""
	}
	return slices.MinFunc(gpus, func(a, b string) int { return cmp.Compare(load(a), load(b)) })
}

// plan plans the next cell of a kernel whose last one has ended.
func (w *world) plan(k *kernel) {
	if k.next == len(k.cells) {
		return
	}
	c := k.cells[k.next]
	sends := max(k.sent+c.gap, w.now)
	if w.typing {
		w.types(k, max(sends-c.lead, w.now), sends)
	}
	w.at(sends, func() { w.cell(k) })
}

// types lets the user type from a time until the cell is sent.
func (w *world) types(k *kernel, from, sends time.Duration) {
	if from >= sends {
		return
	}
	w.at(from, func() {
		k.Typed = w.clock()
		if k.State == parking.Parked && k.Asked.IsZero() {
			k.Ahead, k.Asked = true, w.clock()
			w.decide(k.machine)
		}
		w.types(k, from+keyEvery, sends)
	})
}

// cell lets a cell arrive.
func (w *world) cell(k *kernel) {
	k.sent = w.now
	if k.woken {
		w.parked++
		if k.State == parking.Held {
			w.hidden++
		}
	}
	if k.State == parking.Held {
		w.run(k)
		return
	}
	k.Ahead, k.Asked = false, w.clock()
	w.decide(k.machine)
}

// run runs the cell of a kernel that holds its GPU.
func (w *world) run(k *kernel) {
	length := k.cells[k.next].length
	w.waits = append(w.waits, w.now-k.sent)
	k.next++
	k.woken, k.Ahead, k.Asked, k.IdleSince = false, false, time.Time{}, time.Time{}
	w.at(w.now+length, func() {
		k.busy += length
		k.IdleSince = w.clock()
		w.plan(k)
		w.decide(k.machine)
	})
}

// decide asks the policy what is to happen on a machine, and does it.
func (w *world) decide(m *machine) {
	kernels := w.kernels[:0]
	for _, k := range m.kernels {
		if k.State != parking.None || !k.Asked.IsZero() { // the others change nothing
			kernels = append(kernels, k.Kernel)
		}
	}
	w.kernels = kernels
	d := w.Next(kernels, w.clock())
	find := func(id string) *kernel {
		return m.kernels[slices.IndexFunc(m.kernels, func(k *kernel) bool { return k.ID == id })]
	}
	for _, id := range d.Park {
		k := find(id)
		k.State, k.Ahead, k.woken = parking.Parking, false, true
		w.at(w.now+parking.SaveTime(k.memory), func() {
			w.held += w.now - k.since
			k.State, k.GPU = parking.Parked, ""
			w.decide(m)
		})
	}
	for _, loan := range d.Lend {
		k := find(loan.Kernel)
		k.GPU, k.since, k.Woken = loan.GPU, w.now, w.clock()
		if k.State == parking.None {
			k.State = parking.Held
			w.run(k)
			continue
		}
		k.State = parking.Waking
		if k.Ahead {
			k.Asked = time.Time{}
		}
		w.at(w.now+parking.RestoreTime(k.memory), func() {
			k.State = parking.Held
			if !k.Asked.IsZero() {
				w.run(k)
			}
			w.decide(m)
		})
	}
	if again := d.Again.Sub(epoch); !d.Again.IsZero() && (m.again <= w.now || again < m.again) {
		m.again = again
		w.at(again, func() { w.decide(m) })
	}
}
