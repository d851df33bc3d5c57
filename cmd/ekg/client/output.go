package client

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// outputFormat is how a command prints kernels, as in kubectl.
type outputFormat string

const (
	formatTable outputFormat = ""
	formatWide  outputFormat = "wide"
	formatJSON  outputFormat = "json"
	formatYAML  outputFormat = "yaml"
	formatName  outputFormat = "name"
)

var outputFlag = &cli.StringFlag{Name: "output", Aliases: []string{"o"},
	Usage: "`FORMAT`: json or yaml, as the gateway's API has it; wide, with more columns; name, only ids"}

func parseFormat(text string) (outputFormat, error) {
	f := outputFormat(text)
	if !slices.Contains([]outputFormat{formatTable, formatWide, formatJSON, formatYAML, formatName}, f) {
		return f, fmt.Errorf("--output %q is not json, yaml, wide or name", text)
	}
	return f, nil
}

// onlyName rejects formats that would print a kernel's model, for commands whose answer has none.
func (f outputFormat) onlyName(command string) error {
	if f == formatTable || f == formatName {
		return nil
	}
	return &UsageError{fmt.Errorf("--output %s: ekg %s prints only ids, with --output name", f, command)}
}

// print prints a value whole, only names, or what text writes.
func (f outputFormat) print(w io.Writer, value any, names []string, text func(*strings.Builder)) error {
	var b strings.Builder
	switch f {
	case formatJSON, formatYAML:
		return f.printValue(w, value)
	case formatName:
		for _, name := range names {
			fmt.Fprintln(&b, kernelspecs.Printable(name))
		}
	default:
		text(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printKernels prints a list of kernels at a time.
func (f outputFormat) printKernels(w io.Writer, all []kernelRow, now time.Time) error {
	return kernelList.print(w, f, all, func() [][]string { return kernelLines(all, now, f == formatWide) })
}

// printChange prints a kernel that was changed: its model, its id, or a text.
func (f outputFormat) printChange(w io.Writer, k kernelRow, text string) error {
	switch f {
	case formatJSON, formatYAML:
		return f.printValue(w, k.whole)
	case formatName:
		text = k.ID
	case formatWide:
		return writeTable(w, kernelLines([]kernelRow{k}, time.Now(), true))
	}
	_, err := fmt.Fprintln(w, kernelspecs.Printable(text))
	return err
}

func (f outputFormat) printValue(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if f == formatYAML {
		var node yaml.Node // keeps the order of the members
		if err := yaml.Unmarshal(text, &node); err != nil {
			return err
		}
		inBlocks(&node)
		var b bytes.Buffer
		enc := yaml.NewEncoder(&b)
		enc.SetIndent(2)
		if err := enc.Encode(&node); err != nil {
			return err
		}
		_, err := w.Write(b.Bytes())
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

// inBlocks removes the style of JSON from a document. Texts stay in quotes: some readers of YAML read yes as a boolean.
func inBlocks(n *yaml.Node) {
	n.Style &^= yaml.FlowStyle
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			child.Style &^= yaml.DoubleQuotedStyle
		}
		inBlocks(child)
	}
}

// column is a column of a table of kernels.
type column struct {
	head     string
	optional bool // left out if all its cells are empty
	cell     func(k *kernelRow) string
}

// kernelLines returns the table of kernels. If all is set, it has more columns and complete ids.
func kernelLines(kernels []kernelRow, now time.Time, all bool) [][]string {
	length := idLength(kernels)
	if all {
		length = len("00000000-0000-0000-0000-000000000000")
	}
	columns := []column{
		{"KERNEL", false, func(k *kernelRow) string { return k.ID[:min(length, len(k.ID))] }},
		{"SPEC", false, func(k *kernelRow) string { return k.Name }},
		{"OWNER", true, func(k *kernelRow) string { return k.Owner }},
		{"STATE", false, func(k *kernelRow) string { return k.State }},
		{"AGE", false, func(k *kernelRow) string { return age(now, k.Created) }},
		{"IDLE", true, func(k *kernelRow) string {
			if k.State != "idle" {
				return ""
			}
			return age(now, k.LastActivity)
		}},
		{"GPU", true, gpuCell},
		{"ENDS IN", true, func(k *kernelRow) string { return age(k.CullAt, now) }},
		{"KEPT FOR", !all, func(k *kernelRow) string { return age(k.KeepUntil, now) }},
		{"GPU KEPT FOR", true, func(k *kernelRow) string {
			if !all {
				return ""
			}
			return age(k.Parked.KeepGPUUntil, now)
		}},
		{"CLIENTS", !all, func(k *kernelRow) string {
			if !all {
				return ""
			}
			return strconv.Itoa(k.Connections)
		}},
		{"JOB", true, jobCell},
		{"REASON", true, func(k *kernelRow) string { return cmp.Or(k.Reason, k.Parked.Reason) }},
	}
	columns = slices.DeleteFunc(columns, func(c column) bool {
		return c.optional && !slices.ContainsFunc(kernels, func(k kernelRow) bool { return c.cell(&k) != "" })
	})
	lines := [][]string{make([]string, len(columns))}
	for i, c := range columns {
		lines[0][i] = c.head
	}
	for i := range kernels {
		var cells []string
		for _, c := range columns {
			cells = append(cells, c.cell(&kernels[i]))
		}
		lines = append(lines, cells)
	}
	return lines
}

// writeTable writes lines of cells in columns. An empty cell becomes "-", unless it is the last of its line. It changes
// the cells.
func writeTable(w io.Writer, lines [][]string) error {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	for _, cells := range lines {
		for i, text := range cells {
			if cells[i] = strings.ReplaceAll(kernelspecs.Printable(text), "\t", " "); text == "" && i+1 < len(cells) {
				cells[i] = "-"
			}
		}
		if _, err := fmt.Fprintln(t, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}

// gpuCell returns a kernel's flavor, and otherwise the number of its GPUs. It says if the kernel does not have the GPU
// now.
func gpuCell(k *kernelRow) string {
	text := k.Flavor
	if text == "" && k.GPUs > 0 {
		text = strconv.FormatFloat(k.GPUs, 'f', -1, 64)
	}
	return text + parkedSuffix(k, "")
}

// parkedSuffix is like " (parked 12m)" for a kernel that does not have its GPU now, with the time since then.
func parkedSuffix(k *kernelRow, since string) string {
	text := k.Parked.State
	switch text {
	case "none":
		text = "given back"
	case "parking", "parked", "waking":
	default:
		return ""
	}
	if since != "" {
		text += " " + since
	}
	return " (" + text + ")"
}

// jobCell returns the name of a kernel's job, and how far the job is.
func jobCell(k *kernelRow) string {
	if k.Job == nil {
		return ""
	}
	return fmt.Sprintf("%s %d/%d", k.Job.Name, k.Job.Cell, k.Job.Cells)
}

// idLength returns how many characters of the ids tell these kernels apart, at least 8.
func idLength(kernels []kernelRow) int {
	ids := make([]string, len(kernels))
	for i, k := range kernels {
		ids[i] = k.ID
	}
	slices.Sort(ids)
	length := 8
	for i := 1; i < len(ids); i++ {
		same := 0
		for same < min(len(ids[i]), len(ids[i-1])) && ids[i][same] == ids[i-1][same] {
			same++
		}
		length = max(length, same+1)
	}
	return length
}

// age returns the time from since to now in one or two units, as kubectl prints ages: 45s, 12m, 3h5m, 2d. It returns ""
// if one of the times is not set.
func age(now, since time.Time) string {
	if since.IsZero() || now.IsZero() {
		return ""
	}
	d := max(now.Sub(since), 0)
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 10*time.Hour && d%time.Hour >= time.Minute:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d < day:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/day)
}
