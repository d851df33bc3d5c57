package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Users tells whose token a request has; *identity.Verifier does.
type Users interface {
	// Identify returns the user of a token: identity.ErrUnknown if it is nobody's, identity.ErrUnavailable if that cannot
	// be told now.
	Identify(ctx context.Context, token string) (identity.User, error)
	// Recall is Identify for a token that was somebody's, without asking anybody: known is false if that would be needed.
	Recall(token string, was identity.User) (user identity.User, known bool, err error)
	// Refresh takes notice of what has changed. Watch calls it now and then.
	Refresh()
}

// access says who may ask for a route, and also what somebody may do with a kernel. A higher one includes the lower
// ones. Where there is one owner, everybody who is let in may do everything.
type access int

const (
	undecided  access = iota // no route is served with it
	public                   // everybody, without a credential
	anyUser                  // who has a valid credential: for what is no kernel's, or where the handler gives each user what is theirs
	readKernel               // who may see what the kernel of the path says
	useKernel                // who may run code in it
	ownKernel                // its owner, and admins
)

// ofKernel reports whether the access is one to the kernel of the path.
func (a access) ofKernel() bool { return a >= readKernel }

// right is what a supervisor is told.
func (a access) right() string {
	if a >= useKernel {
		return rightUse
	}
	return rightRead
}

// check says what is wrong with a route's rule: it must have one, and one for a kernel if there is a kernel in its path.
func (rt *route) check() error {
	named := strings.Contains(rt.pattern, "{id}") || strings.Contains(rt.pattern, "{session}")
	switch {
	case rt.access == undecided:
		return fmt.Errorf("route %s %s does not say who may ask for it", rt.method, rt.pattern)
	case rt.access.ofKernel() != named:
		return fmt.Errorf("route %s %s: what it says of access does not fit its path", rt.method, rt.pattern)
	}
	return nil
}

// caller is who a request is made for.
type caller struct {
	identity.User
	one   bool   // there is one owner, and this is he
	token string // by which the user is known; "" where there is one owner
	has   access // to the kernel of the path; ownKernel where there is none
}

// theOne is the caller where there is one owner.
func theOne() *caller { return &caller{User: identity.User{Name: userName}, one: true, has: ownKernel} }

// owner is what a launcher calls the caller.
func (c *caller) owner() string {
	if c.one {
		return ""
	}
	return c.Name
}

// owns reports whether the kernel of an owner is the caller's, or as good as that.
func (c *caller) owns(owner string) bool {
	return c.one || c.Admin || owner != "" && owner == c.Name
}

// to returns what the caller may do with a kernel: anyUser if that is nothing.
func (c *caller) to(k launcher.Kernel) access {
	if c.owns(k.Owner) {
		return ownKernel
	}
	has := anyUser
	for _, grant := range k.SharedWith {
		if grant.User != "" && grant.User == c.Name || grant.Group != "" && c.In(grant.Group) {
			switch grant.Right {
			case launcher.Use:
				return useKernel
			case launcher.Read:
				has = readKernel
			}
		}
	}
	return has
}

// callerOf returns who a request is made for. A request that was not authenticated is made for nobody, who has nothing.
func callerOf(ctx context.Context) *caller {
	if c := accountOf(ctx).who; c != nil {
		return c
	}
	return &caller{has: public}
}

// admit lets the caller have the kernel of the request's path as far as the route needs it, before anything else is
// done. A kernel that the caller may not even see is not there.
func (g *Gateway) admit(r *http.Request, c *caller, need access) error {
	if c.one || !need.ofKernel() {
		return nil
	}
	if r.PathValue("session") != "" {
		f, err := g.sessionOf(r)
		if err != nil {
			return err
		}
		c.has = c.to(f.kernel)
	} else {
		k, err := g.kernelOf(r.Context(), c, r.PathValue("id"))
		if err != nil {
			return err
		}
		c.has = c.to(k)
	}
	return c.has.suffices(need)
}

// suffices refuses those who may see a kernel but need more.
func (a access) suffices(need access) error {
	switch {
	case a >= need:
		return nil
	case a < readKernel:
		return errHidden
	case need == ownKernel:
		return refuse(http.StatusForbidden, "Only the kernel's owner may do this.").by(accessCheck)
	}
	return refuse(http.StatusForbidden, "You may only look at this kernel.").by(accessCheck)
}

// errHidden is the error of a kernel that the caller may not see. Only the audit log tells it from one that does not exist.
var errHidden = fmt.Errorf("%w by whoever asks", launcher.ErrNotFound)

// kernelOf returns a kernel that the caller may at least see.
func (g *Gateway) kernelOf(ctx context.Context, c *caller, id string) (launcher.Kernel, error) {
	if !launcher.ValidID(id) {
		return launcher.Kernel{}, launcher.ErrNotFound
	}
	k, err := g.kernel(ctx, id)
	if err == nil && c.to(k) < readKernel {
		return launcher.Kernel{}, errHidden
	}
	return k, err
}

// visible returns those kernels that the request's user may see.
func visible(ctx context.Context, kernels []launcher.Kernel) []launcher.Kernel {
	c := callerOf(ctx)
	return slices.DeleteFunc(slices.Clone(kernels), func(k launcher.Kernel) bool { return c.to(k) < readKernel })
}
