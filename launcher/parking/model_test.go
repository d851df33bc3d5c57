package parking

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world has kernels that share GPUs, and applies what Next decides. Its own rules know nothing of Next's.
type world struct {
	*rapid.T
	Settings
	now     time.Time
	kernels []*Kernel
	again   time.Time
}

// A random life of kernels: cells, typing, saves and restores that end at any time, kernels that end. A GPU never has
// two holders, order is kept, only idle kernels are parked, and in the end every wait has ended.
func TestSettings_Next_Model(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{T: t, now: start, Settings: Settings{Idle: time.Minute}}
		if rapid.Bool().Draw(t, "after") {
			w.After = 15 * time.Minute
		}
		bounded := rapid.Bool().Draw(t, "bounded")
		if bounded {
			w.Memory = 6 * gib
		}
		gpus := []string{"0", "1", "2"}[:rapid.IntRange(1, 3).Draw(t, "gpus")]
		for i := range rapid.IntRange(2, 7).Draw(t, "kernels") {
			may := rapid.SliceOfNDistinct(rapid.SampledFrom(gpus), 1, -1, rapid.ID[string]).Draw(t, "may")
			w.kernels = append(w.kernels, &Kernel{ID: fmt.Sprint(i), State: None, GPUs: may,
				Job: rapid.IntRange(0, 3).Draw(t, "job") == 0,
				Use: Use{IdleSince: w.now, Memory: rapid.Int64Range(0, 3*gib).Draw(t, "memory")}})
		}
		pick := func(t *rapid.T) *Kernel { return rapid.SampledFrom(w.kernels).Draw(t, "kernel") }
		t.Repeat(map[string]func(*rapid.T){
			"cell":   func(t *rapid.T) { w.cell(pick(t)) },
			"types":  func(t *rapid.T) { w.types(pick(t)) },
			"step":   func(t *rapid.T) { w.step(pick(t)) },
			"ends":   func(t *rapid.T) { w.ends(pick(t)) },
			"keep":   func(t *rapid.T) { pick(t).KeepUntil = w.now.Add(time.Hour) },
			"stay":   func(t *rapid.T) { k := pick(t); k.Resident = !k.Resident },
			"list":   func(t *rapid.T) { k := pick(t); k.Listed = k.Job && !k.Listed },
			"passes": func(t *rapid.T) { w.passes(time.Duration(rapid.IntRange(1, 600).Draw(t, "s")) * time.Second) },
			"": func(t *rapid.T) {
				w.decide()
				w.quiet(t)
			},
		})
		if !bounded {
			w.drain()
		}
	})
}

// cell lets a cell arrive that needs the GPU.
func (w *world) cell(k *Kernel) {
	if k.IdleSince.IsZero() || !k.Asked.IsZero() && !k.Ahead {
		return
	}
	k.Ahead, k.Asked = false, time.Time{}
	if k.GPU != "" && k.State == Held {
		k.IdleSince = time.Time{}
		return
	}
	k.Asked = w.now
}

// types lets a kernel's user type.
func (w *world) types(k *Kernel) {
	k.Typed = w.now
	if k.State == Parked && k.Asked.IsZero() {
		k.Ahead, k.Asked = true, w.now
	}
}

// step ends what the kernel does: its cell, its save or its restore.
func (w *world) step(k *Kernel) {
	switch {
	case k.State == Parking:
		k.State, k.GPU = Parked, ""
	case k.State == Waking:
		k.State = Held
		if !k.Asked.IsZero() { // the cell came while the GPU's memory was restored
			k.Asked, k.IdleSince = time.Time{}, time.Time{}
		}
	case k.State == Held && k.IdleSince.IsZero():
		k.IdleSince = w.now
	}
}

// ends ends a kernel and starts another one in its place.
func (w *world) ends(k *Kernel) {
	*k = Kernel{ID: k.ID, State: None, GPUs: k.GPUs, Job: k.Job, Use: Use{IdleSince: w.now, Memory: k.Memory}}
}

// passes lets time pass, up to the next decision.
func (w *world) passes(d time.Duration) {
	w.now = w.now.Add(d)
	if !w.again.IsZero() && w.again.Before(w.now) {
		w.now = w.again
	}
}

// find returns a kernel.
func (w *world) find(id string) *Kernel {
	return w.kernels[slices.IndexFunc(w.kernels, func(k *Kernel) bool { return k.ID == id })]
}

// next asks for a decision at a time.
func (w *world) next(now time.Time) Decision {
	kernels := make([]Kernel, len(w.kernels))
	for i, k := range w.kernels {
		kernels[i] = *k
	}
	return w.Next(kernels, now)
}

// decide applies what is decided, and checks it.
func (w *world) decide() {
	d := w.next(w.now)
	w.again = d.Again
	for _, id := range d.Park {
		k := w.find(id)
		if k.State != Held || k.IdleSince.IsZero() || k.Listed || k.Resident || w.now.Before(k.KeepUntil) ||
			!k.Ahead && w.now.Before(k.Woken.Add(10*time.Second)) {
			w.Fatalf("parked: %+v at %v", *k, w.now)
		}
		k.State, k.Ahead = Parking, false
	}
	for _, loan := range d.Lend {
		k := w.find(loan.Kernel)
		for _, other := range w.kernels {
			if other.GPU == loan.GPU {
				w.Fatalf("%s has two holders: %+v and %+v", loan.GPU, *k, *other)
			}
		}
		if k.GPU != "" || !slices.Contains(k.GPUs, loan.GPU) {
			w.Fatalf("lent %s to %+v", loan.GPU, *k)
		}
		for _, id := range d.Order {
			v := w.find(id)
			sooner := k.Ahead || k.Job && !v.Job || k.Job == v.Job && v.Asked.Before(k.Asked)
			if !v.Ahead && sooner && slices.Contains(v.GPUs, loan.GPU) {
				w.Fatalf("%+v got the GPU before %+v", *k, *v)
			}
		}
		k.GPU, k.Woken = loan.GPU, w.now
		if k.State == Parked {
			k.State = Waking
		} else {
			k.State, k.IdleSince = Held, time.Time{}
		}
		if k.Ahead || k.State == Held {
			k.Asked = time.Time{}
		}
	}
	var host int64
	for _, k := range w.kernels {
		if k.State == Parking || k.State == Parked || k.State == Waking {
			host += k.Memory + 582<<20
		}
	}
	if w.Memory > 0 && host > w.Memory {
		w.Fatalf("parked kernels take %d bytes of %d", host, w.Memory)
	}
}

// quiet checks that a decision is complete: until Again nothing is to be done.
func (w *world) quiet(t *rapid.T) {
	end := w.again
	if end.IsZero() {
		end = w.now.Add(24 * time.Hour)
	}
	if until := end.Sub(w.now); until > 0 {
		at := w.now.Add(time.Duration(rapid.Int64Range(0, int64(until)-1).Draw(t, "later")))
		if d := w.next(at); len(d.Lend) > 0 || len(d.Park) > 0 {
			w.Fatalf("after a decision at %v, with the next one at %v, at %v: %s", w.now, w.again, at, show(d))
		}
	}
}

// drain lets all cells and lists end. No kernel may wait for a cell's GPU after that.
func (w *world) drain() {
	for _, k := range w.kernels {
		k.Listed, k.Resident = false, false
	}
	for range 20 * len(w.kernels) {
		for _, k := range w.kernels {
			w.step(k)
		}
		w.decide()
		if !w.again.IsZero() {
			w.now = w.again
		}
	}
	for _, k := range w.kernels {
		if !k.Asked.IsZero() && !k.Ahead {
			w.Fatalf("waits still: %+v, at %v", *k, w.now)
		}
	}
}
