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

// warmKernels returns which warm kernels the kernelspecs want. A kernelspec whose flavor does not exist is left out: no
// kernel can be started by it.
func (w *wanted) warmKernels() (warm []launcher.Warm) {
	var flavors []flavor.Flavor
	if w.flavors != nil {
		flavors = w.flavors.List()
	}
	for _, spec := range w.specs.List() {
		ext, err := spec.Extension()
		if err != nil || ext.Warm == 0 {
			continue // of an error: the launcher refuses it too
		}
		start := launcher.Request{ID: uuid.Nil.String(), Spec: spec}
		if ext.Flavor != "" {
			at := slices.IndexFunc(flavors, func(f flavor.Flavor) bool { return f.Name == ext.Flavor })
			if at < 0 {
				continue
			}
			start.Flavor = &flavors[at]
		}
		warm = append(warm, launcher.Warm{Start: start, Count: ext.Warm})
	}
	return warm
}
