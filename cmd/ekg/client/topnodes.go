package client

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/gpus"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// totalText is like "12/14 (GiB) (85%), busy 4/12": a part of a percent is cut.
func totalText(t gpus.Total) string {
	text := amount(t.Held) + "/" + total(t.Total, t.Unhealthy)
	if t.Unit != gpus.WholeGPU {
		text += " (" + t.Unit + ")"
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
func aheadTable(b *strings.Builder, view gpus.View) {
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

func isShared(unit string) bool { return unit != gpus.WholeGPU }

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
func nodeTable(b *strings.Builder, view gpus.View, wide bool) {
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
				cells = append(cells, p.Unit, amount(p.Unhealthy), amount(p.Others), amount(p.Warm),
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
func besides(p gpus.Pool) string {
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
func holderTable(b *strings.Builder, view gpus.View, now time.Time) {
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
func shareTable(b *strings.Builder, view gpus.View) {
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
func shareDetails(b *strings.Builder, view gpus.View) {
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
func onDevices(p gpus.Pool, held map[string]float64, all float64) (cells []string) {
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
func ofOthers(p gpus.Pool) map[string]float64 {
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
