package gateway

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// countedGroups leaves of a user's groups those whose kernels are counted, by limits and in metrics: a pod has no room for all that a
// directory may have, and nobody has asked for them.
func (g *Gateway) countedGroups(all []string) (counted []string) {
	for _, name := range all {
		known := g.opts.KernelLimits.ofGroups()
		if !known && g.opts.GroupCull != nil {
			_, known = g.opts.GroupCull(name)
		}
		if known {
			counted = append(counted, name)
		}
	}
	return counted
}

// cullOf is when the kernels of a user are culled, where the operator wants something else for a group of theirs than for all. Of
// several groups the one that lets kernels live longer holds, for each limit by itself.
func (g *Gateway) cullOf(groups []string) (c kernelspecs.Cull) {
	if g.opts.GroupCull == nil {
		return c
	}
	for _, name := range groups {
		of, _ := g.opts.GroupCull(name)
		c.IdleTimeout = longer(c.IdleTimeout, of.IdleTimeout, true)
		c.BusyLimit = longer(c.BusyLimit, of.BusyLimit, true)
		c.MaxAge = longer(c.MaxAge, of.MaxAge, true)
		c.Warning = longer(c.Warning, of.Warning, false)
	}
	return c
}

// longer returns the longer one of two times; nil is none, and 0 is the longest of all where it stands for no limit.
func longer(a *kernelspecs.Duration, b *time.Duration, limit bool) *kernelspecs.Duration {
	switch {
	case b == nil:
		return a
	case a == nil, limit && *b == 0, (!limit || *a != 0) && *b > time.Duration(*a):
		return (*kernelspecs.Duration)(b)
	}
	return a
}

// GroupCull tells when kernels of a group's users are culled, and whether the group is known; (*identity.File).GroupCull does.
type GroupCull func(group string) (of identity.Cull, known bool)
