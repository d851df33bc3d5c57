package kernels

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

// waiters is a launcher of kernels that wait for GPUs.
type waiters struct {
	launcher.Launcher
	flavors map[string]string // by kernel
	waits   []launcher.GPUWait
}

func (w *waiters) GPUWaits(context.Context) ([]launcher.GPUWait, error) {
	return slices.Clone(w.waits), nil
}

func (w *waiters) Kernel(_ context.Context, id string) (launcher.Kernel, error) {
	f, ok := w.flavors[id]
	if !ok {
		return launcher.Kernel{}, launcher.ErrNotFound
	}
	return launcher.Kernel{ID: id, Flavor: f}, nil
}

type flavorList []flavor.Flavor

func (l flavorList) List() []flavor.Flavor { return l }

// Jobs give way to a kernel that has waited for as long as its flavor says, and to no other one.
func TestService_GPUWaits(t *testing.T) {
	l := &waiters{flavors: map[string]string{"long": "t4", "short": "t4", "patient": "h100", "plain": ""}}
	for _, id := range []string{"long", "patient", "plain", "gone"} {
		l.waits = append(l.waits, launcher.GPUWait{Kernel: id, For: 2 * time.Minute})
	}
	l.waits = append(l.waits, launcher.GPUWait{Kernel: "short", For: 2*time.Minute - 1})
	for name, c := range map[string]struct {
		flavors Flavors
		want    []string
	}{
		"no file":    {nil, nil},
		"by default": {flavorList{{Name: "t4"}, {Name: "h100"}}, nil},
		"a flavor":   {flavorList{{Name: "t4", JobsGiveWay: 2 * time.Minute}, {Name: "h100"}}, []string{"long"}},
	} {
		waits, err := New(Options{Launcher: l, Flavors: c.flavors}, nil).GPUWaits(t.Context())
		var got []string
		for _, w := range waits {
			got = append(got, w.Kernel)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}
