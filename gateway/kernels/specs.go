package kernels

import (
	"errors"
	"fmt"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// ErrNoSpec says that there is no kernelspec of a name.
var ErrNoSpec = errors.New("there is no such kernelspec")

// chooseSpec sets the kernelspec of a start. If its name includes a profile or a flavor, it sets that too. Then the
// variable for it is ignored, because a Jupyter server sets the variable for all its kernels.
func (s *Service) chooseSpec(who Caller, req *launcher.Request, name string) (err error) {
	if name == "" {
		name = s.DefaultSpec(who)
	}
	if _, whole := s.opts.Specs.Get(name); whole {
		req.Spec, err = s.spec(name)
		return err
	}
	if spec, f, ok := s.split(name); ok {
		if req.Spec = spec; f != nil {
			req.Env[flavorVariable] = f.Name
		}
		return nil
	}
	req.Spec, err = s.spec(name)
	return err
}

// noSpec makes a refusal that wraps ErrNoSpec.
func noSpec(format string, args ...any) error {
	return &Refusal{Class: NotFound, Message: fmt.Sprintf(format, args...), Err: ErrNoSpec}
}

// spec returns the kernelspec of a name.
func (s *Service) spec(name string) (kernelspecs.Spec, error) {
	if name == "" {
		return kernelspecs.Spec{}, noSpec("The gateway has no kernelspec.")
	}
	spec, ok := s.opts.Specs.Get(name)
	if !ok && name == "python" {
		spec, ok = s.opts.Specs.Get("python3") // its name in jupyter_client's old API, which Jupyter Server still accepts
	}
	if !ok {
		return spec, noSpec("Kernel spec %s not found", Shorten(name))
	}
	return spec, nil
}

// MayRestart rejects a user whom the kernel's kernelspec does not allow. The lists of a hidden kernelspec hold, too. If
// the kernelspec is gone, the gateway's own lists hold.
func (s *Service) MayRestart(who Caller, k launcher.Kernel) error {
	spec, ok := s.opts.Specs.Get(k.SpecName)
	if !ok {
		spec = kernelspecs.Spec{Name: k.SpecName, Users: s.opts.Specs.Users(k.SpecName)}
	}
	return mayStart(who, spec)
}

// mayStart rejects a user whom the kernelspec does not allow. Only a verified name counts, so a gateway without users
// cannot hold such a limit, and starts none of these kernels. Admins may start all.
func mayStart(who Caller, spec kernelspecs.Spec) error {
	switch {
	case !spec.Users.Limited() || who.Admin:
		return nil
	case who.Sole:
		return refuse(Forbidden, "Kernel spec %s names the users who may start it, and this gateway has no "+
			"users. See docs/users.md.", spec.Name).by(AccessCheck)
	case !spec.Users.May(who.Name):
		return refuse(Forbidden, "Kernel spec %s may not be started by user %s.", spec.Name,
			who.Name).by(AccessCheck)
	}
	return nil
}

// DefaultSpec returns the name of a user's default kernelspec: the operator's, python3, or the first one that the user
// may start. It is "" if there is none. An operator's kernelspec that does not exist is returned: requests then say so.
func (s *Service) DefaultSpec(who Caller) string {
	if name := s.opts.DefaultKernel; name != "" {
		if spec, ok := s.shownSpec(who, name); !ok || mayStart(who, spec) == nil {
			return name
		}
	}
	if spec, ok := s.opts.Specs.Get("python3"); ok && mayStart(who, spec) == nil {
		return spec.Name
	}
	for _, spec := range s.opts.Specs.List() {
		if mayStart(who, spec) == nil {
			return spec.Name
		}
	}
	return ""
}

// StartableSpecs returns the kernelspecs of the caller's list by their names.
func (s *Service) StartableSpecs(who Caller) map[string]kernelspecs.Spec {
	specs := map[string]kernelspecs.Spec{}
	for _, spec := range s.shownSpecs(who) {
		if mayStart(who, spec) == nil {
			specs[spec.Name] = spec
		}
	}
	return specs
}

// ReadableSpec returns a kernelspec of the list that the caller sees. The error is that of a start of the kernelspec.
func (s *Service) ReadableSpec(who Caller, name string) (kernelspecs.Spec, error) {
	spec, ok := s.shownSpec(who, name)
	if !ok {
		return spec, noSpec("Kernel spec %s not found", Shorten(name))
	}
	return spec, mayStart(who, spec)
}

// shownSpec returns a kernelspec in any case of its name, unless the caller may not choose its flavor.
func (s *Service) shownSpec(who Caller, name string) (kernelspecs.Spec, bool) {
	if spec, ok := s.opts.Specs.Get(name); ok {
		return spec, true
	}
	spec, f, ok := s.split(name)
	switch {
	case ok && f == nil:
		return shownWithProfile(spec), true
	case !ok || !mayChoose(who, f):
		return kernelspecs.Spec{}, false
	}
	return withFlavor(spec, f), true
}
