package local

import (
	"reflect"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// settledAtOnce is how many kernels are described before others get the lock.
const settledAtOnce = 1000

// lists is what is kept for lists of kernels, so that a list costs what has changed since the last one. Launcher.mu
// guards it.
//
// All that a list says of a kernel is in memory, but for kernels in slow. Each change of it calls touchLocked, with the
// lock held: a status and the end of a stream in package follow, setEndLocked, and all that changes kernel.waiting or
// kernel.notes. Each list calls settleLocked first, which describes the touched kernels again.
type lists struct {
	touched []*kernel // each once
	looks   map[*kernel]struct{}
	shared  map[*kernel]struct{} // their notes share them, or are to be read
	slow    map[*kernel]struct{} // a list has to wait for them, or to read a file
	owned   map[string][]*kernel // by owner and creation

	// whole has kernel.listed of Launcher.ordered, as of the last settleLocked. It is nil after a change of ordered.
	whole *launcher.List
	lent  bool // a caller has whole, so it is not modified
}

// verifyLists is called after each settleLocked; tests set it.
var verifyLists = func(*Launcher) {}

func newLists() lists {
	return lists{looks: map[*kernel]struct{}{}, shared: map[*kernel]struct{}{}, slow: map[*kernel]struct{}{},
		owned: map[string][]*kernel{}}
}

// touchLocked makes the next list describe a kernel again.
func (l *Launcher) touchLocked(k *kernel) {
	if !k.touched {
		k.touched = true
		l.lists.touched = append(l.lists.touched, k)
	}
}

// listMemberLocked notes that a kernel was added to Launcher.ordered or removed from it.
func (l *Launcher) listMemberLocked(k *kernel, added bool) {
	l.touchLocked(k)
	l.lists.whole = nil
	owned := l.lists.owned[k.rec.Owner]
	switch i, found := slices.BinarySearchFunc(owned, k, byCreation); {
	case added:
		owned = slices.Insert(owned, i, k)
	case found:
		owned = slices.Delete(owned, i, i+1)
	}
	if len(owned) == 0 {
		delete(l.lists.owned, k.rec.Owner)
	} else {
		l.lists.owned[k.rec.Owner] = owned
	}
}

// settle is settleLocked for times without lists: touched has kernels that are gone.
func (l *Launcher) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settleLocked()
}

// settleLocked describes the touched kernels again. If there are many, it gives up the lock for a moment. The lists are
// those of the moment of its return.
func (l *Launcher) settleLocked() {
	for len(l.lists.touched) > 0 {
		from := max(0, len(l.lists.touched)-settledAtOnce)
		some := l.lists.touched[from:]
		if len(some) > max(64, len(l.ordered)/8) {
			l.lists.whole = nil // a search for the place of each would take longer
		}
		for _, k := range some {
			l.relistLocked(k)
		}
		clear(some)
		if l.lists.touched = l.lists.touched[:from]; from > 0 {
			l.mu.Unlock()
			l.mu.Lock()
		}
	}
	verifyLists(l)
}

// relistLocked describes one kernel again.
func (l *Launcher) relistLocked(k *kernel) {
	here := l.kernels[k.id] == k
	memory := here && l.inMemoryLocked(k)
	before := k.listed
	k.touched, k.listed = false, nil
	mark(l.lists.looks, k, here && k.lookLocked())
	mark(l.lists.shared, k, here && (!k.notes.current || len(k.notes.notes.SharedWith) > 0))
	mark(l.lists.slow, k, here && !memory)
	if memory {
		k.listed = new(launcher.Kernel)
		k.describeLocked(k.listed)
		k.listed.Notes = k.notes.notes.Clone()
	}
	if before != nil && reflect.DeepEqual(before, k.listed) {
		k.listed = before // only what no list shows has changed, such as the limit of its log
	}
	if l.lists.whole == nil || !here || k.listed == before {
		return
	}
	if l.lists.lent {
		l.lists.whole, l.lists.lent = &launcher.List{Kernels: slices.Clone(l.lists.whole.Kernels)}, false
	}
	if i, found := slices.BinarySearchFunc(l.ordered, k, byCreation); found {
		l.lists.whole.Kernels[i] = k.listed
	}
}

// mark puts a kernel into a set, or takes it out.
func mark(set map[*kernel]struct{}, k *kernel, in bool) {
	if in {
		set[k] = struct{}{}
	} else {
		delete(set, k)
	}
}

// wholeLocked returns the list of all kernels, after settleLocked. It has nil for those in slow.
func (l *Launcher) wholeLocked() *launcher.List {
	if l.lists.whole == nil {
		all := make([]*launcher.Kernel, len(l.ordered))
		for i, k := range l.ordered {
			all[i] = k.listed
		}
		l.lists.whole = &launcher.List{Kernels: all}
	}
	l.lists.lent = true
	return l.lists.whole
}
