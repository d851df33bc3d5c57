package parking

import (
	"cmp"
	"slices"
	"time"
)

// State is what a kernel has of a GPU.
type State string

const (
	// None means that no process of the kernel uses CUDA.
	None State = "none"
	// Held means that a GPU is lent to the kernel.
	Held State = "held"
	// Parking means that its GPU memory is being saved. The GPU is its own until the end of that.
	Parking State = "parking"
	// Parked means that its GPU memory is in host memory.
	Parked State = "parked"
	// Waking means that its GPU memory is being restored. The GPU is its own already.
	Waking State = "waking"
	// Failed means that a save or a restore went wrong.
	Failed State = "failed"
)

// Kernel is what the policy knows of a kernel.
type Kernel struct {
	ID    string
	State State
	GPU   string    // the GPU that is lent to it; empty: none
	GPUs  []string  // those that it may use, best first; a kernel that is pinned has one
	Asked time.Time // since when it waits for a GPU; zero: it does not wait
	Job   bool      // it waits behind all that are no jobs
	Use
}

// saved says whether host memory holds, or is about to hold, the kernel's GPU memory.
func (k *Kernel) saved() bool {
	return k.State == Parking || k.State == Parked || k.State == Waking
}

// waits says whether the kernel waits for a GPU. One that asks ahead of a cell does not when its user has left.
func (k *Kernel) waits(now time.Time) bool {
	return !k.Asked.IsZero() && (!k.Ahead || now.Before(later(k.Asked, k.Typed).Add(AheadOfCell)))
}

// Loan is a GPU that is lent to a kernel.
type Loan struct {
	Kernel, GPU string
}

// Decision is what is to happen now.
type Decision struct {
	Lend  []Loan    // free GPUs to lend, each to a kernel that waits
	Park  []string  // kernels to park: each holds a GPU and is idle
	Order []string  // all kernels that wait for a GPU, the first of them first; without those of Lend
	Full  []string  // those of Order for which a kernel would be parked if host memory had room
	Again time.Time // when to decide again if nothing changes before that; zero: when something changes
}

// Next decides for kernels that share GPUs. It must see all kernels that may use one of these GPUs. A GPU is lent to
// one kernel at a time. Its caller applies all of the decision, and calls again when a kernel has changed.
//
// Kernels get GPUs in the order in which they have asked, jobs last. For the first of them, the kernel that has not
// used its GPU for longest is parked; the next one gets the next GPU. A kernel that asks ahead of its cell gets only a
// free GPU for which no other kernel waits.
func (s Settings) Next(kernels []Kernel, now time.Time) Decision {
	t := turns{Settings: s, now: now, room: s.Memory, free: map[string]bool{}}
	for i := range kernels {
		k := &kernels[i]
		for _, gpu := range k.GPUs {
			t.free[gpu] = true
		}
		switch {
		case k.GPU != "":
			t.holders = append(t.holders, k)
		case k.waits(now):
			t.waiters = append(t.waiters, k)
		}
		if k.saved() {
			t.room -= HostMemory(k.Memory)
		}
	}
	for _, k := range t.holders {
		delete(t.free, k.GPU)
	}
	slices.SortFunc(t.waiters, inOrder)
	for _, w := range t.waiters {
		t.serve(w)
	}
	for _, h := range t.holders { // no kernel waits for these
		if due, ok := s.Due(h.Use, false); ok && h.State == Held {
			t.parkAt(h, due)
		}
	}
	return t.Decision
}

// inOrder compares two kernels that wait: those that ask ahead of a cell come last, and jobs before them.
func inOrder(a, b *Kernel) int {
	rank := func(k *Kernel) int {
		switch {
		case k.Ahead:
			return 2
		case k.Job:
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Asked.Compare(b.Asked), cmp.Compare(a.ID, b.ID))
}

// turns is a decision in the making.
type turns struct {
	Settings
	Decision
	now     time.Time
	room    int64           // of host memory; without meaning if Settings.Memory is zero
	free    map[string]bool // GPUs that are not lent, and for which no earlier kernel waits
	holders []*Kernel       // for whose GPU no earlier kernel waits
	waiters []*Kernel
}

// serve lends a kernel that waits a free GPU, or chooses the holder that makes room for it.
func (t *turns) serve(w *Kernel) {
	for _, gpu := range w.GPUs {
		if !t.free[gpu] {
			continue
		}
		if w.Ahead {
			if next := w.nextAhead(); next.After(t.now) {
				t.again(next)
				break
			}
		}
		delete(t.free, gpu)
		t.Lend = append(t.Lend, Loan{w.ID, gpu})
		return
	}
	t.Order = append(t.Order, w.ID)
	if w.Ahead {
		return
	}
	var best *Kernel
	var bestDue time.Time
	for _, h := range t.holders {
		if !slices.Contains(w.GPUs, h.GPU) {
			continue
		}
		due, ok := time.Time{}, true // one that is being parked makes room first
		if h.State != Parking {
			due, ok = t.Due(h.Use, true)
			due, ok = later(due, t.now), ok && h.State == Held
		}
		if ok && (best == nil || cmp.Or(due.Compare(bestDue), h.IdleSince.Compare(best.IdleSince)) < 0) {
			best, bestDue = h, due
		}
	}
	if best == nil {
		return
	}
	t.holders = slices.DeleteFunc(t.holders, func(h *Kernel) bool { return h == best })
	if best.State == Held && !t.parkAt(best, bestDue) {
		t.Full = append(t.Full, w.ID)
	}
}

// parkAt parks a kernel if it is due, else notes when it is. It returns false if host memory has no room for it.
func (t *turns) parkAt(k *Kernel, due time.Time) bool {
	if due.After(t.now) {
		t.again(due)
		return true
	}
	if need := HostMemory(k.Memory); t.Memory > 0 {
		if need > t.room {
			return false
		}
		t.room -= need
	}
	t.Park = append(t.Park, k.ID)
	return true
}

// again notes a time at which something is due.
func (t *turns) again(due time.Time) {
	if t.Again.IsZero() || due.Before(t.Again) {
		t.Again = due
	}
}

// nextAhead returns from when a kernel may be woken ahead of its cell. A user who types and runs nothing does not make
// the driver save and restore all the time.
func (k *Kernel) nextAhead() time.Time {
	return k.Woken.Add(worth * (SaveTime(k.Memory) + RestoreTime(k.Memory)))
}
