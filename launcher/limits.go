package launcher

import (
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Limits decides how many kernels may exist at one time. A launcher calls it for every start: for Start, and for each
// restart of a dead kernel. Its methods may be called concurrently, return at once and call no method of the launcher.
type Limits interface {
	// Set reports whether there is any limit at this moment. Without limits, a launcher need not count.
	Set() bool

	// Fits reports whether a start keeps all limits if all that counts is part of the sums. A launcher that keeps
	// sums asks Admit only if it is false.
	Fits(start Held, sums *Sums) bool

	// Admit decides about a start. held are all other kernels that count: those that run, are being started or are
	// ending, but no dead ones. The error is a *LimitError.
	Admit(start Held, held []Held) error
}

// Sums are kernels as limits count them, together. They hold no kernel, so they are cheap to keep. The zero Sums is
// empty. They may not be used concurrently.
type Sums struct {
	All                   Sum
	Owners, Specs, Groups map[string]Sum // by name; kernels of several groups are in several
}

// Sum is a number of kernels, and the GPUs that they ask for.
type Sum struct {
	Kernels int64
	GPUs    gpu.Amount
}

func (s Sum) plus(o Sum) Sum { return Sum{s.Kernels + o.Kernels, s.GPUs + o.GPUs} }

// Add adds a kernel.
func (s *Sums) Add(h Held) { s.change(h, Sum{1, h.GPUs}) }

// Remove removes a kernel that was added with the same fields.
func (s *Sums) Remove(h Held) { s.change(h, Sum{-1, -h.GPUs}) }

func (s *Sums) change(h Held, by Sum) {
	s.All = s.All.plus(by)
	changeSum(&s.Owners, h.Owner, by)
	changeSum(&s.Specs, h.SpecName, by)
	for i, group := range h.Groups {
		if !slices.Contains(h.Groups[:i], group) {
			changeSum(&s.Groups, group, by)
		}
	}
}

func changeSum(sums *map[string]Sum, name string, by Sum) {
	if *sums == nil {
		*sums = map[string]Sum{}
	}
	now := (*sums)[name].plus(by)
	if now == (Sum{}) {
		delete(*sums, name) // or names of the past would stay
		return
	}
	(*sums)[name] = now
}

// For returns those sums that concern a start: all kernels, and those of its owner, kernelspec and groups.
func (s *Sums) For(start Held) *Sums {
	part := &Sums{All: s.All, Owners: map[string]Sum{start.Owner: s.Owners[start.Owner]},
		Specs: map[string]Sum{start.SpecName: s.Specs[start.SpecName]}, Groups: map[string]Sum{}}
	for _, group := range start.Groups {
		part.Groups[group] = s.Groups[group]
	}
	return part
}

// Held is a kernel as limits count it.
type Held struct {
	ID           string
	SpecName     string
	Owner        string
	Groups       []string   // of the owner, at the start of the kernel
	GPUs         gpu.Amount // that it asks for; without a flavor, shares of GPUs count as 1
	State        api.State  // the last known
	LastActivity time.Time
	Ending       bool // it is being shut down; it counts until it is gone
}

// LimitError says that a kernel was not started because of a limit.
type LimitError struct {
	Limit  string // name of the limit
	Reason string // one sentence for the owner; it names no other user's kernels

	// Counts reports whether a kernel counts against the limit; nil: any may.
	Counts func(Held) bool
}

// Error returns the reason.
func (e *LimitError) Error() string { return e.Reason }

// HasLimits reports whether starts must be counted. nil means no limits.
func HasLimits(l Limits) bool { return l != nil && l.Set() }
