package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/gateway"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// topCommand is `ekg top`.
func topCommand(read func(*cli.Context) (*settings.Settings, error)) *cli.Command {
	top := &cli.Command{
		Name: "top", Usage: "show who holds GPUs, and whether they compute",
		Description: "You see totals and your own kernels. Admins see all kernels. docs/gpus.md explains the numbers.",
		Subcommands: []*cli.Command{
			{
				Name: "nodes", Usage: "GPUs by node: how many there are, how many are held, and how many compute",
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "shares", Aliases: []string{"s"},
						Usage: "only nodes whose GPUs are shared, with a column for each GPU"},
					&cli.BoolFlag{Name: "details", Aliases: []string{"d"}, Usage: "also what each kernel and pod holds"},
				},
				Action: func(c *cli.Context) error { return onKernels(c, read, 0, 0, refreshed(topNodes)) },
			},
			{
				Name: "kernels", Usage: "kernels with GPUs: how much these compute, and their memory",
				Action: func(c *cli.Context) error { return onKernels(c, read, 0, 0, refreshed(topKernels)) },
			},
			{
				Name: "users", Usage: "users with GPUs: how many they hold, and how many compute",
				Action: func(c *cli.Context) error { return onKernels(c, read, 0, 0, refreshed(topUsers)) },
			},
		},
	}
	for _, sub := range top.Subcommands {
		sub.OnUsageError = refuseUsage
		sub.Flags = slices.Concat(sub.Flags, []cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "print it again every 2 seconds, until Ctrl-C"},
			outputFlag,
		}, gatewayFlags(), settingFlags("state-dir"))
	}
	return top
}

// refreshed does something once, or with --watch again and again. On a terminal each output replaces the one before.
func refreshed(do func(context.Context, *kernelRun, io.Writer) error) func(context.Context, *kernelRun) error {
	return func(ctx context.Context, r *kernelRun) error {
		out := r.c.App.Writer
		if !r.c.Bool("watch") {
			return do(ctx, r, out)
		}
		clearScreen := ""
		if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			clearScreen = "\x1b[H\x1b[2J"
		}
		for {
			var text strings.Builder
			err := do(ctx, r, &text)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return err
			}
			if _, err := io.WriteString(out, clearScreen+text.String()); err != nil {
				return err
			}
			if pause(ctx, refreshPause) != nil {
				return nil
			}
		}
	}
}

// gpus asks for the view of GPUs.
func (g *gatewayClient) gpus(ctx context.Context) (answer gateway.GPUs, err error) {
	return answer, g.read(ctx, "api/gpus", nil, "the GPUs", &answer)
}

// topNodes is `ekg top nodes`. Gateways of one cluster have the same nodes, so the first one that is asked answers.
func topNodes(ctx context.Context, r *kernelRun, w io.Writer) error {
	view, err := r.gateways[0].gpus(ctx)
	if err != nil {
		return err
	}
	return r.format.printNodes(w, view, r.c.Bool("shares"), r.c.Bool("details"), time.Now())
}

// printNodes prints the view of GPUs at a time.
func (f outputFormat) printNodes(w io.Writer, view gateway.GPUs, shares, details bool, now time.Time) error {
	switch f {
	case formatJSON, formatYAML:
		return f.printValue(w, view)
	case formatName:
		for _, n := range view.Nodes {
			if _, err := fmt.Fprintln(w, kernelspecs.Printable(n.Name)); err != nil {
				return err
			}
		}
		return nil
	}
	var b strings.Builder
	switch {
	case shares && details:
		shareDetails(&b, view)
	case shares:
		shareTable(&b, view)
	default:
		nodeTable(&b, view, f == formatWide)
		if details {
			holderTable(&b, view, now)
		}
	}
	for _, t := range view.Totals {
		if shares && !isShared(t.Unit) {
			continue
		}
		fmt.Fprintf(&b, "\nAllocated/Total %s In Cluster:\n%s\n", kernelspecs.Printable(t.Resource), totalText(t))
	}
	if !shares {
		aheadTable(&b, view)
	}
	for _, text := range view.Missing {
		fmt.Fprintf(&b, "\n%s\n", kernelspecs.Printable(text))
	}
	_, err := io.WriteString(w, strings.TrimPrefix(b.String(), "\n"))
	return err
}

// totalText is like "12/14 (GiB) (85%), busy 4/12": a part of a percent is cut.
func totalText(t gateway.GPUTotal) string {
	text := amount(t.Held) + "/" + total(t.Total, t.Unhealthy)
	if t.Unit != launcher.UnitGPU {
		text += " (" + string(t.Unit) + ")"
	}
	if t.Total > 0 {
		text += fmt.Sprintf(" (%d%%)", int(100*t.Held/t.Total))
	}
	if t.Measured > 0 {
		text += ", busy " + amount(t.Busy) + "/" + amount(t.Measured)
	}
	if t.Warm > 0 {
		text += ", and " + amount(t.Warm) + " by warm kernels"
	}
	return text
}

// aheadTable has a line for each kernelspec that has warm kernels.
func aheadTable(b *strings.Builder, view gateway.GPUs) {
	if len(view.Ahead) == 0 {
		return
	}
	lines := [][]string{{"KEPT READY", "SPEC", "FLAVOR", "READY/WANTED", ""}}
	for _, a := range view.Ahead {
		text := a.Reason
		if a.Waiting > 0 {
			text = fmt.Sprintf("%d of %d wait for a node", a.Waiting, a.Wanted)
			if a.Reason != "" { // only admins get it
				text += ": " + a.Reason
			}
		}
		lines = append(lines, []string{"warm kernels", a.Spec, a.Flavor, fmt.Sprintf("%d/%d", a.Ready, a.Wanted), text})
	}
	b.WriteString("\n")
	table(b, lines)
}

func isShared(u launcher.GPUUnit) bool { return u != launcher.UnitGPU }

// amount prints up to two decimals.
func amount(a float64) string {
	text := strconv.FormatFloat(a, 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// total prints an amount that is 0 if it is unknown, or if all there is is unhealthy.
func total(a, unhealthy float64) string {
	if a == 0 && unhealthy == 0 {
		return "?"
	}
	return amount(a)
}

// table writes lines of cells in columns, without spaces at the end of lines.
func table(b *strings.Builder, lines [][]string) {
	var padded strings.Builder
	writeTable(&padded, lines) //nolint:errcheck // a strings.Builder takes everything
	for line := range strings.Lines(padded.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
}

// nodeTable has a line for each pool of each node.
func nodeTable(b *strings.Builder, view gateway.GPUs, wide bool) {
	head := []string{"NODE", "STATUS", "MODEL", "RESOURCE", "ALLOCATED/TOTAL", "BUSY/MEASURED"}
	if wide {
		head = append(head, "UNIT", "UNHEALTHY", "OTHERS", "WARM", "ADDRESS")
	}
	lines := [][]string{head}
	for _, n := range view.Nodes {
		for _, p := range n.Pools {
			busy := ""
			if p.Measured > 0 {
				busy = amount(p.Busy) + "/" + amount(p.Measured)
			}
			cells := []string{n.Name, n.Status, p.Model, p.Resource, amount(p.Held) + "/" + total(p.Total, p.Unhealthy), busy}
			switch {
			case wide:
				cells = append(cells, string(p.Unit), amount(p.Unhealthy), amount(p.Others), amount(p.Warm),
					n.Address)
			default:
				cells[4] += besides(p)
			}
			lines = append(lines, cells)
		}
	}
	if len(lines) == 1 {
		b.WriteString("No GPUs.\n")
		return
	}
	table(b, lines)
}

// besides is what a pool has besides what is allocated and free, like " (1 unhealthy, 2 by warm kernels)".
func besides(p gateway.GPUPool) string {
	var parts []string
	for _, part := range []struct {
		of   float64
		text string
	}{{p.Unhealthy, "unhealthy"}, {p.Warm, "by warm kernels"}} {
		if part.of > 0 {
			parts = append(parts, amount(part.of)+" "+part.text)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// holderTable has a line for each holder.
func holderTable(b *strings.Builder, view gateway.GPUs, now time.Time) {
	lines := [][]string{{"NODE", "KERNEL OR POD", "OWNER", "SPEC", "FLAVOR", "RESOURCE", "HOLDS", "BUSY", "HELD FOR",
		"IDLE FOR", ""}}
	for _, n := range view.Nodes {
		for _, p := range n.Pools {
			for _, h := range p.Holders {
				busy, state := "", ""
				if h.Measured > 0 {
					busy = amount(h.Busy)
				}
				if h.Ending {
					state = "ending"
				}
				lines = append(lines, []string{n.Name, cmp.Or(h.Kernel, h.Namespace+"/"+h.Pod), h.Owner, h.Spec, h.Flavor,
					p.Resource, amount(h.Amount), busy, age(now, parseTime(h.Since)), age(now, parseTime(h.IdleSince)), state})
			}
			if p.Others > 0 {
				lines = append(lines, []string{n.Name, "(others)", "", "", "", p.Resource, amount(p.Others), "", "", "", ""})
			}
		}
	}
	if len(lines) > 1 {
		b.WriteString("\n")
		table(b, lines)
	}
}

// parseTime reads a time of an answer. The time is zero if the answer has none.
func parseTime(text string) time.Time {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return at
}

// shareTable has a line for each node with shared GPUs and a column for each GPU, as arena's `top node -s`.
func shareTable(b *strings.Builder, view gateway.GPUs) {
	most := 0
	for _, n := range view.Nodes {
		for _, p := range n.Pools {
			if isShared(p.Unit) {
				most = max(most, len(p.Devices))
			}
		}
	}
	head := []string{"NAME", "IPADDRESS"}
	for i := range most {
		head = append(head, fmt.Sprintf("GPU%d(Allocated/Total)", i))
	}
	lines := [][]string{head}
	for _, n := range view.Nodes {
		for _, p := range n.Pools {
			if !isShared(p.Unit) {
				continue
			}
			cells := []string{n.Name, n.Address}
			for _, d := range p.Devices {
				cells = append(cells, amount(d.Held)+"/"+amount(d.Total))
			}
			if len(p.Devices) == 0 {
				cells = append(cells, amount(p.Held)+"/"+total(p.Total, p.Unhealthy))
			}
			lines = append(lines, cells)
		}
	}
	if len(lines) == 1 {
		b.WriteString("No shared GPUs.\n")
		return
	}
	if most == 0 {
		lines[0] = append(lines[0], "GPUS(Allocated/Total)")
	}
	table(b, lines)
}

// shareDetails has a table for each node with shared GPUs, with what each pod holds of each GPU, as arena's
// `top node -s -d`.
func shareDetails(b *strings.Builder, view gateway.GPUs) {
	for _, n := range view.Nodes {
		for _, p := range n.Pools {
			if !isShared(p.Unit) {
				continue
			}
			fmt.Fprintf(b, "\nNAME:       %s\nIPADDRESS:  %s\n\n", kernelspecs.Printable(n.Name),
				kernelspecs.Printable(cmp.Or(n.Address, "-")))
			head := []string{"NAME", "NAMESPACE"}
			for _, d := range p.Devices {
				head = append(head, fmt.Sprintf("GPU%d(Allocated)", d.Index))
			}
			if len(p.Devices) == 0 {
				head = append(head, "GPUS(Allocated)")
			}
			lines := [][]string{head}
			for _, h := range p.Holders {
				lines = append(lines, append([]string{cmp.Or(h.Pod, h.Kernel), h.Namespace}, onDevices(p, h.Devices, h.Amount)...))
			}
			if p.Others > 0 {
				lines = append(lines, append([]string{"(others)", ""}, onDevices(p, ofOthers(p), p.Others)...))
			}
			part := ""
			if p.Total > 0 {
				part = fmt.Sprintf(" (%d%%)", int(100*p.Held/p.Total))
			}
			table(b, lines)
			fmt.Fprintf(b, "Allocated :  %s%s\nTotal     :  %s\n", amount(p.Held), part, total(p.Total, p.Unhealthy))
		}
	}
}

// onDevices has a cell for each GPU of a pool: the part of an amount that is on it, or "?" if that is not known.
func onDevices(p gateway.GPUPool, held map[string]float64, all float64) (cells []string) {
	switch {
	case len(p.Devices) == 0:
		return []string{amount(all)}
	case len(p.Devices) == 1 && len(held) == 0:
		return []string{amount(all)} // it has no other place
	}
	for _, d := range p.Devices {
		if len(held) == 0 {
			cells = append(cells, "?")
			continue
		}
		cells = append(cells, amount(held[strconv.Itoa(d.Index)]))
	}
	return cells
}

// ofOthers returns what holders that are not shown have of each GPU of a pool; nil if that is not known.
func ofOthers(p gateway.GPUPool) map[string]float64 {
	const rounding = 1e-6
	rest, known := map[string]float64{}, 0.0
	for _, d := range p.Devices {
		index := strconv.Itoa(d.Index)
		of := d.Held
		for _, h := range p.Holders {
			of -= h.Devices[index]
		}
		if of > rounding {
			rest[index], known = of, known+of
		}
	}
	if known < p.Others-rounding {
		return nil
	}
	return rest
}

// noGPUKernels is printed in place of an empty table.
const noGPUKernels = "No kernels with GPUs."

// gpuKernel is a kernel that has GPUs, or waits for them.
type gpuKernel struct {
	kernelRow
	samples []api.GPU
	waits   bool // it holds none yet
}

// gpuKernels lists the kernels that have GPUs or wait for them, those with most first.
func (r *kernelRun) gpuKernels(ctx context.Context) ([]gpuKernel, error) {
	rows, err := r.rows(ctx)
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
			GPU []api.GPU `json:"gpu"`
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

// use returns how much of what the kernel has computes, and since when it is idle.
func (k *gpuKernel) use() launcher.GPUHolder {
	h := launcher.GPUHolder{Amount: k.asks()}
	h.Measure(k.samples)
	return h
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
	lines := [][]string{{"KERNEL", "OWNER", "SPEC", "GPU", "MODEL", "UTIL", "MEMORY", "STATE", "GPU IDLE"}}
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
		cells := []string{k.ID[:min(length, len(k.ID))], k.Owner, k.Name, cmp.Or(k.Flavor, amount(k.asks())), model, "", "",
			k.State, ""}
		if known > 0 {
			cells[5] = fmt.Sprintf("%.0f%%", 100*utilization/float64(known))
		}
		if memory > 0 {
			cells[6] = fmt.Sprintf("%.1f/%.1f GiB", used/(1<<30), memory/(1<<30))
		}
		cells[8] = age(now, k.use().IdleSince)
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
	Kernels  int     `json:"kernels"` // that have GPUs
	Waiting  int     `json:"waiting"` // kernels that wait for GPUs
	GPUs     float64 `json:"gpus"`
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
		if k.waits {
			row.Waiting++
			continue
		}
		use := k.use()
		row.Kernels++
		row.GPUs, row.Busy, row.Measured = row.GPUs+use.Amount, row.Busy+use.Busy, row.Measured+use.Measured
	}
	slices.SortStableFunc(rows, func(a, b userRow) int {
		return cmp.Or(cmp.Compare(b.GPUs, a.GPUs), cmp.Compare(a.User, b.User))
	})
	return rows
}

// printUsers prints users with GPUs.
func (f outputFormat) printUsers(w io.Writer, rows []userRow) error {
	var b strings.Builder
	switch {
	case f == formatJSON, f == formatYAML:
		return f.printValue(w, rows)
	case f == formatName:
		for _, row := range rows {
			fmt.Fprintln(&b, kernelspecs.Printable(row.User))
		}
	case len(rows) == 0:
		b.WriteString(noGPUKernels + "\n")
	default:
		lines := [][]string{{"USER", "KERNELS", "GPUS", "BUSY/MEASURED", "WAITING"}}
		for _, row := range rows {
			busy := ""
			if row.Measured > 0 {
				busy = amount(row.Busy) + "/" + amount(row.Measured)
			}
			lines = append(lines, []string{row.User, strconv.Itoa(row.Kernels), amount(row.GPUs), busy,
				strconv.Itoa(row.Waiting)})
		}
		table(&b, lines)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
