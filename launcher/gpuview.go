package launcher

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// GPUViewer knows the GPUs of a launcher's machines, who holds them, and who waits for them. Launchers implement it.
type GPUViewer interface {
	// ViewGPUs returns the GPUs of this moment. It makes no request. The caller may change the answer.
	ViewGPUs(ctx context.Context) (GPUs, error)

	// FlavorRoom returns how many kernels of each flavor fit, by the flavor's name. It also returns the view on which the
	// numbers are based. A flavor is absent if its number is not known. If none is known yet, rooms is nil and the view is
	// empty. It makes no request.
	FlavorRoom(ctx context.Context, flavors []flavor.Flavor) (rooms map[string]GPURoom, view GPUs, err error)

	// GPUWaits returns the kernels that wait for GPUs, the longest first. It leaves out a kernel if it is not known whose
	// GPUs that could take. It makes no request.
	GPUWaits(ctx context.Context) ([]GPUWait, error)
}

// GPUWait is a kernel that waits for GPUs.
type GPUWait struct {
	Kernel  string
	For     time.Duration // how long it has waited
	Holders []string      // kernels: if any one of them ends, the GPUs are enough
}

// LongestFirst orders waits as GPUViewer returns them, for slices.SortFunc.
func LongestFirst(a, b GPUWait) int {
	return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.Kernel, b.Kernel))
}

// GPURoom is for how many kernels of one flavor there is room. Kernels of other flavors may take the same GPUs.
type GPURoom struct {
	Free  int // kernels that could start now
	Total int // kernels that could run if nothing else ran
}

// GPUs are the GPUs of all machines.
type GPUs struct {
	Nodes   []GPUNode // by name
	Ahead   []Ahead   // what is kept ready before any user asks: warm kernels
	Missing []string  // sentences for an operator: what the view lacks, and what would give it
}

// Ahead is the warm kernels of one kernelspec.
type Ahead struct {
	SpecName string
	Flavor   string // "" if the kernelspec has none
	Wanted   int
	Ready    int    // those that have a node; they may still start
	Waiting  int    // pods that wait for a node
	Reason   string // why some wait, or there are fewer than wanted, as far as is known
}

// GPUNode is one machine.
type GPUNode struct {
	Name    string
	Address string // "" if it is not known
	Labels  map[string]string
	Status  string // one or more words: Ready, NotReady, SchedulingDisabled; "" if it is not known
	Pools   []GPUPool
}

// GPUUnit is what the amounts of a pool count.
type GPUUnit string

// The units.
const (
	UnitGPU   GPUUnit = "GPU"   // whole GPUs, or instances of them (MIG), that one pod has for itself
	UnitShare GPUUnit = "share" // replicas of GPUs that a device plugin offers several times
	UnitGiB   GPUUnit = "GiB"   // memory
	UnitMiB   GPUUnit = "MiB"
	UnitPart  GPUUnit = "unit" // another measure of a scheduler extension
)

// GPUPool is the GPUs of one machine that pods ask for by one resource name. Amounts are in Unit.
type GPUPool struct {
	Resource  string // such as nvidia.com/gpu
	Model     string // "" if it is not known
	Unit      GPUUnit
	Total     float64     // amount for pods; 0 if it is not known
	Unhealthy float64     // amount that no pod can have; not a part of Total
	Devices   []GPUDevice // by index; empty if the machine does not tell them apart
	Holders   []GPUHolder // the longest holder first
	Warm      []GPUHolder // warm kernels, which give way to others. Each has its kernelspec and flavor
}

// GPUDevice is one GPU of a pool.
type GPUDevice struct {
	Index int
	UUID  string  // "" if it is not known
	Total float64 // in the pool's unit
}

// GPUHolder is a kernel, or another pod, that holds a part of a pool.
type GPUHolder struct {
	Kernel    string // id; "" for a pod that is not a kernel's
	Owner     string
	SpecName  string
	Flavor    string
	Namespace string // of its pod; "" on one machine
	Pod       string
	Amount    float64         // in the pool's unit
	Devices   map[int]float64 // the part of Amount on each device, by its index; nil if it is not known
	Since     time.Time       // UTC
	Ending    bool            // its pod is being deleted, and holds the GPUs until it is gone

	Measured  float64   // the part of Amount whose use is known
	Busy      float64   // the part of Measured that computes
	IdleSince time.Time // UTC; since when no GPU computes; zero: one does, or it is not known
}

// Measure sets what is known of the use of Amount, from samples of the GPUs that it is on.
func (h *GPUHolder) Measure(samples []api.GPU) {
	busy, known := 0, 0
	for _, g := range samples {
		switch {
		case g.BusySince != "":
			busy, known = busy+1, known+1
		case g.IdleSince != "":
			known++
			if at, err := time.Parse(api.TimeFormat, g.IdleSince); err == nil && at.After(h.IdleSince) {
				h.IdleSince = at.UTC()
			}
		}
	}
	if n := float64(len(samples)); n > 0 {
		h.Busy, h.Measured = h.Amount*float64(busy)/n, h.Amount*float64(known)/n
	}
	if busy > 0 || known < len(samples) {
		h.IdleSince = time.Time{}
	}
}

// Held returns how much of a pool is held.
func (p *GPUPool) Held() (held float64) {
	for i := range p.Holders {
		held += p.Holders[i].Amount
	}
	return held
}

// HeldWarm returns how much of a pool warm kernels hold.
func (p *GPUPool) HeldWarm() (held float64) {
	for i := range p.Warm {
		held += p.Warm[i].Amount
	}
	return held
}

// HeldOn returns how much is held on each device, by its index, as far as holders say where.
func (p *GPUPool) HeldOn() map[int]float64 {
	held := map[int]float64{}
	for i := range p.Holders {
		for index, amount := range p.Holders[i].Devices {
			held[index] += amount
		}
	}
	return held
}

// Sort orders all that has an order.
func (g *GPUs) Sort() {
	slices.SortFunc(g.Ahead, func(a, b Ahead) int {
		return cmp.Or(cmp.Compare(a.SpecName, b.SpecName), cmp.Compare(a.Flavor, b.Flavor))
	})
	slices.SortFunc(g.Nodes, func(a, b GPUNode) int { return cmp.Compare(a.Name, b.Name) })
	for i := range g.Nodes {
		pools := g.Nodes[i].Pools
		slices.SortFunc(pools, func(a, b GPUPool) int { return cmp.Compare(a.Resource, b.Resource) })
		for j := range pools {
			slices.SortFunc(pools[j].Devices, func(a, b GPUDevice) int { return cmp.Compare(a.Index, b.Index) })
			for _, holders := range [][]GPUHolder{pools[j].Holders, pools[j].Warm} {
				slices.SortFunc(holders, func(a, b GPUHolder) int {
					return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod),
						cmp.Compare(a.Kernel, b.Kernel))
				})
			}
		}
	}
}
