package devices

import (
	"fmt"
	"slices"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// Want is what a kernel asks for. The zero value asks for one unit: a GPU, or an instance (MIG) of one.
type Want struct {
	Count   int        `json:"count,omitempty"`   // of units; 0: 1. Only whole GPUs can be several: CUDA uses one instance
	Share   gpu.Amount `json:"share,omitempty"`   // of one unit; 0: the whole unit
	Memory  int64      `json:"memory,omitempty"`  // bytes of one unit, instead of Share; 0: the whole unit
	Whole   bool       `json:"whole,omitempty"`   // no instance
	Profile string     `json:"profile,omitempty"` // an instance with this profile
	Product string     `json:"product,omitempty"` // the model, with "-" in place of spaces; "": any
}

// NeverError says that a machine does not have what a kernel asks for.
type NeverError struct{ Reason string }

// Error returns the reason.
func (e *NeverError) Error() string { return e.Reason }

// BusyError says that other kernels hold what a kernel asks for.
type BusyError struct {
	Candidates []string // UUIDs of the units that would do

	want     Want
	total    int // units that would do
	held     int // of them, by other kernels
	promised int // of them, to kernels that have waited for longer
}

// Error says what the kernel waits for, as the beginning of a sentence for its owner.
func (e *BusyError) Error() string {
	text := fmt.Sprintf("it waits for %s: %d of %d are held by other kernels", e.want.text(), e.held, e.total)
	if e.promised > 0 {
		text += fmt.Sprintf(", and kernels that have waited for longer get %d", e.promised)
	}
	return text
}

func (w Want) count() int { return max(1, w.Count) }

// of returns which part of a unit the kernel asks for.
func (w Want) of(u unit) gpu.Amount {
	switch {
	case w.Memory > 0 && u.memory > 0:
		per := u.memory / int64(gpu.One) // bytes of the smallest part
		return min(gpu.One, gpu.Amount((w.Memory+per-1)/max(1, per)))
	case w.Share > 0:
		return min(gpu.One, w.Share)
	}
	return gpu.One
}

// parks reports whether the kernel asks for one whole GPU, which it may give back: NVIDIA's driver saves no instances.
func (w Want) parks(matching []unit) bool {
	return w.count() == 1 && !slices.ContainsFunc(matching, func(u unit) bool { return u.part || w.of(u) != gpu.One })
}

// Check returns a *NeverError if the machine does not have what the kernel asks for.
func (w Want) Check(list gpu.List) error {
	_, err := w.choose(list)
	return err
}

// Size returns the GPUs that the kernel asks for, with a unit of unknown memory as a whole one.
func (w Want) Size(list gpu.List) gpu.Amount {
	for _, u := range units(list) {
		if w.matches(u) {
			return w.of(u) * gpu.Amount(w.count())
		}
	}
	return w.of(unit{}) * gpu.Amount(w.count())
}

// text names what the kernel asks for.
func (w Want) text() string {
	kind := "GPU"
	if w.Profile != "" {
		kind = "instance " + w.Profile
	}
	if w.Product != "" {
		kind += " " + w.Product
	}
	switch {
	case w.count() > 1:
		return fmt.Sprintf("%d %ss", w.count(), kind)
	case w.Memory > 0:
		return fmt.Sprintf("%d MiB of a %s", w.Memory>>20, kind)
	case w.Share > 0 && w.Share < gpu.One:
		return fmt.Sprintf("%s of a %s", w.Share, kind)
	case w.Profile != "":
		return "an " + kind
	}
	return "a " + kind
}

// unit is what can be lent: a GPU that is not in MIG mode, or an instance.
type unit struct {
	uuid    string // "" if the driver does not tell it
	model   string
	profile string // of an instance
	part    bool   // it is an instance
	memory  int64
	kept    int64  // bytes of memory that the driver reserves for itself
	err     string // why it is not healthy
}

// units returns what a machine has.
func units(list gpu.List) (all []unit) {
	for _, d := range list.Devices {
		u := unit{uuid: d.UUID, model: d.Model, memory: d.MemoryTotal, kept: d.Reserved, err: d.Error}
		if !d.Healthy && u.err == "" {
			u.err = "the driver does not say why"
		}
		if !d.MIG {
			all = append(all, u)
			continue
		}
		for _, i := range d.Instances {
			u.uuid, u.profile, u.memory, u.kept, u.part = i.UUID, i.Profile, i.MemoryTotal, i.Reserved, true
			all = append(all, u)
		}
	}
	return all
}

// matches reports whether a unit is of the kind that the kernel asks for.
func (w Want) matches(u unit) bool {
	switch {
	case u.part && (w.Whole || w.count() > 1), w.Profile != "" && u.profile != w.Profile:
		return false
	case w.Memory > 0 && u.memory < w.Memory:
		return false
	}
	return w.Product == "" || strings.ReplaceAll(u.model, " ", "-") == w.Product
}

// Candidates returns the UUIDs of the units that the kernel can use. It returns nil if the machine has too few.
func (w Want) Candidates(list gpu.List) (uuids []string) {
	matching, err := w.choose(list)
	if err != nil { // a *NeverError
		return nil
	}
	for _, u := range matching {
		uuids = append(uuids, u.uuid)
	}
	return uuids
}

// choose returns the healthy units that would do. The error is a *NeverError if there are too few.
func (w Want) choose(list gpu.List) (matching []unit, err error) {
	sick := 0
	for _, u := range units(list) {
		switch {
		case !w.matches(u):
		case u.err != "":
			sick++
		default:
			matching = append(matching, u)
		}
	}
	if len(matching) >= w.count() {
		return matching, nil
	}
	has := fmt.Sprintf("%d", len(matching))
	if len(matching) == 0 {
		has = "none"
	}
	text := fmt.Sprintf("it asks for %s, and this machine has %s", w.text(), has)
	if sick > 0 {
		text += fmt.Sprintf(" that is healthy, and %d that is not", sick)
	}
	if list.Reason != "" {
		text += ": " + list.Reason
	}
	return nil, &NeverError{text}
}
