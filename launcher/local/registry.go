package local

import (
	"slices"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// registry has the kernels that a launcher knows. Launcher.mu guards it. Only its methods change it, and the end of a
// kernel, so the order and the set of those that have ended agree at all times.
type registry struct {
	byID    map[string]*kernel
	ordered []*kernel            // by creation
	ended   map[*kernel]struct{} // those that have ended
}

func newRegistry() registry {
	return registry{byID: map[string]*kernel{}, ended: map[*kernel]struct{}{}}
}

// add records a kernel, instead of an earlier one with its id, which is returned.
func (r *registry) add(k *kernel) (before *kernel) {
	if before = r.byID[k.id]; before != nil {
		r.remove(before)
	}
	r.byID[k.id] = k
	i, _ := slices.BinarySearchFunc(r.ordered, k, byCreation)
	r.ordered = slices.Insert(r.ordered, i, k)
	r.note(k)
	return before
}

// remove forgets a kernel. It returns false if the kernel is not there.
func (r *registry) remove(k *kernel) bool {
	if r.byID[k.id] != k {
		return false
	}
	delete(r.byID, k.id)
	if i, found := slices.BinarySearchFunc(r.ordered, k, byCreation); found {
		r.ordered = slices.Delete(r.ordered, i, i+1)
	}
	r.note(k)
	return true
}

// setEnd records that a kernel has ended; nil: it lives, or will be started. The kernel need not be there.
func (r *registry) setEnd(k *kernel, end *api.Ending) {
	k.end = end
	r.note(k)
}

// note makes the set of ended kernels agree with a kernel.
func (r *registry) note(k *kernel) {
	if r.byID[k.id] == k && k.end != nil {
		r.ended[k] = struct{}{}
	} else {
		delete(r.ended, k)
	}
}

// byCreation is launcher.CompareCreation for kernels of this launcher.
func byCreation(a, b *kernel) int {
	return launcher.CompareCreation(a.rec.Created, a.id, b.rec.Created, b.id)
}
