// Package limits is the operator's policy: how many kernels and GPUs may be in use, how many kernels a user may start
// in a minute, and when the kernels of a group's users are culled. A launcher asks a Policy about each start
// (launcher.Limits), and package gateway asks a Rate. The package decides from what it is given: it neither counts
// kernels nor ends them. Begin with Policy.Decide. The package starts no goroutine.
package limits

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Specs gives the kernelspecs, which may have limits of their own; *kernelspecs.Finder implements it.
type Specs interface {
	// List returns all usable specs, ordered by name.
	List() []kernelspecs.Spec
	// Get returns the usable spec of a name, in any case.
	Get(name string) (kernelspecs.Spec, bool)
}

// Policy bounds how many kernels, and GPUs in use by them, there may be at one time. It implements launcher.Limits. A
// number of 0 means no limit. A Policy must not be changed once it is in use; a nil one has no limits.
type Policy struct {
	Kernels       int // of all users together
	PerUser       int // of one user; where there is one owner, the same as Kernels
	PerGroup      int // of all users of one group together
	PerKernelspec int // of one kernelspec; a kernelspec may have a lower limit of its own
	GPUsPerUser   int
	GPUsPerGroup  int

	Specs Specs          // kernelspecs with limits of their own; nil: no kernelspec has any
	File  *identity.File // its limits for single users and groups override PerUser and so on; nil: no users file
}

// The names of the limits, as users and operators read them.
const (
	limitKernels       = "kernels"
	limitPerUser       = "kernels-per-user"
	limitPerGroup      = "kernels-per-group"
	limitPerKernelspec = "kernels-per-kernelspec"
	limitGPUsPerUser   = "gpus-per-user"
	limitGPUsPerGroup  = "gpus-per-group"
)

const (
	maxListed  = 5 // kernels in the text of a refusal
	timeFormat = "2006-01-02 15:04 UTC"
)

// Set reports whether there is any limit at this moment. The users file and the kernelspecs may change that.
func (p *Policy) Set() bool {
	switch {
	case p == nil:
		return false
	case p.Kernels > 0 || p.PerUser > 0 || p.PerGroup > 0 || p.PerKernelspec > 0 || p.GPUsPerUser > 0 ||
		p.GPUsPerGroup > 0:
		return true
	case p.File != nil && p.File.Limited():
		return true
	case p.Specs == nil:
		return false
	}
	for _, spec := range p.Specs.List() {
		if ext, err := spec.Extension(); err == nil && ext.Limits.MaxKernels != nil {
			return true
		}
	}
	return false
}

// Groups returns those of a user's groups whose kernels are counted, by limits and in metrics. A kernel's record has no
// space for all groups that a directory may have, and no limit refers to the others.
func (p *Policy) Groups(all []string) (counted []string) {
	if p == nil {
		return nil
	}
	for _, name := range all {
		known := p.PerGroup > 0 || p.GPUsPerGroup > 0
		if !known && p.File != nil {
			_, known = p.File.GroupCull(name)
		}
		if known {
			counted = append(counted, name)
		}
	}
	return counted
}

// Decide decides about a start. It is refused for the first limit that it exceeds; the user's own limits come before
// those shared with others.
func (p *Policy) Decide(start launcher.Held, held []launcher.Held) launcher.Verdict {
	if p != nil {
		for _, b := range p.bounds(start) {
			if v := b.decide(start, held); v.Refused != nil {
				return v
			}
		}
	}
	return launcher.Verdict{}
}

// bound is one limit as it concerns a start.
type bound struct {
	name    string
	subject string                   // the user, group or kernelspec; "" for all kernels
	most    int64                    // kernels, or GPUs in thousandths
	gpus    bool                     // GPUs are counted, not kernels
	applies func(launcher.Held) bool // reports whether a kernel counts against it

	// Words of the refusal: "you have 3 kernels", "you may have 3 kernels".
	who, have string
	of        string // "of the kernelspec python3", behind the number of kernels
}

// bounds returns the limits that a start has to keep.
func (p *Policy) bounds(start launcher.Held) (bounds []bound) {
	owned := func(h launcher.Held) bool { return h.Owner == start.Owner }
	user := identity.Limits{}
	if p.File != nil && start.Owner != "" {
		user = p.File.UserLimits(start.Owner)
	}
	add := func(b bound, most int64, ok bool) {
		if ok {
			b.most = most
			if b.gpus {
				b.most = int64(gpu.Whole(most))
			}
			bounds = append(bounds, b)
		}
	}
	most, ok := limitOf(user.MaxGPUs, p.GPUsPerUser)
	add(bound{name: limitGPUsPerUser, subject: start.Owner, gpus: true, applies: owned, who: "you",
		have: "have"}, most, ok)
	most, ok = limitOf(user.MaxKernels, p.PerUser)
	add(bound{name: limitPerUser, subject: start.Owner, applies: owned, who: "you", have: "have"}, most, ok)
	if most := p.kernelspec(start.SpecName); most > 0 {
		sameSpec := func(h launcher.Held) bool { return h.SpecName == start.SpecName }
		of := " of the kernelspec " + start.SpecName
		add(bound{name: limitPerKernelspec, subject: start.SpecName, applies: sameSpec, who: "there",
			have: "are", of: of}, most, true)
	}
	for _, group := range start.Groups {
		file := identity.Limits{}
		if p.File != nil {
			file = p.File.GroupLimits(group)
		}
		members := func(h launcher.Held) bool { return slices.Contains(h.Groups, group) }
		who := fmt.Sprintf("the group %s", group)
		most, ok := limitOf(file.MaxGPUs, p.GPUsPerGroup)
		add(bound{name: limitGPUsPerGroup, subject: group, gpus: true, applies: members, who: who,
			have: "has"}, most, ok)
		most, ok = limitOf(file.MaxKernels, p.PerGroup)
		add(bound{name: limitPerGroup, subject: group, applies: members, who: who, have: "has"}, most, ok)
	}
	every := func(launcher.Held) bool { return true }
	add(bound{name: limitKernels, applies: every, who: "there", have: "are"}, int64(p.Kernels), p.Kernels > 0)
	return bounds
}

// limitOf returns the limit of one user or group, and whether there is one: own, the users file's, overrides the
// general one.
func limitOf(own *int64, general int) (most int64, ok bool) {
	if own != nil {
		return *own, *own != identity.Unlimited
	}
	return int64(general), general > 0
}

// kernelspec returns how many kernels of a kernelspec there may be, 0 for no limit.
func (p *Policy) kernelspec(name string) int64 {
	most := int64(p.PerKernelspec)
	if p.Specs == nil {
		return most
	}
	if spec, ok := p.Specs.Get(name); ok {
		if ext, err := spec.Extension(); err == nil && ext.Limits.MaxKernels != nil {
			if own := int64(*ext.Limits.MaxKernels); most == 0 || own < most {
				most = own
			}
		}
	}
	return most
}

// weight returns how much a kernel counts, in the unit of most.
func (b *bound) weight(h launcher.Held) int64 {
	if b.gpus {
		return int64(h.GPUs)
	}
	return 1
}

// decide refuses the start if it would exceed the limit.
func (b *bound) decide(start launcher.Held, held []launcher.Held) launcher.Verdict {
	var v launcher.Verdict
	want := b.weight(start)
	if want == 0 {
		return v
	}
	used := b.used(held)
	if used+want <= b.most {
		return v
	}
	var own []launcher.Held
	for _, h := range held {
		if !b.applies(h) || b.weight(h) == 0 {
			continue
		}
		v.Against = append(v.Against, h.ID)
		if h.Owner == start.Owner {
			own = append(own, h)
		}
	}
	v.Refused = &launcher.LimitError{Limit: b.name, Owner: start.Owner, Reason: b.refusal(want, used, own)}
	return v
}

// used returns how much of the limit is in use.
func (b *bound) used(held []launcher.Held) (sum int64) {
	for _, h := range held {
		if b.applies(h) {
			sum += b.weight(h)
		}
	}
	return sum
}

// refusal says why a start exceeds the limit, and which of the user's own kernels count against it. It names no kernel
// of another user.
func (b *bound) refusal(want, used int64, own []launcher.Held) string {
	verb := "have"
	if b.have == "are" {
		verb = "be"
	}
	may := fmt.Sprintf("%s may %s %s%s at one time (limit %s)", b.who, verb, b.number(b.most), b.of, b.name)
	if want > b.most {
		if b.gpus {
			return fmt.Sprintf("it asks for %s, and %s: ask for fewer, shutting other kernels down does not help",
				b.number(want), may)
		}
		return may + ": shutting other kernels down does not help"
	}
	have := b.have
	if have == "are" && used == 1 {
		have = "is"
	}
	text := fmt.Sprintf("%s %s %s%s, and %s", b.who, have, b.number(used), b.of, may)
	if b.gpus {
		text = fmt.Sprintf("it asks for %s, %s", b.number(want), text)
	}
	switch shared := b.who != "you"; {
	case len(own) == 0:
		return text + "; none of these is yours: try again when another user has shut one down"
	case shared:
		return text + "; shut one of yours down to start another: " + b.list(own)
	}
	return text + "; shut one down to start another: " + b.list(own)
}

// number returns a number of kernels or GPUs, in words.
func (b *bound) number(n int64) string {
	what := "kernel"
	if b.gpus {
		what = "GPU"
	}
	one := int64(1)
	text := strconv.FormatInt(n, 10)
	if b.gpus {
		one, text = int64(gpu.One), gpu.Amount(n).String()
	}
	switch n {
	case 0:
		return "no " + what
	case one:
		return "1 " + what
	}
	return text + " " + what + "s"
}

// list names kernels: idle ones first, those unused for longest at the front.
func (b *bound) list(all []launcher.Held) string {
	rank := func(h launcher.Held) int {
		switch {
		case h.Ending:
			return 2
		case h.State != api.Idle:
			return 1
		}
		return 0
	}
	slices.SortFunc(all, func(x, y launcher.Held) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), x.LastActivity.Compare(y.LastActivity), cmp.Compare(x.ID, y.ID))
	})
	var parts []string
	for _, h := range all[:min(len(all), maxListed)] {
		how := string(h.State)
		switch {
		case h.Ending:
			how = "being shut down"
		case h.State == api.Idle:
			how = "idle since " + h.LastActivity.In(time.UTC).Format(timeFormat)
		}
		if b.gpus {
			how = b.number(b.weight(h)) + ", " + how
		}
		parts = append(parts, fmt.Sprintf("%s %s (%s)", h.SpecName, h.ID, how))
	}
	if more := len(all) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(parts, ", ")
}
