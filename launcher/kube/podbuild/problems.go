package podbuild

import (
	"slices"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// Check returns a function that returns the problems of a kernelspec whose kernels run as pods, for kernelspecs.Options
// and kernelspecs.Check. The operator has these flavors, by name. If flavors is nil, they are not known, and no
// kernelspec has a problem with its flavor. The function may be called concurrently.
func (o Options) Check(flavors map[string]flavor.Flavor) func(kernelspecs.Spec) []kernelspecs.Problem {
	o = o.withDefaults()
	return func(spec kernelspecs.Spec) []kernelspecs.Problem {
		if _, problems := o.Policy.Read(spec, wish.ExampleOwner, o.KernelImage); len(problems) > 0 {
			return problems
		}
		return slices.Concat(o.Policy.ProfileProblems(spec, o.KernelImage), wish.FlavorProblems(spec, flavors),
			o.warmProblems(spec, flavors))
	}
}

// warmProblems warns of a kernelspec that wants warm kernels and can have none.
func (o Options) warmProblems(spec kernelspecs.Spec, flavors map[string]flavor.Flavor) []kernelspecs.Problem {
	var e wish.Extension
	places, _ := spec.DecodeExtension(&e) // it has no problems
	if e.Warm == 0 {
		return nil
	}
	start := launcher.Request{ID: uuid.Nil.String(), Spec: spec}
	f, known := flavors[e.Flavor]
	if known {
		start.Flavor = &f
	}
	why := noWarmGPUs
	switch {
	case e.Flavor == "" || known:
		_, err := NewWarmKind(o, start)
		if err == nil {
			return nil
		}
		why = err.Error()
	case flavors != nil, o.mayWarmGPUs(): // it is unknown, which is a problem of its own, or all are
		return nil
	}
	problem := places.Problem(wish.ShortPath("warm"), "has no effect: "+why)
	problem.Warning = true
	return []kernelspecs.Problem{problem}
}
