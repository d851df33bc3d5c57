package limits

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// Cull returns when the kernels of a user are culled, as far as the users file sets it for the user's groups. If
// several groups set a time, the longest one counts, for each time separately.
func (p *Policy) Cull(groups []string) kernelspecs.CullTimes {
	var c kernelspecs.CullTimes
	if p == nil || p.File == nil {
		return c
	}
	for _, name := range groups {
		group, _ := p.File.GroupCull(name)
		c.IdleTimeout = longerLimit(c.IdleTimeout, group.IdleTimeout)
		c.BusyLimit = longerLimit(c.BusyLimit, group.BusyLimit)
		c.MaxAge = longerLimit(c.MaxAge, group.MaxAge)
		c.Warning = longer(c.Warning, group.Warning)
	}
	return c
}

// longer returns the longer of two times; nil means that a time is not set.
func longer(a *kernelspecs.Duration, b *time.Duration) *kernelspecs.Duration {
	if b == nil || a != nil && time.Duration(*a) >= *b {
		return a
	}
	return (*kernelspecs.Duration)(b)
}

// longerLimit is longer for times of which 0 means "no limit", and so is the longest.
func longerLimit(a *kernelspecs.Duration, b *time.Duration) *kernelspecs.Duration {
	switch {
	case a != nil && *a == 0:
		return a
	case b != nil && *b == 0:
		return (*kernelspecs.Duration)(b)
	}
	return longer(a, b)
}
