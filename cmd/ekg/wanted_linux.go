package main

import (
	"slices"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

// wanted is which warm kernels the kernelspecs want. Launchers ask for it in each round of their regular work, and at
// each start. It may be used concurrently.
type wanted struct {
	specs   *kernelspecs.Finder
	flavors *flavor.File // nil without --flavors
}

// made is what was made of the present kernelspecs and flavors.
type made struct {
	flavors []flavor.Flavor
	warm    []launcher.Warm
}

// warmKernels returns which warm kernels the kernelspecs want. A kernelspec whose flavor does not exist is left out: no
// kernel can be started by it.
func (w *wanted) warmKernels() []launcher.Warm { return w.now().warm }

// now returns what the present kernelspecs and flavors want.
func (w *wanted) now() *made {
	var flavors []flavor.Flavor
	if w.flavors != nil {
		flavors = w.flavors.List()
	}
	m := &made{flavors: flavors}
	for _, spec := range w.specs.List() {
		m.add(spec)
	}
	return m
}

// add adds the warm kernels of a kernelspec.
func (m *made) add(spec kernelspecs.Spec) {
	start := launcher.Request{ID: uuid.Nil.String(), Spec: spec}
	ext, err := spec.Extension()
	if err != nil || ext.Warm == 0 {
		return // of an error: the launcher refuses it too
	}
	if ext.Flavor != "" {
		at := slices.IndexFunc(m.flavors, func(f flavor.Flavor) bool { return f.Name == ext.Flavor })
		if at < 0 {
			return
		}
		start.Flavor = &m.flavors[at]
	}
	m.warm = append(m.warm, launcher.Warm{Start: start, Count: ext.Warm})
}
