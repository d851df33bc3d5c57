package local

import (
	"context"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
)

// GPUWaits implements launcher.GPUViewer. It leaves out the kernels of jobs.
func (l *Launcher) GPUWaits(ctx context.Context) ([]launcher.GPUWait, error) {
	all := l.lender.People()
	if len(all) == 0 {
		return nil, nil
	}
	held, _, err := l.lender.Held(ctx)
	if err != nil {
		return nil, err
	}
	warm, err := l.warm.holders()
	if err != nil {
		return nil, err
	}
	held = withoutWarm(held, warm)
	waits := make([]launcher.GPUWait, len(all))
	for i, w := range all {
		waits[i] = launcher.GPUWait{Kernel: w.Kernel, For: w.For, Holders: enough(w.Want, held)}
	}
	slices.SortFunc(waits, launcher.LongestFirst)
	return waits, nil
}

// enough returns the kernels whose end would each leave enough GPUs. There are none if enough are free already.
func enough(want devices.Want, held []gpu.Held) (kernels []string) {
	if free, _ := want.Room(held); free > 0 {
		return nil
	}
	tried := map[string]bool{"": true}
	for _, h := range held {
		for _, holder := range h.Holders {
			if tried[holder.Kernel] {
				continue
			}
			tried[holder.Kernel] = true
			if free, _ := want.Room(without(held, holder.Kernel)); free > 0 {
				kernels = append(kernels, holder.Kernel)
			}
		}
	}
	return kernels
}

// without returns GPUs as if a kernel held none.
func without(held []gpu.Held, kernel string) []gpu.Held {
	left := slices.Clone(held)
	for i := range left {
		left[i].Holders = slices.DeleteFunc(slices.Clone(left[i].Holders), func(h gpu.Holder) bool {
			return h.Kernel == kernel
		})
	}
	return left
}
