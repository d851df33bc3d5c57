package parking

import (
	"fmt"
	"reflect"
	"testing"
	"time"
)

// holder returns a kernel that holds a GPU and has been idle since some seconds after the start.
func holder(id, gpu string, idle float64) Kernel {
	return Kernel{ID: id, State: Held, GPU: gpu, GPUs: []string{gpu}, Use: Use{IdleSince: at(idle)}}
}

// waiter returns a parked kernel that has asked for one of some GPUs.
func waiter(id string, asked float64, gpus ...string) Kernel {
	return Kernel{ID: id, State: Parked, GPUs: gpus, Asked: at(asked)}
}

// with returns a kernel with a change.
func with(k Kernel, change func(*Kernel)) Kernel {
	change(&k)
	return k
}

// Every rule between kernels has a row.
func TestSettings_Next(t *testing.T) {
	ahead := func(k *Kernel) { k.Ahead = true }
	job := func(k *Kernel) { k.Job = true }
	busy := func(k *Kernel) { k.IdleSince = time.Time{} }
	usual := Settings{Idle: time.Minute, After: 15 * time.Minute}
	tests := []struct {
		name     string
		settings Settings
		kernels  []Kernel
		now      float64
		want     Decision
	}{
		{"a free GPU is lent at once", usual, []Kernel{waiter("a", 100, "0")}, 100, Decision{Lend: []Loan{{"a", "0"}}}},
		{"who asks first", usual, []Kernel{waiter("a", 2, "0"), waiter("b", 1, "0")}, 100,
			Decision{Lend: []Loan{{"b", "0"}}, Order: []string{"a"}}},
		{"jobs wait behind others", usual, []Kernel{with(waiter("a", 1, "0"), job), waiter("b", 2, "0")}, 100,
			Decision{Lend: []Loan{{"b", "0"}}, Order: []string{"a"}}},
		{"a holder is parked", usual, []Kernel{holder("h", "0", 0), waiter("a", 50, "0")}, 60,
			Decision{Park: []string{"h"}, Order: []string{"a"}}},
		{"a holder is not idle for long enough", usual, []Kernel{holder("h", "0", 0), waiter("a", 50, "0")}, 59,
			Decision{Order: []string{"a"}, Again: at(60)}},
		{"a busy holder is not asked", usual, []Kernel{with(holder("h", "0", 0), busy), waiter("a", 50, "0")}, 9999,
			Decision{Order: []string{"a"}}},
		{"who has not used its GPU for longest is asked first", usual,
			[]Kernel{holder("g", "0", 20), holder("h", "1", 10), waiter("a", 100, "0", "1")}, 100,
			Decision{Park: []string{"h"}, Order: []string{"a"}, Again: at(920)}},
		{"each waiter makes room for itself", usual,
			[]Kernel{holder("g", "0", 20), holder("h", "1", 10), waiter("a", 100, "0", "1"), waiter("b", 101, "1", "0")}, 102,
			Decision{Park: []string{"h", "g"}, Order: []string{"a", "b"}}},
		{"one that is being parked makes room", usual, []Kernel{holder("g", "0", 0),
			with(holder("h", "1", 0), func(k *Kernel) { k.State = Parking }), waiter("a", 100, "0", "1")}, 100,
			Decision{Order: []string{"a"}, Again: at(900)}},
		{"one that cannot be parked", usual, []Kernel{
			with(holder("h", "0", 0), func(k *Kernel) { k.Resident = true }), waiter("a", 50, "0")}, 9999,
			Decision{Order: []string{"a"}}},
		{"a failed one has the GPU until its end", usual, []Kernel{
			with(holder("h", "0", 0), func(k *Kernel) { k.State = Failed }), waiter("a", 50, "0")}, 9999,
			Decision{Order: []string{"a"}}},
		{"none waits", usual, []Kernel{holder("h", "0", 0)}, 900, Decision{Park: []string{"h"}}},
		{"none waits, and it is early", usual, []Kernel{holder("h", "0", 0)}, 899, Decision{Again: at(900)}},
		{"ahead of a cell: a free GPU", usual, []Kernel{with(waiter("a", 100, "0"), ahead)}, 100,
			Decision{Lend: []Loan{{"a", "0"}}}},
		{"ahead of a cell: its user has left", usual, []Kernel{with(waiter("a", 70, "0"), ahead)}, 100, Decision{}},
		{"ahead of a cell: its user still types", usual, []Kernel{with(waiter("a", 70, "0"),
			func(k *Kernel) { k.Ahead, k.Typed = true, at(99) })}, 100, Decision{Lend: []Loan{{"a", "0"}}}},
		{"ahead of a cell: a GPU for which another waits", usual,
			[]Kernel{with(waiter("a", 99, "0"), ahead), with(waiter("b", 100, "0"), job)}, 100,
			Decision{Lend: []Loan{{"b", "0"}}, Order: []string{"a"}}},
		{"ahead of a cell: no holder is asked", usual, []Kernel{holder("h", "0", 0), with(waiter("a", 50, "0"), ahead)}, 60,
			Decision{Order: []string{"a"}, Again: at(900)}},
		{"ahead of a cell: given back to one that waits", usual, []Kernel{
			with(holder("h", "0", 0), func(k *Kernel) { k.Ahead, k.Woken = true, at(99) }), waiter("a", 100, "0")}, 100,
			Decision{Park: []string{"h"}, Order: []string{"a"}}},
		{"ahead of a cell: given back without a cell", usual, []Kernel{
			with(holder("h", "0", 0), func(k *Kernel) { k.Ahead, k.Woken = true, at(99) })}, 100, Decision{Again: at(129)}},
		{"ahead of a cell: not again and again", usual, []Kernel{with(waiter("a", 100, "0"),
			func(k *Kernel) { k.Ahead, k.Woken, k.Memory = true, at(95), 0 })}, 100,
			Decision{Order: []string{"a"}, Again: at(95 + 20*0.49)}},
		{"no room in host memory", Settings{Idle: time.Minute, Memory: 2*582<<20 - 1},
			[]Kernel{holder("h", "0", 0), waiter("a", 50, "0")}, 60,
			Decision{Order: []string{"a"}, Full: []string{"a"}}},
		{"just room in host memory", Settings{Idle: time.Minute, Memory: 2 * 582 << 20},
			[]Kernel{holder("h", "0", 0), waiter("a", 50, "0")}, 60,
			Decision{Park: []string{"h"}, Order: []string{"a"}}},
		{"room in host memory for one of two", Settings{Idle: time.Minute, Memory: 3 * 582 << 20},
			[]Kernel{holder("g", "0", 0), holder("h", "1", 0), waiter("a", 50, "0"), waiter("b", 51, "1")}, 60,
			Decision{Park: []string{"g"}, Order: []string{"a", "b"}, Full: []string{"b"}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := test.settings.Next(test.kernels, at(test.now)); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", show(got), show(test.want))
			}
		})
	}
}

// show writes a decision with its time in seconds after the start.
func show(d Decision) string {
	again := "-"
	if !d.Again.IsZero() {
		again = fmt.Sprint(d.Again.Sub(start))
	}
	return fmt.Sprintf("lend %v, park %v, order %v, full %v, again %s", d.Lend, d.Park, d.Order, d.Full, again)
}
