package local

import (
	"slices"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// registry has the kernels that a launcher knows. Launcher.mu guards it. Only its methods change it, and the end of a
// kernel, so the order, the sums and the set of those that have ended agree at all times.
type registry struct {
	byID    map[string]*kernel
	ordered []*kernel            // by creation
	sums    launcher.Sums        // of the kernels that have not ended
	ended   map[*kernel]struct{} // the others
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
	r.sum(k)
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
	r.sum(k)
	return true
}

// setEnd records that a kernel has ended; nil: it lives, or will be started. The kernel need not be there.
func (r *registry) setEnd(k *kernel, end *api.Ending) {
	k.end = end
	r.sum(k)
}

// sum makes the sums and the set of ended kernels agree with a kernel.
func (r *registry) sum(k *kernel) {
	here := r.byID[k.id] == k
	lives := here && k.end == nil
	switch {
	case lives && !k.summed:
		r.sums.Add(heldBy(k.rec))
	case !lives && k.summed:
		r.sums.Remove(heldBy(k.rec))
	}
	k.summed = lives
	if here && !lives {
		r.ended[k] = struct{}{}
	} else {
		delete(r.ended, k)
	}
}

// byCreation is launcher.ByCreation for kernels of this launcher.
func byCreation(a, b *kernel) int {
	return launcher.CompareCreation(a.rec.Created, a.id, b.rec.Created, b.id)
}
