package kernels

import (
	"slices"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// profiledSpecs returns a kernelspec with each of its profiles, as front ends without a form see them.
func profiledSpecs(spec kernelspecs.Spec) []kernelspecs.Spec {
	var list []kernelspecs.Spec
	for _, p := range spec.Profiles() {
		if with, ok, err := spec.WithProfile(p.Name); ok && err == nil { // the finder has checked it
			list = append(list, shownWithProfile(with))
		}
	}
	return list
}

func shownWithProfile(spec kernelspecs.Spec) kernelspecs.Spec {
	spec.DisplayName += " (" + spec.ProfileTitle + ")"
	spec.Name += flavorSeparator + spec.Profile
	return spec
}

// chooseProfile applies the profile that the client's variable names. A kernelspec without profiles ignores the
// variable, which a Jupyter server sets for all its kernels. A profile by the kernelspec's name overrides it.
func chooseProfile(req *launcher.Request) error {
	if req.Spec.Profile != "" {
		req.Env[kernelspecs.ProfileVariable] = req.Spec.Profile
		return nil
	}
	name := req.Env[kernelspecs.ProfileVariable]
	profiles := req.Spec.Profiles()
	if name == "" || len(profiles) == 0 {
		return nil
	}
	with, ok, err := req.Spec.WithProfile(name)
	if err != nil {
		return err
	}
	if !ok {
		var names []string
		for _, p := range profiles {
			names = append(names, p.Name)
		}
		return refuse(Invalid, "Kernel spec %s has no profile %q. It has: %s.", req.Spec.Name,
			Shorten(name), strings.Join(names, ", "))
	}
	req.Spec = with
	return nil
}

// profiledName returns the name under which a front end finds the kernelspec of a kernel with a profile.
func (s *Service) profiledName(k *launcher.Kernel) (string, bool) {
	if k.Profile == "" {
		return "", false
	}
	name := k.SpecName + flavorSeparator + k.Profile
	if _, another := s.opts.Specs.Get(name); another {
		return "", false
	}
	spec, _ := s.opts.Specs.Get(k.SpecName)
	return name, slices.ContainsFunc(spec.Profiles(), func(p kernelspecs.Profile) bool { return p.Name == k.Profile })
}
