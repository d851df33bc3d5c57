package local

import (
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// TestViewGPUs: the machine's GPUs are shown with the kernels that hold them.
func TestViewGPUs(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"), gpuJSON("GPU-b"), gpuJSON("GPU-c"), gpuJSON("GPU-d", "MIG-1", "MIG-2"))
	l := p.open()
	p.mustStart(l, 1, "2")
	p.mustStart(l, 2, "1")
	view, err := l.ViewGPUs(t.Context())
	if err != nil || len(view.Missing) != 0 || len(view.Nodes) != 1 || len(view.Nodes[0].Pools) != 2 {
		t.Fatalf("%+v, %v", view, err)
	}
	whole, instances := view.Nodes[0].Pools[0], view.Nodes[0].Pools[1]
	if whole.Resource != "nvidia.com/gpu" || whole.Unit != launcher.UnitGPU || whole.Total != 3 ||
		len(whole.Devices) != 3 || whole.Model != "Tesla T4" {
		t.Errorf("%+v", whole)
	}
	if instances.Resource != "nvidia.com/mig-1g.10gb" || instances.Total != 2 || whole.Held()+instances.Held() != 3 {
		t.Errorf("%+v, %+v", whole, instances)
	}
	for _, h := range whole.Holders {
		if h.Owner != "ann" || h.SpecName != "fake" || h.Since.IsZero() ||
			h.Kernel == id(1) && (h.Amount != 2 || len(h.Devices) != 2) {
			t.Errorf("%+v", h)
		}
	}
}

// TestViewGPUs_None: a machine without GPUs says why.
func TestViewGPUs_None(t *testing.T) {
	view, err := newPlace(t).open().ViewGPUs(t.Context())
	if err != nil || len(view.Nodes) != 0 || len(view.Missing) != 1 ||
		!strings.HasPrefix(view.Missing[0], "This machine has no GPUs for kernels: ") {
		t.Errorf("%+v, %v", view, err)
	}
}
