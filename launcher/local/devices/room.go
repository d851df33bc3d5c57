package devices

import (
	"slices"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// Room returns how many kernels that ask for the same fit on these units: now, and if nothing were lent.
func (w Want) Room(held []gpu.Held) (free, total int) {
	for _, h := range held {
		u := unit{uuid: h.UUID, model: h.Model, profile: h.Profile, part: strings.HasPrefix(h.UUID, "MIG-"),
			memory: h.MemoryTotal}
		if !h.Healthy || !w.matches(u) {
			continue
		}
		left, share := gpu.One, max(1, w.of(u))
		for _, holder := range h.Holders {
			left -= holder.Share
		}
		free, total = free+int(max(0, left)/share), total+int(gpu.One/share)
	}
	return free / w.count(), total / w.count()
}

// Enough returns the kernels whose end would each leave enough GPUs. There are none if enough are free already.
func (w Want) Enough(held []gpu.Held) (kernels []string) {
	if free, _ := w.Room(held); free > 0 {
		return nil
	}
	tried := map[string]bool{"": true}
	for _, h := range held {
		for _, holder := range h.Holders {
			if tried[holder.Kernel] {
				continue
			}
			tried[holder.Kernel] = true
			if free, _ := w.Room(Without(held, holder.Kernel)); free > 0 {
				kernels = append(kernels, holder.Kernel)
			}
		}
	}
	return kernels
}

// Without returns GPUs as if a kernel held none.
func Without(held []gpu.Held, kernel string) []gpu.Held {
	left := slices.Clone(held)
	for i := range left {
		left[i].Holders = slices.DeleteFunc(slices.Clone(left[i].Holders), func(h gpu.Holder) bool {
			return h.Kernel == kernel
		})
	}
	return left
}
