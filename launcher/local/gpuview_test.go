package local

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

// TestViewGPUs: the machine's GPUs are shown with the kernels that hold them.
func TestViewGPUs(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"), gpuJSON("GPU-b"), gpuJSON("GPU-c"), gpuJSON("GPU-d", "MIG-1", "MIG-2"))
	l := p.launcher()
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
	rooms, _, err := l.FlavorRoom(t.Context(), []flavor.Flavor{
		{Name: "two", GPU: &flavor.Devices{Count: 2}},
		{Name: "slice", MIG: &flavor.MIG{Profile: "1g.10gb"}},
		{Name: "quarter", Replica: &flavor.Replica{Replicas: 4}},
		{Name: "much", GPUMem: &flavor.GPUMem{Units: 40}},
		{Name: "claim", DRA: &flavor.DRA{Template: "x"}},
		{Name: "cpu", None: true},
	})
	want := map[string]launcher.GPURoom{"two": {Free: 0, Total: 1}, "slice": {Free: 2, Total: 2},
		"quarter": {Free: 8, Total: 20}, "much": {}, "claim": {}}
	if err != nil || !maps.Equal(rooms, want) {
		t.Errorf("%+v, %v, want %+v", rooms, err, want)
	}
}

// TestViewGPUs_None: a machine without GPUs says why.
func TestViewGPUs_None(t *testing.T) {
	view, err := newPlace(t).launcher().ViewGPUs(t.Context())
	if err != nil || len(view.Nodes) != 0 || len(view.Missing) != 1 ||
		!strings.HasPrefix(view.Missing[0], "This machine has no GPUs for kernels: ") {
		t.Errorf("%+v, %v", view, err)
	}
}

// TestViewGPUs_NotListed: while a driver is asked for the first time, the view ends with its context, and no room is
// known.
func TestViewGPUs_NotListed(t *testing.T) {
	p := newPlace(t)
	p.withGPUs(gpuJSON("GPU-a"))
	pipe := filepath.Join(t.TempDir(), "list")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "ekg-gpu") // answers when somebody writes into the pipe
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec cat "+pipe+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	p.change = func(o *Options, _ *timing) { o.GPUProgram = program }
	l := p.launcher()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.ViewGPUs(ctx); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("view: %v", err)
	}
	rooms, _, err := l.FlavorRoom(t.Context(), []flavor.Flavor{{Name: "one", GPU: &flavor.Devices{Count: 1}}})
	if err != nil || rooms != nil {
		t.Errorf("rooms: %v, %v", rooms, err)
	}
}
