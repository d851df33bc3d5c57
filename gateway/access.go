package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
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
}

// access says what a user may do with a kernel, and what a route needs. A higher access includes the lower ones. The
// only owner of a gateway without users may do everything.
type access int

const (
	undecided  access = iota // no route may have it
	public                   // for everyone, without a credential
	anyUser                  // with a valid credential: for routes without a kernel, and those that filter for each user
	readKernel               // for users who may read the output of the path's kernel
	useKernel                // for users who may run code in it
	ownKernel                // for its owner and admins
)

// ofKernel reports whether the access concerns the kernel of the path.
func (a access) ofKernel() bool { return a >= readKernel }

// right returns the access as supervisors know it.
func (a access) right() string {
	switch {
	case a >= ownKernel:
		return api.RightOwn
	case a >= useKernel:
		return api.RightUse
	}
	return api.RightRead
}

// check checks a route's access: it must be set, and concern a kernel exactly if the path has one.
func (rt *route) check() error {
	named := strings.Contains(rt.pattern, "{id}") || strings.Contains(rt.pattern, "{session}")
	switch {
	case rt.access == undecided:
		return fmt.Errorf("route %s %s has no access", rt.method, rt.pattern)
	case rt.access.ofKernel() != named:
		return fmt.Errorf("route %s %s: its access does not fit its path", rt.method, rt.pattern)
	}
	return nil
}

// caller is the user that a request is made for, with what the user may do. It is passed by value. The zero caller has
// not proved an identity and may do nothing.
type caller struct {
	identity.User
	sole  bool   // the gateway has no users: this is its only owner
	token string // identifies the user; "" for the only owner
	has   access // to the kernel of the path; ownKernel where the path has no kernel
}

// soleOwner returns the caller of every request where the gateway has no users.
func soleOwner() caller {
	return caller{User: identity.User{Name: userName}, sole: true, has: ownKernel}
}

// owner returns the caller's name as launchers store it.
func (c caller) owner() string {
	if c.sole {
		return ""
	}
	return c.Name
}

// owns reports whether the caller may do everything with the kernels of an owner.
func (c caller) owns(owner string) bool {
	return c.seesAll() || owner != "" && owner == c.Name
}

// seesAll reports whether the caller may do everything with all kernels.
func (c caller) seesAll() bool { return c.sole || c.Admin }

// accessTo returns what the caller may do with a kernel; anyUser means nothing.
func (c caller) accessTo(k launcher.Kernel) access {
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

// admit checks, before anything else is done, that the caller may do with the kernel of the path what the route needs.
// It sets what the caller may do. A kernel that the caller may not see does not exist for the caller.
func (g *Gateway) admit(r *call, need access) error {
	if r.who.sole || !need.ofKernel() {
		return nil
	}
	var k launcher.Kernel
	if r.PathValue("session") != "" {
		f, err := g.sessionOf(r)
		if err != nil {
			return err
		}
		k = f.kernel
	} else {
		var err error
		if k, err = g.kernelOf(r.Context(), r.who, r.PathValue("id")); err != nil {
			return err
		}
	}
	r.who.has = r.who.accessTo(k)
	return r.who.has.suffices(need)
}

// suffices returns the error of a caller who has less access than needed.
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

// errHidden is the error of a kernel that the caller may not see. Only the audit log tells it from a kernel that does
// not exist.
var errHidden = fmt.Errorf("%w for this user", launcher.ErrNotFound)

// kernelOf returns a kernel that the caller may at least see.
func (g *Gateway) kernelOf(ctx context.Context, who caller, id string) (launcher.Kernel, error) {
	if !launcher.ValidID(id) {
		return launcher.Kernel{}, launcher.ErrNotFound
	}
	k, err := g.kernel(ctx, id)
	if err == nil && !who.sees(k) {
		return launcher.Kernel{}, errHidden
	}
	return k, err
}

// sees reports whether the caller may know of a kernel.
func (c caller) sees(k launcher.Kernel) bool { return c.accessTo(k) >= readKernel }

// kernelsOf lists the kernels that the caller may see.
func (g *Gateway) kernelsOf(ctx context.Context, who caller) ([]launcher.Kernel, error) {
	if who.seesAll() {
		return g.opts.Launcher.Kernels(ctx)
	}
	list := g.opts.Launcher.Kernels
	if l, ok := g.opts.Launcher.(launcher.ListerForUsers); ok {
		list = func(ctx context.Context) ([]launcher.Kernel, error) { return l.KernelsFor(ctx, who.Name, who.Groups) }
	}
	kernels, err := list(ctx)
	return who.visible(kernels), err
}

// visible returns those kernels that the caller may see.
func (c caller) visible(kernels []launcher.Kernel) []launcher.Kernel {
	return slices.DeleteFunc(slices.Clone(kernels), func(k launcher.Kernel) bool { return !c.sees(k) })
}
