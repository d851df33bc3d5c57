package local

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestRegistry_Random: after each of many random changes, the order and the ended kernels are those of the
// kernels that were added and not removed. Ends of kernels that are not there change none of them.
func TestRegistry_Random(t *testing.T) {
	r, there := newRegistry(), map[string]*kernel{}
	random := rand.New(rand.NewPCG(1, 2))
	var all []*kernel // those that were removed, too
	for range 2000 {
		switch n := random.IntN(4); {
		case n == 0 || len(all) == 0: // an id may be there already
			rec := record{ID: id(random.IntN(20)), Owner: fmt.Sprint(random.IntN(3)), Created: time.Unix(random.Int64N(9), 0)}
			k := &kernel{id: rec.ID, rec: rec}
			if before := r.add(k); before != there[k.id] {
				t.Fatalf("%v is there instead of %v", before, there[k.id])
			}
			there[k.id], all = k, append(all, k)
		case n == 1:
			k := all[random.IntN(len(all))]
			if removed := r.remove(k); removed != (there[k.id] == k) {
				t.Fatalf("a kernel was removed: %v", removed)
			}
			if there[k.id] == k {
				delete(there, k.id)
			}
		default:
			end := &api.Ending{}
			if n == 2 {
				end = nil
			}
			r.setEnd(all[random.IntN(len(all))], end)
		}
		ended := 0
		for _, k := range there {
			if _, kept := r.ended[k]; kept != (k.end != nil) {
				t.Fatalf("a kernel is kept as ended: %v", kept)
			}
			if k.end != nil {
				ended++
			}
		}
		if len(r.ordered) != len(there) || len(r.byID) != len(there) || len(r.ended) != ended ||
			!slices.IsSortedFunc(r.ordered, byCreation) {
			t.Fatalf("%d kernels: %d in order, %d by id, %d of %d ended", len(there), len(r.ordered), len(r.byID),
				len(r.ended), ended)
		}
		for _, k := range r.ordered {
			if there[k.id] != k || r.byID[k.id] != k {
				t.Fatalf("%s is another kernel", k.id)
			}
		}
	}
}
