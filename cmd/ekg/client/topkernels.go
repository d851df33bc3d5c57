package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// noGPUKernels is printed in place of an empty table.
const noGPUKernels = "No kernels with GPUs."

// gpuSample is what a kernel's model says about one of its GPUs.
type gpuSample struct {
	Model       string    `json:"model"`
	MemoryTotal int64     `json:"memory_total"`
	MemoryUsed  int64     `json:"memory_used"`
	Utilization *float64  `json:"utilization"` // 0 to 1; nil: unknown
	BusySince   time.Time `json:"busy_since"`  // neither this nor IdleSince: unknown
	IdleSince   time.Time `json:"idle_since"`
}

// gpuKernel is a kernel that has GPUs, or waits for them.
type gpuKernel struct {
	kernelRow
	samples []gpuSample
	waits   bool // it holds none yet
}

// gpuKernels lists the kernels that have GPUs or wait for them, those with most first.
func (r *kernelRun) gpuKernels(ctx context.Context) ([]gpuKernel, error) {
	rows, _, err := kernelList.all(ctx, r)
	if err != nil {
		return nil, err
	}
	holds := map[string]bool{}
	for _, g := range r.gateways {
		view, err := g.gpus(ctx)
		if err != nil {
			return nil, err
		}
		for _, n := range view.Nodes {
			for _, p := range n.Pools {
				for _, h := range p.Holders {
					holds[h.Kernel] = true
				}
			}
		}
	}
	var all []gpuKernel
	for _, row := range rows {
		k := gpuKernel{kernelRow: row}
		var model struct {
			GPU []gpuSample `json:"gpu"`
		}
		if err := json.Unmarshal(row.whole, &model); err != nil {
			return nil, fmt.Errorf("kernel %s: %w", row.ID, err)
		}
		k.samples = model.GPU
		k.waits = row.State == "starting" && !holds[row.ID] && len(k.samples) == 0
		if k.asks() > 0 && row.State != "dead" {
			all = append(all, k)
		}
	}
	slices.SortStableFunc(all, func(a, b gpuKernel) int { return cmp.Compare(b.asks(), a.asks()) })
	return all, nil
}

// asks is the number of GPUs that the kernel has or waits for, with shares by their size. Where the launcher assigns
// none, they are those that are sampled.
func (k *gpuKernel) asks() float64 {
	if k.GPUs > 0 {
		return k.GPUs
	}
	return float64(len(k.samples))
}

// gpuUse is what is known of the use of a kernel's GPUs.
type gpuUse struct {
	measured  float64   // the GPUs for which it is known whether they compute
	busy      float64   // the part of measured that computes
	idleSince time.Time // since when no GPU computes; zero: one does, or it is not known
}

// use returns how much of what the kernel has computes, and since when it is idle.
func (k *gpuKernel) use() (use gpuUse) {
	busy, known := 0, 0
	for _, g := range k.samples {
		if !g.BusySince.IsZero() {
			busy, known = busy+1, known+1
		} else if !g.IdleSince.IsZero() {
			known++
			if g.IdleSince.After(use.idleSince) {
				use.idleSince = g.IdleSince
			}
		}
	}
	if n := float64(len(k.samples)); n > 0 {
		use.busy, use.measured = k.asks()*float64(busy)/n, k.asks()*float64(known)/n
	}
	if busy > 0 || known < len(k.samples) {
		use.idleSince = time.Time{}
	}
	return use
}

// topKernels is `ekg top kernels`.
func topKernels(ctx context.Context, r *kernelRun, w io.Writer) error {
	all, err := r.gpuKernels(ctx)
	if err != nil {
		return err
	}
	return r.format.printGPUKernels(w, all, time.Now())
}

// printGPUKernels prints kernels with GPUs at a time.
func (f outputFormat) printGPUKernels(w io.Writer, all []gpuKernel, now time.Time) error {
	rows := make([]kernelRow, len(all))
	for i := range all {
		rows[i] = all[i].kernelRow
	}
	switch {
	case f != formatTable && f != formatWide:
		return f.printKernels(w, rows, now)
	case len(rows) == 0:
		_, err := fmt.Fprintln(w, noGPUKernels)
		return err
	}
	length := idLength(rows)
	if f == formatWide {
		length = len("00000000-0000-0000-0000-000000000000")
	}
	lines := [][]string{{"KERNEL", "OWNER", "SPEC", "GPU", "MODEL", "UTIL", "MEMORY", "STATE", "GPU IDLE", ""}}
	for i := range all {
		k := &all[i]
		var used, memory, utilization float64
		known, model := 0, ""
		for _, g := range k.samples {
			used, memory, model = used+float64(g.MemoryUsed), memory+float64(g.MemoryTotal), cmp.Or(model, g.Model)
			if g.Utilization != nil {
				known, utilization = known+1, utilization+*g.Utilization
			}
		}
		cells := []string{k.ID[:min(length, len(k.ID))], k.Owner, k.Name,
			cmp.Or(k.Flavor, amount(k.asks())) + parkedSuffix(&k.kernelRow, age(now, k.Parked.Since)), model, "", "", k.State,
			"", k.Parked.Reason}
		if known > 0 {
			cells[5] = fmt.Sprintf("%.0f%%", 100*utilization/float64(known))
		}
		if memory > 0 {
			cells[6] = fmt.Sprintf("%.1f/%.1f GiB", used/(1<<30), memory/(1<<30))
		}
		cells[8] = age(now, k.use().idleSince)
		lines = append(lines, cells)
	}
	var b strings.Builder
	table(&b, lines)
	_, err := io.WriteString(w, b.String())
	return err
}

// userRow is a line of `ekg top users`.
type userRow struct {
	User     string  `json:"user"`
	Kernels  int     `json:"kernels"`  // that have GPUs
	Waiting  int     `json:"waiting"`  // kernels that wait for GPUs, those that were parked too
	Parked   int     `json:"parked"`   // kernels that have given their GPU back, and do not wait for it
	GPUs     float64 `json:"gpus"`     // that kernels hold
	Measured float64 `json:"measured"` // of GPUs, for which it is known whether they compute
	Busy     float64 `json:"busy"`     // of Measured, that compute
}

// topUsers is `ekg top users`.
func topUsers(ctx context.Context, r *kernelRun, w io.Writer) error {
	all, err := r.gpuKernels(ctx)
	if err != nil {
		return err
	}
	return r.format.printUsers(w, byUser(all))
}

// byUser sums the kernels of each user. The user who holds most comes first.
func byUser(all []gpuKernel) []userRow {
	rows := []userRow{}
	for i := range all {
		k := &all[i]
		at := slices.IndexFunc(rows, func(u userRow) bool { return u.User == k.Owner })
		if at < 0 {
			at = len(rows)
			rows = append(rows, userRow{User: k.Owner})
		}
		row := &rows[at]
		switch {
		case k.waits, k.Parked.State == "waking":
			row.Waiting++
			continue
		case k.Parked.State == "parked", k.Parked.State == "none":
			row.Parked++
			continue
		}
		use := k.use()
		row.Kernels++
		row.GPUs, row.Busy, row.Measured = row.GPUs+k.asks(), row.Busy+use.busy, row.Measured+use.measured
	}
	slices.SortStableFunc(rows, func(a, b userRow) int {
		return cmp.Or(cmp.Compare(b.GPUs, a.GPUs), cmp.Compare(a.User, b.User))
	})
	return rows
}

// printUsers prints users with GPUs.
func (f outputFormat) printUsers(w io.Writer, rows []userRow) error {
	var names []string
	lines := [][]string{{"USER", "KERNELS", "GPUS", "BUSY/MEASURED", "WAITING", "PARKED"}}
	for _, row := range rows {
		busy := ""
		if row.Measured > 0 {
			busy = amount(row.Busy) + "/" + amount(row.Measured)
		}
		names = append(names, row.User)
		lines = append(lines, []string{row.User, strconv.Itoa(row.Kernels), amount(row.GPUs), busy,
			strconv.Itoa(row.Waiting), strconv.Itoa(row.Parked)})
	}
	return f.print(w, rows, names, func(b *strings.Builder) {
		if len(rows) == 0 {
			b.WriteString(noGPUKernels + "\n")
			return
		}
		table(b, lines)
	})
}
