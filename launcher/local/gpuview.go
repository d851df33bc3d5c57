package local

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/lend"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// ViewGPUs implements launcher.GPUViewer: this machine is the only node. It asks no driver.
func (l *Launcher) ViewGPUs(ctx context.Context) (launcher.GPUs, error) {
	held, reason, err := l.lender.Held(ctx)
	if err != nil {
		return launcher.GPUs{}, err
	}
	warm, err := l.warm.holders()
	if err != nil {
		return launcher.GPUs{}, err
	}
	view := viewOf(held, reason, warm, l.holderOf)
	view.Ahead = l.warm.Ahead()
	for i := range view.Ahead {
		a := &view.Ahead[i]
		for _, one := range warm {
			if one.SpecName == a.SpecName && !one.ending {
				a.Ready++
			}
		}
		if a.Ready >= a.Wanted {
			a.Reason = ""
		}
	}
	view.Sort()
	return view, nil
}

// holderOf returns a kernel as the holder of an amount of one GPU.
type holderOf func(id, uuid string, amount float64) launcher.GPUHolder

// viewOf returns the view of these GPUs, and of the warm kernels that hold some. The reason says why there are none.
func viewOf(held []gpu.Held, reason string, holders []warmHolder, of holderOf) (view launcher.GPUs) {
	if len(held) == 0 {
		if reason == "" {
			reason = "no GPU was found"
		}
		view.Missing = []string{"This machine has no GPUs for kernels: " + reason + "."}
		return view
	}
	warm := map[string]warmEntry{}
	for _, w := range holders {
		warm[w.ID] = w.warmEntry
	}
	name, err := os.Hostname()
	if err != nil {
		name = "localhost"
	}
	node := launcher.GPUNode{Name: name, Status: "Ready"}
	for _, h := range held {
		addToPool(&node, h, warm, of)
	}
	view.Nodes = []launcher.GPUNode{node}
	return view
}

// addToPool adds a GPU to the pool of those of the same model and kind. The names of pools are those of NVIDIA's device
// plugin.
func addToPool(node *launcher.GPUNode, h gpu.Held, warm map[string]warmEntry, of holderOf) {
	resource := "nvidia.com/gpu"
	if h.Profile != "" {
		resource = "nvidia.com/mig-" + h.Profile
	}
	at := slices.IndexFunc(node.Pools, func(p launcher.GPUPool) bool {
		return p.Resource == resource && p.Model == h.Model
	})
	if at < 0 {
		at = len(node.Pools)
		node.Pools = append(node.Pools, launcher.GPUPool{Resource: resource, Model: h.Model, Unit: launcher.UnitGPU})
	}
	pool := &node.Pools[at]
	if h.Healthy {
		pool.Total++
	} else {
		pool.Unhealthy++
	}
	index := len(pool.Devices)
	pool.Devices = append(pool.Devices, launcher.GPUDevice{Index: index, UUID: h.UUID, Total: 1})
	for _, holder := range h.Holders {
		amount := holder.Share.Float()
		one, holders := launcher.GPUHolder{}, &pool.Holders
		if e, is := warm[holder.Kernel]; is {
			one, holders = e.holds(amount), &pool.Warm
		} else {
			one = of(holder.Kernel, h.UUID, amount)
		}
		at := slices.IndexFunc(*holders, func(g launcher.GPUHolder) bool {
			return g.Kernel == one.Kernel && g.Kernel != ""
		})
		if at < 0 {
			one.Devices = map[int]float64{index: amount}
			*holders = append(*holders, one)
			continue
		}
		known := &(*holders)[at]
		known.Amount += amount
		known.Devices[index] += amount
		known.Measured, known.Busy = known.Measured+one.Measured, known.Busy+one.Busy
		switch { // all of it must be idle
		case one.IdleSince.IsZero(), known.IdleSince.IsZero():
			known.IdleSince = time.Time{}
		case one.IdleSince.After(known.IdleSince):
			known.IdleSince = one.IdleSince
		}
	}
}

// holds returns a warm kernel as the holder of an amount of one GPU.
func (e warmEntry) holds(amount float64) launcher.GPUHolder {
	return launcher.GPUHolder{Kernel: e.ID, SpecName: e.SpecName, Flavor: e.Flavor, Since: e.Created, Amount: amount}
}

// holderOf implements holderOf.
func (l *Launcher) holderOf(id, uuid string, amount float64) launcher.GPUHolder {
	h := launcher.GPUHolder{Kernel: id, Amount: amount}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels.byID[id]
	if k == nil {
		return h // another gateway has just started it
	}
	h.Owner, h.SpecName, h.Flavor, h.Since = k.rec.Owner, k.rec.SpecName, k.rec.Flavor, k.rec.Created.UTC()
	h.Ending = k.stop != nil
	if k.supervisor.Streaming {
		h.Measure(slices.DeleteFunc(slices.Clone(k.supervisor.Status.GPU), func(g api.GPU) bool { return g.UUID != uuid }))
	}
	return h
}

// FlavorRoom implements launcher.GPUViewer. It does not wait for the first list of GPUs.
func (l *Launcher) FlavorRoom(ctx context.Context, flavors []flavor.Flavor) (
	rooms map[string]launcher.GPURoom, view launcher.GPUs, err error,
) {
	if !l.lender.Listed() {
		return nil, view, nil
	}
	held, reason, err := l.lender.Held(ctx)
	if err != nil {
		return nil, view, err
	}
	warm, err := l.warm.holders()
	if err != nil {
		return nil, view, err
	}
	view = viewOf(held, reason, warm, l.holderOf)
	view.Sort()
	held = withoutWarm(held, warm)
	rooms = map[string]launcher.GPURoom{}
	for i := range flavors {
		f := &flavors[i]
		if f.None {
			continue
		}
		want, err := lend.WantOf(f)
		if err != nil {
			rooms[f.Name] = launcher.GPURoom{} // it is for kernels in a cluster
			continue
		}
		free, total := want.Room(held)
		rooms[f.Name] = launcher.GPURoom{Free: free, Total: total}
	}
	return rooms, view, nil
}
