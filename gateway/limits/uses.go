package limits

import (
	"cmp"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// Use says how far one limit is reached. It is an entry of the answer of GET /api/limits.
type Use struct {
	Limit string  `json:"limit"`        // its name, such as kernels-per-user
	Of    string  `json:"of,omitempty"` // the user, group or kernelspec; "" for a limit of all kernels
	Unit  string  `json:"unit"`         // "kernel" or "GPU"
	Most  float64 `json:"most"`         // may be 0: then nothing is allowed
	Used  float64 `json:"used"`
}

// Uses returns how much of each limit is in use, for all limits that one of the starts would have to keep. It returns
// each limit once. A start without a kernelspec has no limit of a kernelspec.
func (p *Policy) Uses(starts, held []launcher.Held) []Use {
	uses := []Use{}
	if p == nil {
		return uses
	}
	type key struct{ limit, of string }
	seen := map[key]bool{}
	for _, start := range starts {
		for _, b := range p.bounds(start) {
			if b.name == limitPerKernelspec && start.SpecName == "" || seen[key{b.name, b.subject}] {
				continue
			}
			seen[key{b.name, b.subject}] = true
			used := b.used(held)
			u := Use{Limit: b.name, Of: b.subject, Unit: "kernel", Most: float64(b.most), Used: float64(used)}
			if b.gpus {
				u.Unit, u.Most, u.Used = "GPU", gpu.Amount(b.most).Float(), gpu.Amount(used).Float()
			}
			uses = append(uses, u)
		}
	}
	slices.SortFunc(uses, func(a, b Use) int { return cmp.Or(cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Of, b.Of)) })
	return uses
}
