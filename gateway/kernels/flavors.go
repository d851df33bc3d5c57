package kernels

import (
	"bytes"
	"slices"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

// flavorVariable is the client's variable that names a flavor.
const flavorVariable = "KERNEL_FLAVOR"

// flavorSeparator is between the names of kernelspec and flavor in the name of a kernelspec with a flavor. No flavor's
// name contains it.
const flavorSeparator = "--"

// Flavors gives the flavors that kernels may have; *flavor.File implements it.
type Flavors interface {
	// List returns all flavors of this moment, in the operator's order.
	List() []flavor.Flavor
}

// FlavorsOf returns the flavors that a user may choose. The sole owner and admins may choose all.
func (s *Service) FlavorsOf(who Caller) []flavor.Flavor {
	if s.opts.Flavors == nil {
		return nil
	}
	var list []flavor.Flavor
	for _, f := range s.opts.Flavors.List() {
		if mayChoose(who, &f) {
			list = append(list, f)
		}
	}
	return list
}

func mayChoose(who Caller, f *flavor.Flavor) bool {
	return who.SeesAll() || f.MayChoose(who.Name, who.Groups)
}

// chooseFlavor sets the flavor of a start: the one that the client names, else the kernelspec's.
func (s *Service) chooseFlavor(who Caller, req *launcher.Request) error {
	name, by := req.Env[flavorVariable], "the request"
	if name == "" {
		ext, err := req.Spec.Extension()
		if err != nil {
			return err
		}
		name, by = ext.Flavor, "the kernelspec "+req.Spec.Name
	}
	if name == "" {
		return nil
	}
	shown := Shorten(name)
	if s.opts.Flavors == nil {
		return refuse(Invalid, "This gateway has no flavors, and %s asks for the flavor %q.", by, shown)
	}
	var names []string
	for _, f := range s.FlavorsOf(who) {
		if f.Name == name {
			req.Flavor = &f
			req.Env[flavorVariable] = name
			return nil
		}
		names = append(names, f.Name)
	}
	may := "You may choose: " + strings.Join(names, ", ") + "."
	if len(names) == 0 {
		may = "You may choose no flavor."
	}
	return refuse(Invalid, "You may not use the flavor %q, which %s asks for. %s", shown, by, may)
}

// shownSpecs returns the kernelspecs that a user may start: each as it is, with each of its profiles, and with each of
// the listed flavors that the user may choose. A kernelspec that names its flavor is offered only as it is.
func (s *Service) shownSpecs(who Caller) []kernelspecs.Spec {
	specs, flavors := s.opts.Specs.List(), s.FlavorsOf(who)
	var list, profiled []kernelspecs.Spec
	for _, spec := range specs {
		profiled = append(profiled, profiledSpecs(spec)...)
		if hasFlavor(spec) {
			continue
		}
		for i := range flavors {
			if !flavors[i].Unlisted {
				list = append(list, withFlavor(spec, &flavors[i]))
			}
		}
	}
	// The last one of a name counts: a kernelspec's own name, then one with a profile, then one with a flavor.
	return slices.Concat(list, profiled, specs)
}

func withFlavor(spec kernelspecs.Spec, f *flavor.Flavor) kernelspecs.Spec {
	spec.DisplayName += " (" + f.Title() + ")"
	spec.Name += flavorSeparator + f.Name
	return spec
}

// split returns the kernelspec of a name that shownWithProfile or withFlavor has made: with its profile, or beside its
// flavor. ok is false for other names. The spec has its own name.
func (s *Service) split(name string) (spec kernelspecs.Spec, f *flavor.Flavor, ok bool) {
	at := strings.LastIndex(name, flavorSeparator)
	if at < 0 {
		return spec, nil, false
	}
	if spec, ok = s.opts.Specs.Get(name[:at]); !ok {
		return spec, nil, false
	}
	wanted := strings.ToLower(name[at+len(flavorSeparator):])
	if with, ok, err := spec.WithProfile(wanted); ok && err == nil {
		return with, nil, true
	}
	if s.opts.Flavors != nil && !hasFlavor(spec) {
		for _, f := range s.opts.Flavors.List() {
			if f.Name == wanted {
				return spec, &f, true
			}
		}
	}
	return spec, nil, false
}

// SpecNames returns the names under which a front end finds the kernelspecs of kernels. It works out each name once,
// since that reads the file of flavors and parses kernelspecs. It is used for one list, by one goroutine.
type SpecNames struct {
	s     *Service
	known map[specKey]string
}

// specKey is what a name follows from.
type specKey struct{ spec, profile, flavor string }

// SpecNames returns names of which none is worked out yet.
func (s *Service) SpecNames() *SpecNames { return &SpecNames{s, map[specKey]string{}} }

// Of returns the name for a kernel. With a flavor that is not listed, it is the kernelspec's own name.
func (n *SpecNames) Of(k *launcher.Kernel) string {
	if k.Profile == "" && k.Flavor == "" {
		return k.SpecName
	}
	key := specKey{k.SpecName, k.Profile, k.Flavor}
	name, known := n.known[key]
	if !known {
		name = n.s.specName(k)
		n.known[key] = name
	}
	return name
}

func (s *Service) specName(k *launcher.Kernel) string {
	if name, ok := s.profiledName(k); ok {
		return name
	}
	if s.opts.Flavors == nil || k.Flavor == "" {
		return k.SpecName
	}
	if spec, ok := s.opts.Specs.Get(k.SpecName); !ok || hasFlavor(spec) || !s.lists(k.Flavor) {
		return k.SpecName
	}
	name := k.SpecName + flavorSeparator + k.Flavor
	if _, another := s.opts.Specs.Get(name); another {
		return k.SpecName
	}
	return name
}

// lists reports whether kernelspecs are offered with a flavor to users who may choose it.
func (s *Service) lists(name string) bool {
	return slices.ContainsFunc(s.opts.Flavors.List(), func(f flavor.Flavor) bool { return f.Name == name && !f.Unlisted })
}

// hasFlavor reports whether a kernelspec names its flavor.
func hasFlavor(spec kernelspecs.Spec) bool {
	// A list asks for each kernel, and parsing takes 14 µs. Without the word, only an escaped key can be it.
	if !bytes.Contains(spec.Metadata, []byte("flavor")) && !bytes.Contains(spec.Metadata, []byte(`\u`)) {
		return false
	}
	ext, err := spec.Extension()
	return err == nil && ext.Flavor != ""
}
