package kernels

import (
	"context"

	"github.com/elastic-kernel-gateway/ekg/gateway/limits"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// LimitUses returns the limits that a start of the caller has to keep, and how far they are reached. An admin gets also
// those of every user and group with a kernel. A gateway without users has one owner, whose name is empty.
func (s *Service) LimitUses(ctx context.Context, who Caller) ([]limits.Use, error) {
	ctx, cancel := context.WithTimeout(ctx, ReadTime)
	defer cancel()
	all, err := s.launcher.Kernels(ctx)
	if err != nil {
		return nil, err
	}
	policy := s.opts.Limits
	own := launcher.Held{Owner: who.Owner(), Groups: policy.Groups(who.Groups)}
	starts := []launcher.Held{own}
	for _, spec := range s.opts.Specs.List() {
		if who.SeesAll() || mayStart(who, spec) == nil {
			starts = append(starts, launcher.Held{Owner: own.Owner, SpecName: spec.Name})
		}
	}
	var held []launcher.Held
	for i := range all {
		k := &all[i]
		if k.State == api.Dead {
			continue
		}
		h := launcher.Held{ID: k.ID, SpecName: k.SpecName, Owner: k.Owner, Groups: k.Groups, GPUs: k.GPUs, State: k.State}
		held = append(held, h)
		if who.Admin {
			starts = append(starts, launcher.Held{Owner: h.Owner, Groups: h.Groups})
		}
	}
	return policy.Uses(starts, held), nil
}
