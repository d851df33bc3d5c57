package gateway

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// missingForUsers is what others than admins read about a view that lacks something.
const missingForUsers = "The view is incomplete; admins see why."

// missingViewer is what the view lacks where the launcher does not know GPUs.
const missingViewer = "This gateway does not know the GPUs of its machine."

// aheadWarm is the kind of all that is kept ready.
const aheadWarm = "warm"

// GPUs is the answer of GET /api/gpus.
type GPUs struct {
	Totals  []GPUTotal `json:"totals"`  // of all nodes, by resource
	Nodes   []GPUNode  `json:"nodes"`   // those with GPUs, by name
	Ahead   []Ahead    `json:"ahead"`   // what is kept ready before any user asks: warm kernels
	Missing []string   `json:"missing"` // sentences: what the view lacks
}

// GPUTotal is the GPUs of all nodes that pods ask for by one resource name. Amounts are in Unit.
type GPUTotal struct {
	Resource string           `json:"resource"`
	Unit     launcher.GPUUnit `json:"unit"`
	GPUAmounts
	Warm float64 `json:"warm,omitempty"` // amount of warm kernels, which give way to others; not a part of Held
}

// Ahead is the warm kernels of one kernelspec. Not all of them have GPUs.
type Ahead struct {
	Kind    string `json:"kind"` // aheadWarm
	Spec    string `json:"kernelspec"`
	Flavor  string `json:"flavor,omitempty"`
	Wanted  int    `json:"wanted"`
	Ready   int    `json:"ready"`            // pods that have a node
	Waiting int    `json:"waiting"`          // pods that wait for a node
	Reason  string `json:"reason,omitempty"` // why there are fewer than wanted; only admins see it
}

// GPUAmounts are amounts of a pool, or of pools with the same resource.
type GPUAmounts struct {
	Total     float64 `json:"total"` // amount for pods; 0 if it is not known
	Held      float64 `json:"held"`
	Measured  float64 `json:"measured"`  // the part of Held whose use is known
	Busy      float64 `json:"busy"`      // the part of Measured that computes
	Unhealthy float64 `json:"unhealthy"` // amount that no pod can have; not a part of Total
}

// GPUNode is one machine.
type GPUNode struct {
	Name    string    `json:"name"`
	Address string    `json:"address,omitempty"`
	Status  string    `json:"status,omitempty"` // Ready, NotReady, SchedulingDisabled
	Pools   []GPUPool `json:"pools"`
}

// GPUPool is the GPUs of one machine that pods ask for by one resource name. Amounts are in Unit.
type GPUPool struct {
	Resource string           `json:"resource"`
	Model    string           `json:"model,omitempty"`
	Unit     launcher.GPUUnit `json:"unit"`
	GPUAmounts
	Devices []GPUDevice `json:"devices,omitempty"` // absent if the node does not tell them apart
	Holders []GPUHolder `json:"holders"`           // those that the caller may see
	Others  float64     `json:"others"`            // the part of Held whose holders the caller may not see
	Warm    float64     `json:"warm,omitempty"`    // amount of warm kernels; not a part of Held
}

// GPUDevice is one GPU of a pool.
type GPUDevice struct {
	Index int     `json:"index"`
	UUID  string  `json:"uuid,omitempty"`
	Total float64 `json:"total"`
	Held  float64 `json:"held"`
}

// GPUHolder is a kernel, or another pod, that holds a part of a pool.
type GPUHolder struct {
	Kernel    string             `json:"kernel,omitempty"` // absent for other pods
	Owner     string             `json:"owner,omitempty"`
	Spec      string             `json:"kernelspec,omitempty"`
	Flavor    string             `json:"flavor,omitempty"`
	Namespace string             `json:"namespace,omitempty"`
	Pod       string             `json:"pod,omitempty"`
	Amount    float64            `json:"amount"`
	Devices   map[string]float64 `json:"devices,omitempty"` // the part of Amount on each device, by its index
	Measured  float64            `json:"measured"`
	Busy      float64            `json:"busy"`
	Since     string             `json:"since,omitempty"`
	IdleSince string             `json:"idle_since,omitempty"` // absent if it computes, or if that is not known
	Ending    bool               `json:"ending,omitempty"`     // its pod is being deleted
}

// getGPUs answers with all GPUs. An admin sees who holds them, others see totals, their own kernels, and what is kept
// ready for flavors that they may choose.
func (g *Gateway) getGPUs(w http.ResponseWriter, r *call) error {
	view, err := g.viewGPUs(r.Context())
	if err != nil {
		return err
	}
	all := r.Who.SeesAll()
	answer := GPUs{Nodes: []GPUNode{}, Totals: totalsOf(view), Ahead: []Ahead{},
		Missing: append([]string{}, view.Missing...)}
	flavors := g.kernels.FlavorsOf(r.Who)
	for _, a := range view.Ahead {
		if !all {
			a.Reason = "" // it may have words of the scheduler
			if a.Flavor != "" && !slices.ContainsFunc(flavors, func(f flavor.Flavor) bool { return f.Name == a.Flavor }) {
				continue
			}
		}
		answer.Ahead = append(answer.Ahead, Ahead{Kind: aheadWarm, Spec: a.SpecName, Flavor: a.Flavor, Wanted: a.Wanted,
			Ready: a.Ready, Waiting: a.Waiting, Reason: a.Reason})
	}
	if !all && len(view.Missing) > 0 {
		answer.Missing = []string{missingForUsers} // the sentences may have words of the API server
	}
	for i := range view.Nodes {
		n := &view.Nodes[i]
		node := GPUNode{Name: n.Name, Status: n.Status, Pools: []GPUPool{}}
		if all {
			node.Address = n.Address
		}
		for j := range n.Pools {
			node.Pools = append(node.Pools, poolModel(&n.Pools[j], func(h *launcher.GPUHolder) bool {
				return all || h.Kernel != "" && r.Who.Owns(h.Owner)
			}))
		}
		answer.Nodes = append(answer.Nodes, node)
	}
	return writeJSON(w, http.StatusOK, answer)
}

// getUsage answers with the usage of GPUs.
func (g *Gateway) getUsage(w http.ResponseWriter, r *call) error {
	query := r.URL.Query()
	usage, err := g.kernels.Usage(r.Context(), r.Who, query.Get("since"), query.Get("by"), query.Get("step"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, usage)
}

// viewGPUs asks the launcher.
func (g *Gateway) viewGPUs(ctx context.Context) (launcher.GPUs, error) {
	viewer, ok := g.opts.Launcher.(launcher.GPUViewer)
	if !ok {
		return launcher.GPUs{Missing: []string{missingViewer}}, nil
	}
	return viewer.ViewGPUs(ctx)
}

// amountsOf sums what is held of a pool.
func amountsOf(p *launcher.GPUPool) GPUAmounts {
	a := GPUAmounts{Total: p.Total, Unhealthy: p.Unhealthy, Held: p.Held()}
	for i := range p.Holders {
		a.Measured += p.Holders[i].Measured
		a.Busy += p.Holders[i].Busy
	}
	return a
}

// totalsOf sums the pools with the same resource and unit.
func totalsOf(view launcher.GPUs) []GPUTotal {
	type key struct {
		resource string
		unit     launcher.GPUUnit
	}
	sums := map[key]GPUTotal{}
	for i := range view.Nodes {
		for j := range view.Nodes[i].Pools {
			p := &view.Nodes[i].Pools[j]
			sum, a := sums[key{p.Resource, p.Unit}], amountsOf(p)
			sum.Total, sum.Unhealthy, sum.Held = sum.Total+a.Total, sum.Unhealthy+a.Unhealthy, sum.Held+a.Held
			sum.Measured, sum.Busy = sum.Measured+a.Measured, sum.Busy+a.Busy
			sum.Warm += p.HeldWarm()
			sums[key{p.Resource, p.Unit}] = sum
		}
	}
	totals := []GPUTotal{}
	for k := range maps.Keys(sums) {
		sum := sums[k]
		sum.Resource, sum.Unit = k.resource, k.unit
		totals = append(totals, sum)
	}
	slices.SortFunc(totals, func(a, b GPUTotal) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Unit, b.Unit))
	})
	return totals
}

// poolModel returns a pool with the holders that may be seen.
func poolModel(p *launcher.GPUPool, seen func(*launcher.GPUHolder) bool) GPUPool {
	pool := GPUPool{Resource: p.Resource, Model: p.Model, Unit: p.Unit, GPUAmounts: amountsOf(p), Holders: []GPUHolder{},
		Warm: p.HeldWarm()}
	held := p.HeldOn()
	for i := range p.Holders {
		h := &p.Holders[i]
		if !seen(h) {
			pool.Others += h.Amount
			continue
		}
		model := GPUHolder{Kernel: h.Kernel, Owner: h.Owner, Spec: h.SpecName, Flavor: h.Flavor, Namespace: h.Namespace,
			Pod: h.Pod, Amount: h.Amount, Measured: h.Measured, Busy: h.Busy, Ending: h.Ending}
		if !h.Since.IsZero() {
			model.Since = api.Timestamp(h.Since)
		}
		if !h.IdleSince.IsZero() {
			model.IdleSince = api.Timestamp(h.IdleSince)
		}
		for index, amount := range h.Devices {
			if model.Devices == nil {
				model.Devices = map[string]float64{}
			}
			model.Devices[strconv.Itoa(index)] = amount
		}
		pool.Holders = append(pool.Holders, model)
	}
	for _, d := range p.Devices {
		pool.Devices = append(pool.Devices, GPUDevice{Index: d.Index, UUID: d.UUID, Total: d.Total, Held: held[d.Index]})
	}
	return pool
}
