// Package gpus is what a gateway says about GPUs: View is the answer of GET /api/gpus, and UsageRow is an entry of that
// of GET /api/usage. The gateway makes the answers, and ekg top and ekg usage read them, also on machines without a
// gateway. So the package imports no other package of the module.
package gpus

import (
	"cmp"
	"math"
	"slices"
)

// AheadWarm is the kind of all that is kept ready.
const AheadWarm = "warm"

// WholeGPU is the unit of pools whose GPUs, or instances of them (MIG), one pod has for itself.
const WholeGPU = "GPU"

// View is the answer of GET /api/gpus.
type View struct {
	Totals  []Total  `json:"totals"`  // of all nodes, by resource
	Nodes   []Node   `json:"nodes"`   // those with GPUs, by name
	Ahead   []Ahead  `json:"ahead"`   // what is kept ready before any user asks: warm kernels
	Missing []string `json:"missing"` // sentences: what the view lacks
}

// Total is the GPUs of all nodes that pods ask for by one resource name. Amounts are in Unit.
type Total struct {
	Resource string `json:"resource"`
	Unit     string `json:"unit"`
	Amounts
	Warm float64 `json:"warm,omitempty"` // amount of warm kernels, which give way to others; not a part of Held
}

// Ahead is the warm kernels of one kernelspec. Not all of them have GPUs.
type Ahead struct {
	Kind    string `json:"kind"` // AheadWarm
	Spec    string `json:"kernelspec"`
	Flavor  string `json:"flavor,omitempty"`
	Wanted  int    `json:"wanted"`
	Ready   int    `json:"ready"`            // pods that have a node
	Waiting int    `json:"waiting"`          // pods that wait for a node
	Reason  string `json:"reason,omitempty"` // why there are fewer than wanted; only admins see it
}

// Amounts are amounts of a pool, or of pools with the same resource.
type Amounts struct {
	Total     float64 `json:"total"` // amount for pods; 0 if it is not known
	Held      float64 `json:"held"`
	Measured  float64 `json:"measured"`  // the part of Held whose use is known
	Busy      float64 `json:"busy"`      // the part of Measured that computes
	Unhealthy float64 `json:"unhealthy"` // amount that no pod can have; not a part of Total
}

// Node is one machine.
type Node struct {
	Name    string `json:"name"`
	Address string `json:"address,omitempty"`
	Status  string `json:"status,omitempty"` // Ready, NotReady, SchedulingDisabled
	Pools   []Pool `json:"pools"`
}

// Pool is the GPUs of one machine that pods ask for by one resource name. Amounts are in Unit.
type Pool struct {
	Resource string `json:"resource"`
	Model    string `json:"model,omitempty"`
	Unit     string `json:"unit"`
	Amounts
	Devices []Device `json:"devices,omitempty"` // absent if the node does not tell them apart
	Holders []Holder `json:"holders"`           // those that the caller may see
	Others  float64  `json:"others"`            // the part of Held whose holders the caller may not see
	Warm    float64  `json:"warm,omitempty"`    // amount of warm kernels; not a part of Held
}

// Device is one GPU of a pool.
type Device struct {
	Index int     `json:"index"`
	UUID  string  `json:"uuid,omitempty"`
	Total float64 `json:"total"`
	Held  float64 `json:"held"`
}

// Holder is a kernel, or another pod, that holds a part of a pool.
type Holder struct {
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

// How usage can be grouped.
const (
	UsageByKernel = "kernel"
	UsageByUser   = "user"
	UsageBySpec   = "spec"
	UsageByFlavor = "flavor"
)

// UsageGroups are the values of the parameter by.
var UsageGroups = []string{UsageByUser, UsageBySpec, UsageByFlavor, UsageByKernel}

// UsageRow is how many GPU seconds one kernel, or a group of kernels, has held and used: GPUs times seconds.
type UsageRow struct {
	Name     string  `json:"name"` // of the group; a kernel's id
	Kernels  int     `json:"kernels"`
	Held     float64 `json:"held_seconds"`
	Measured float64 `json:"measured_seconds"` // the part of Held in which the GPUs' use is known
	Busy     float64 `json:"busy_seconds"`     // the part of Measured in which they computed

	// Of one kernel only.
	Owner   string  `json:"owner,omitempty"`
	Spec    string  `json:"kernelspec,omitempty"`
	Flavor  string  `json:"flavor,omitempty"`
	GPUs    float64 `json:"gpus,omitempty"`
	Started string  `json:"started_at,omitempty"`
	Ended   string  `json:"ended_at,omitempty"` // absent while it lives
}

// Seconds rounds to milliseconds.
func Seconds(s float64) float64 { return math.Round(max(0, s)*1000) / 1000 }

// GroupUsage sums the rows of kernels by one of UsageGroups. The group that held most comes first.
func GroupUsage(kernels []UsageRow, by string) []UsageRow {
	rows := slices.Clone(kernels)
	if by != UsageByKernel {
		rows = []UsageRow{}
		at := map[string]int{}
		for _, k := range kernels {
			name := map[string]string{UsageByUser: k.Owner, UsageBySpec: k.Spec, UsageByFlavor: k.Flavor}[by]
			i, ok := at[name]
			if !ok {
				i = len(rows)
				at[name] = i
				rows = append(rows, UsageRow{Name: name})
			}
			row := &rows[i]
			row.Kernels++
			row.Held, row.Measured, row.Busy = Seconds(row.Held+k.Held), Seconds(row.Measured+k.Measured),
				Seconds(row.Busy+k.Busy)
		}
	}
	slices.SortStableFunc(rows, func(a, b UsageRow) int {
		return cmp.Or(cmp.Compare(b.Held, a.Held), cmp.Compare(a.Name, b.Name))
	})
	return rows
}
