package kernels

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/elastic-kernel-gateway/ekg/gateway/gpus"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// missingForUsers is what others than admins read about a view that lacks something.
const missingForUsers = "The view is incomplete; admins see why."

// GPUs returns all GPUs as the caller may see them. An admin sees who holds them, others see totals, their own kernels,
// and what is kept ready for flavors that they may choose.
func (s *Service) GPUs(ctx context.Context, who Caller) (gpus.View, error) {
	view, err := s.launcher.ViewGPUs(ctx)
	if err != nil {
		return gpus.View{}, err
	}
	all := who.SeesAll()
	answer := gpus.View{Nodes: []gpus.Node{}, Totals: totalsOf(view), Ahead: []gpus.Ahead{},
		Missing: append([]string{}, view.Missing...)}
	flavors := s.FlavorsOf(who)
	for _, a := range view.Ahead {
		if !all {
			a.Reason = "" // it may have words of the scheduler
			if a.Flavor != "" && !slices.ContainsFunc(flavors, func(f flavor.Flavor) bool { return f.Name == a.Flavor }) {
				continue
			}
		}
		answer.Ahead = append(answer.Ahead, gpus.Ahead{Kind: gpus.AheadWarm, Spec: a.SpecName, Flavor: a.Flavor,
			Wanted: a.Wanted, Ready: a.Ready, Waiting: a.Waiting, Reason: a.Reason})
	}
	if !all && len(view.Missing) > 0 {
		answer.Missing = []string{missingForUsers} // the sentences may have words of the API server
	}
	for i := range view.Nodes {
		n := &view.Nodes[i]
		node := gpus.Node{Name: n.Name, Status: n.Status, Pools: []gpus.Pool{}}
		if all {
			node.Address = n.Address
		}
		for j := range n.Pools {
			node.Pools = append(node.Pools, poolModel(&n.Pools[j], func(h *launcher.GPUHolder) bool {
				return all || h.Kernel != "" && who.Owns(h.Owner)
			}))
		}
		answer.Nodes = append(answer.Nodes, node)
	}
	return answer, nil
}

// amountsOf sums what is held of a pool.
func amountsOf(p *launcher.GPUPool) gpus.Amounts {
	a := gpus.Amounts{Total: p.Total, Unhealthy: p.Unhealthy, Held: p.Held()}
	for i := range p.Holders {
		a.Measured += p.Holders[i].Measured
		a.Busy += p.Holders[i].Busy
	}
	return a
}

// totalsOf sums the pools with the same resource and unit.
func totalsOf(view launcher.GPUs) []gpus.Total {
	totals := []gpus.Total{}
	for i := range view.Nodes {
		for j := range view.Nodes[i].Pools {
			p := &view.Nodes[i].Pools[j]
			at := slices.IndexFunc(totals,
				func(t gpus.Total) bool { return t.Resource == p.Resource && t.Unit == string(p.Unit) })
			if at < 0 {
				at = len(totals)
				totals = append(totals, gpus.Total{Resource: p.Resource, Unit: string(p.Unit)})
			}
			sum, a := &totals[at], amountsOf(p)
			sum.Total, sum.Unhealthy, sum.Held = sum.Total+a.Total, sum.Unhealthy+a.Unhealthy, sum.Held+a.Held
			sum.Measured, sum.Busy = sum.Measured+a.Measured, sum.Busy+a.Busy
			sum.Warm += p.HeldWarm()
		}
	}
	slices.SortFunc(totals, func(a, b gpus.Total) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Unit, b.Unit))
	})
	return totals
}

// poolModel returns a pool with the holders that may be seen.
func poolModel(p *launcher.GPUPool, seen func(*launcher.GPUHolder) bool) gpus.Pool {
	pool := gpus.Pool{Resource: p.Resource, Model: p.Model, Unit: string(p.Unit), Amounts: amountsOf(p),
		Holders: []gpus.Holder{}, Warm: p.HeldWarm()}
	held := p.HeldOn()
	for i := range p.Holders {
		h := &p.Holders[i]
		if !seen(h) {
			pool.Others += h.Amount
			continue
		}
		model := gpus.Holder{Kernel: h.Kernel, Owner: h.Owner, Spec: h.SpecName, Flavor: h.Flavor, Namespace: h.Namespace,
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
		pool.Devices = append(pool.Devices, gpus.Device{Index: d.Index, UUID: d.UUID, Total: d.Total, Held: held[d.Index]})
	}
	return pool
}
