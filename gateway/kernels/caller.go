package kernels

import (
	"context"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// SoleName is the name of the only owner where there are no users.
const SoleName = "anonymous"

// Access says what a user may do with a kernel, and what a route needs. A higher access includes the lower ones. The
// only owner of a gateway without users may do everything.
type Access int

// The accesses.
const (
	Undecided  Access = iota // no route may have it
	Public                   // for everyone, without a credential
	AnyUser                  // with a valid credential: for routes without a kernel, and those that filter for each user
	ReadKernel               // for users who may read the kernel's output
	UseKernel                // for users who may run code in it
	OwnKernel                // for its owner and admins
)

// OfKernel reports whether the access concerns one kernel.
func (a Access) OfKernel() bool { return a >= ReadKernel }

// Right returns the access as supervisors know it.
func (a Access) Right() string {
	switch {
	case a >= OwnKernel:
		return api.RightOwn
	case a >= UseKernel:
		return api.RightUse
	}
	return api.RightRead
}

// Suffices returns the error of a caller who has less access than needed.
func (a Access) Suffices(need Access) error {
	switch {
	case a >= need:
		return nil
	case a < ReadKernel:
		return ErrHidden
	case need == OwnKernel:
		return refuse(Forbidden, "Only the kernel's owner may do this.").by(AccessCheck)
	}
	return refuse(Forbidden, "You may only look at this kernel.").by(AccessCheck)
}

// Caller is the user that something is done for, with what the user may do. It is passed by value. The zero Caller has
// not proved an identity and may do nothing.
type Caller struct {
	identity.User
	Sole  bool   // the gateway has no users: this is its only owner
	Token string // identifies the user; "" for the only owner, and for the author of a job
	Has   Access // to the kernel that the request names; OwnKernel where it names none
}

// SoleOwner returns the caller of every request where the gateway has no users.
func SoleOwner() Caller {
	return Caller{User: identity.User{Name: SoleName}, Sole: true, Has: OwnKernel}
}

// Owner returns the caller's name as launchers store it.
func (c Caller) Owner() string {
	if c.Sole {
		return ""
	}
	return c.Name
}

// Owns reports whether the caller may do everything with the kernels of an owner.
func (c Caller) Owns(owner string) bool {
	return c.SeesAll() || owner != "" && owner == c.Name
}

// ownersName returns the name of the only owner whose kernels the caller owns; "" if the caller owns all.
func (c Caller) ownersName() string {
	if c.SeesAll() {
		return ""
	}
	return c.Name
}

// ReasonOf returns why a kernel waits or is dead, as the caller may read it. The reason of a limit names the owner's
// other kernels, which a kernel's other users may not see.
func (c Caller) ReasonOf(k *launcher.Kernel) string {
	if k.Limit == "" || c.Owns(k.Owner) {
		return k.Reason
	}
	return launcher.LimitForOthers(k.Limit)
}

// SeesAll reports whether the caller may do everything with all kernels.
func (c Caller) SeesAll() bool { return c.Sole || c.Admin }

// AccessTo returns what the caller may do with a kernel; AnyUser means nothing.
func (c Caller) AccessTo(k launcher.Kernel) Access {
	if c.Owns(k.Owner) {
		return OwnKernel
	}
	has := AnyUser
	for _, grant := range k.SharedWith {
		if grant.User != "" && grant.User == c.Name || grant.Group != "" && c.In(grant.Group) {
			switch grant.Right {
			case launcher.Use:
				return UseKernel
			case launcher.Read:
				has = ReadKernel
			}
		}
	}
	return has
}

// Sees reports whether the caller may know of a kernel.
func (c Caller) Sees(k launcher.Kernel) bool { return c.AccessTo(k) >= ReadKernel }

// visible returns those kernels that the caller may see.
func (c Caller) visible(kernels []launcher.Kernel) []launcher.Kernel {
	return slices.DeleteFunc(slices.Clone(kernels), func(k launcher.Kernel) bool { return !c.Sees(k) })
}

// Kernel asks the launcher for one kernel, within ReadTime.
func (s *Service) Kernel(ctx context.Context, id string) (launcher.Kernel, error) {
	ctx, cancel := context.WithTimeout(ctx, ReadTime)
	defer cancel()
	return s.launcher.Kernel(ctx, id)
}

// KernelOf returns a kernel that the caller may at least see.
func (s *Service) KernelOf(ctx context.Context, who Caller, id string) (launcher.Kernel, error) {
	if !launcher.ValidID(id) {
		return launcher.Kernel{}, launcher.ErrNotFound
	}
	k, err := s.Kernel(ctx, id)
	if err == nil && !who.Sees(k) {
		return launcher.Kernel{}, ErrHidden
	}
	return k, err
}

// List lists the kernels that the caller may see.
func (s *Service) List(ctx context.Context, who Caller) ([]launcher.Kernel, error) {
	if who.SeesAll() {
		return s.launcher.Kernels(ctx)
	}
	kernels, err := s.launcher.KernelsFor(ctx, who.Name, who.Groups)
	return who.visible(kernels), err
}

// lookupsPerMinute bounds how often in a minute the launcher looks for unknown kernels of a user's requests. In a
// cluster that is a request to the API server. A page or a notebook server asks for a few kernels that have ended.
const lookupsPerMinute = 600

// CountLookup counts that a kernel is looked for which the launcher does not know.
func (s *Service) CountLookup(who Caller) error {
	wait := s.lookups.Take(who.Name)
	if wait == 0 {
		return nil
	}
	return tooMany(wait, "You have asked for too many kernels that do not exist. Try again in %v.", RoundUp(wait))
}

// tooMany makes the error of a user who does something too often.
func tooMany(wait time.Duration, format string, args ...any) error {
	r := refuse(TooMany, format, args...).by(LimitCheck)
	r.Retry = wait
	return r
}
