package launcher

import "slices"

// Place is where a kernel that waits for GPUs could get them: a node, a machine, or a quota.
type Place struct {
	Name string // for the caller
	// Ends are the ids of kernels that may end here for the kernel that waits. The one that goes first is the first.
	Ends []string
	// Fits reports whether the kernel that waits has enough once some of Ends have ended.
	Fits func(ended []string) bool
}

// GiveWay decides which kernels end so that another kernel gets its GPUs. These are warm kernels, or the kernels of
// jobs. Machine, cluster and jobs bring the places, and end what GiveWay returns.
//
// It returns the place where the fewest kernels have to end, and these kernels. Among equal places it is the first one.
// At a place, a kernel that goes first ends before others. A kernel whose end does not help stays. No kernel ends if a
// place has enough already, or if all ends together leave too little everywhere.
func GiveWay(places []Place) (at string, ends []string) {
	for _, p := range places {
		if p.Fits(nil) {
			return "", nil
		}
		if fewest := p.fewest(); len(fewest) > 0 && (ends == nil || len(fewest) < len(ends)) {
			at, ends = p.Name, fewest
		}
	}
	return at, ends
}

// fewest returns the ends that a place needs, or nil if they are not enough.
func (p Place) fewest() (needed []string) {
	n := 0
	for n <= len(p.Ends) && !p.Fits(p.Ends[:n]) {
		n++
	}
	if n > len(p.Ends) {
		return nil
	}
	for i, id := range p.Ends[:n] { // without those that the later ones make unnecessary
		if others := slices.Concat(needed, p.Ends[i+1:n]); !p.Fits(others) {
			needed = append(needed, id)
		}
	}
	return needed
}
