package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// KernelLimits is how many kernels, and GPUs in use by them, there may be at one time. It implements launcher.Limits, for the launcher
// to which it is given. 0 is no limit. It is not to be changed once it is in use; nil is no limits.
type KernelLimits struct {
	Kernels       int // of everybody
	PerUser       int // of one user; where there is one owner, the same as Kernels
	PerGroup      int // of all users of one group together
	PerKernelspec int // of one kernelspec; a kernelspec may have a lower one of its own
	GPUsPerUser   int
	GPUsPerGroup  int

	Specs Specs          // whose own limits count, too; nil: none
	File  *identity.File // what it says of single users and groups counts before PerUser and so on; nil: there is none
}

// The names of the limits.
const (
	limitKernels       = "kernels"
	limitPerUser       = "kernels-per-user"
	limitPerGroup      = "kernels-per-group"
	limitPerKernelspec = "kernels-per-kernelspec"
	limitGPUsPerUser   = "gpus-per-user"
	limitGPUsPerGroup  = "gpus-per-group"
)

const (
	shownKernels = 5 // at most, in the text of a refusal
	shownMinutes = "2006-01-02 15:04 UTC"
)

// Set reports whether there is any limit at this moment.
func (l *KernelLimits) Set() bool {
	switch {
	case l == nil:
		return false
	case l.Kernels > 0 || l.PerUser > 0 || l.PerGroup > 0 || l.PerKernelspec > 0 || l.GPUsPerUser > 0 || l.GPUsPerGroup > 0:
		return true
	case l.File != nil && l.File.Limited():
		return true
	case l.Specs == nil:
		return false
	}
	for _, spec := range l.Specs.List() {
		if ext, err := spec.Extension(); err == nil && ext.Limits.MaxKernels != nil {
			return true
		}
	}
	return false
}

// ofGroups reports whether every group has a limit, whatever is said of it.
func (l *KernelLimits) ofGroups() bool { return l != nil && (l.PerGroup > 0 || l.GPUsPerGroup > 0) }

// Admit decides about a start. The first limit that it is over is told: one's own before those of others.
func (l *KernelLimits) Admit(start launcher.Held, held []launcher.Held) error {
	for _, b := range l.bounds(start) {
		if err := b.admit(start, held); err != nil {
			return err
		}
	}
	return nil
}

// bound is one limit as it concerns a start.
type bound struct {
	name    string
	most    int64
	gpus    bool                     // what is counted; otherwise kernels
	concern func(launcher.Held) bool // kernels that count against it

	// How it is told: "you have 3 kernels", "you may have 3".
	who, have string
	of        string // "of the kernelspec python3", behind the number of kernels
}

// bounds are the limits that concern a start.
func (l *KernelLimits) bounds(start launcher.Held) (all []bound) {
	owned := func(h launcher.Held) bool { return h.Owner == start.Owner }
	user := identity.Limits{}
	if l.File != nil && start.Owner != "" {
		user = l.File.UserLimits(start.Owner)
	}
	add := func(b bound, most int64, ok bool) {
		if ok {
			b.most = most
			all = append(all, b)
		}
	}
	most, ok := limitOf(user.MaxGPUs, l.GPUsPerUser)
	add(bound{name: limitGPUsPerUser, gpus: true, concern: owned, who: "you", have: "have"}, most, ok)
	most, ok = limitOf(user.MaxKernels, l.PerUser)
	add(bound{name: limitPerUser, concern: owned, who: "you", have: "have"}, most, ok)
	if most := l.kernelspec(start.SpecName); most > 0 {
		add(bound{name: limitPerKernelspec, concern: func(h launcher.Held) bool { return h.SpecName == start.SpecName }, who: "there", have: "are",
			of: " of the kernelspec " + start.SpecName}, most, true)
	}
	for _, group := range start.Groups {
		file := identity.Limits{}
		if l.File != nil {
			file = l.File.GroupLimits(group)
		}
		members := func(h launcher.Held) bool { return slices.Contains(h.Groups, group) }
		who := fmt.Sprintf("the group %s", group)
		most, ok := limitOf(file.MaxGPUs, l.GPUsPerGroup)
		add(bound{name: limitGPUsPerGroup, gpus: true, concern: members, who: who, have: "has"}, most, ok)
		most, ok = limitOf(file.MaxKernels, l.PerGroup)
		add(bound{name: limitPerGroup, concern: members, who: who, have: "has"}, most, ok)
	}
	add(bound{name: limitKernels, concern: func(launcher.Held) bool { return true }, who: "there", have: "are"}, int64(l.Kernels), l.Kernels > 0)
	return all
}

// limitOf is the limit that holds: that of a single user or group before that of all.
func limitOf(single *int64, all int) (most int64, ok bool) {
	if single != nil {
		return *single, *single != identity.Unlimited
	}
	return int64(all), all > 0
}

// kernelspec is how many kernels of a kernelspec there may be, 0 if as many as anybody likes.
func (l *KernelLimits) kernelspec(name string) int64 {
	most := int64(l.PerKernelspec)
	if l.Specs == nil {
		return most
	}
	if spec, ok := l.Specs.Get(name); ok {
		if ext, err := spec.Extension(); err == nil && ext.Limits.MaxKernels != nil {
			if own := int64(*ext.Limits.MaxKernels); most == 0 || own < most {
				most = own
			}
		}
	}
	return most
}

// weight is what a kernel counts.
func (b *bound) weight(h launcher.Held) int64 {
	if b.gpus {
		return h.GPUs
	}
	return 1
}

func (b *bound) admit(start launcher.Held, held []launcher.Held) error {
	want := b.weight(start)
	if want == 0 {
		return nil
	}
	var own []launcher.Held
	var used int64
	for _, h := range held {
		n := b.weight(h)
		if !b.concern(h) || n == 0 {
			continue
		}
		used += n
		if h.Owner == start.Owner {
			own = append(own, h)
		}
	}
	if used+want <= b.most {
		return nil
	}
	return &launcher.LimitError{Limit: b.name, Reason: b.refusal(want, used, own)}
}

// refusal says why a start is over the limit, and which kernels of whoever has asked count against it.
func (b *bound) refusal(want, used int64, own []launcher.Held) string {
	may := fmt.Sprintf("%s may %s %s%s at one time (limit %s)", b.who, map[bool]string{true: "be", false: "have"}[b.have == "are"], b.number(b.most), b.of, b.name)
	if want > b.most {
		if b.gpus {
			return fmt.Sprintf("it asks for %s, and %s: ask for fewer, shutting other kernels down does not help", b.number(want), may)
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
		return text + "; none of it is yours: try again when somebody has shut one down"
	case shared:
		return text + "; shut one of yours down to start another: " + b.list(own)
	}
	return text + "; shut one down to start another: " + b.list(own)
}

// number is how many kernels or GPUs, in words.
func (b *bound) number(n int64) string {
	what := "kernel"
	if b.gpus {
		what = "GPU"
	}
	switch n {
	case 0:
		return "no " + what
	case 1:
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// list names kernels, those first that have not been used for longest.
func (b *bound) list(all []launcher.Held) string {
	rank := func(h launcher.Held) int {
		switch {
		case h.Ending:
			return 2
		case h.State != launcher.Idle:
			return 1
		}
		return 0
	}
	slices.SortFunc(all, func(x, y launcher.Held) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), x.LastActivity.Compare(y.LastActivity), cmp.Compare(x.ID, y.ID))
	})
	var parts []string
	for _, h := range all[:min(len(all), shownKernels)] {
		how := string(h.State)
		switch {
		case h.Ending:
			how = "being shut down"
		case h.State == launcher.Idle:
			how = "idle since " + h.LastActivity.In(time.UTC).Format(shownMinutes)
		}
		if b.gpus {
			how = b.number(h.GPUs) + ", " + how
		}
		parts = append(parts, fmt.Sprintf("%s %s (%s)", h.SpecName, h.ID, how))
	}
	if more := len(all) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(parts, ", ")
}
