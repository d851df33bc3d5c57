package gateway

import (
	"context"
	"fmt"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Users identifies the users of tokens; *identity.Verifier implements it.
type Users interface {
	// Identify returns the user of a token. The error is identity.ErrUnknown if no user has the token, and
	// identity.ErrUnavailable if its source is unavailable. It is identity.ErrTooMany if too many tokens of the same
	// address are being verified; identity.From puts the address into ctx.
	Identify(ctx context.Context, token string) (identity.User, error)
	// Recall is Identify for a token that was a user's before. It calls no source: known is false if only a source could
	// answer.
	Recall(token string, was identity.User) (user identity.User, known bool, err error)
	// Refresh reads changed settings again. Watch calls it every few seconds.
	Refresh()
	// Jobs ask it for their owners.
	jobs.Users
}

// The accesses of the table of routes.
const (
	undecided  = kernels.Undecided
	public     = kernels.Public
	anyUser    = kernels.AnyUser
	readKernel = kernels.ReadKernel
	useKernel  = kernels.UseKernel
	ownKernel  = kernels.OwnKernel
)

// check checks a route's access: it must be set, and concern a kernel exactly if the path has one.
func (rt *route) check() error {
	named := strings.Contains(rt.pattern, "{id}") || strings.Contains(rt.pattern, "{session}")
	switch {
	case rt.access == undecided:
		return fmt.Errorf("route %s %s has no access", rt.method, rt.pattern)
	case rt.access.OfKernel() != named:
		return fmt.Errorf("route %s %s: its access does not fit its path", rt.method, rt.pattern)
	}
	return nil
}

// admit checks, before anything else is done, that the caller may do with the kernel of the path what the route needs.
// It sets what the caller may do. A kernel that the caller may not see does not exist for the caller.
func (g *Gateway) admit(r *call, need kernels.Access) error {
	if r.Who.Sole || !need.OfKernel() {
		return nil
	}
	var k launcher.Kernel
	if r.PathValue("session") != "" {
		f, err := g.sessions.of(r)
		if err != nil {
			return err
		}
		k = f.kernel
	} else {
		var err error
		if k, err = g.kernels.KernelOf(r.Context(), r.Who, r.PathValue("id")); err != nil {
			return err
		}
	}
	r.Who.Has = r.Who.AccessTo(k)
	return r.Who.Has.Suffices(need)
}
