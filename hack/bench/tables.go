package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// sections divide the scenarios. A scenario belongs to the first section of which its name has a word.
var sections = []struct {
	title string
	words []string
}{
	{"Output", []string{"output "}},
	{"A slow reader", []string{"slow reader"}},
	{"Round trips", []string{"round trip", "clients with"}},
	{"Start and end", []string{"start", "delete"}},
	{"At rest", []string{"idle kernels"}},
}

// tables returns a table for each section, in Markdown, with medians and ratios. Below it are the failures.
func tables(r *results) string {
	var b strings.Builder
	rest := r.scenarios()
	for _, section := range sections {
		var mine, others []string
		for _, s := range rest {
			if slices.ContainsFunc(section.words, func(word string) bool { return strings.Contains(s, word) }) {
				mine = append(mine, s)
			} else {
				others = append(others, s)
			}
		}
		rest = others
		if len(mine) > 0 {
			fmt.Fprintf(&b, "\n### %s\n\n| | | direct | EG | JS | ekg | ekg/direct | ekg/EG |\n", section.title)
			b.WriteString("| --- | --- | --- | --- | --- | --- | --- | --- |\n")
			for _, s := range mine {
				appendRows(&b, r, s)
			}
			appendFailures(&b, r, mine)
		}
	}
	return b.String()
}

// beforeTable returns a table of ekg beside the programs of -before; "" without those.
func beforeTable(r *results) string {
	var b strings.Builder
	for _, f := range r.Figures {
		before := r.find(f.Scenario, f.Metric, peerBefore, f.Framing)
		if f.Peer != peerEKG || before == nil || f.Metric == metricFailed {
			continue
		}
		if b.Len() == 0 {
			b.WriteString("\n| | | before | ekg | ekg/before | before/direct | ekg/direct |\n" +
				"| --- | --- | --- | --- | --- | --- | --- |\n")
		}
		fmt.Fprintf(&b, "| %s | %s %s | %s | %s | %s | %s | %s |\n", f.Scenario, f.Metric, f.Framing, cell(before), cell(f),
			ratioCell(r, f, peerBefore), ratioCell(r, before, peerPlain), ratioCell(r, f, peerPlain))
	}
	return b.String()
}

// appendRows writes the rows of a scenario.
func appendRows(b *strings.Builder, r *results, scenario string) {
	name := scenario
	for _, f := range rowsOf(r, scenario) {
		framing := f.Framing
		if !hasBothFramings(r, scenario) {
			framing = ""
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", name, strings.TrimSpace(f.Metric+" "+framing),
			cell(r.find(scenario, f.Metric, peerPlain, "")), cell(r.find(scenario, f.Metric, peerEG, f.Framing)),
			cell(r.find(scenario, f.Metric, peerJS, f.Framing)), cell(r.find(scenario, f.Metric, peerEKG, f.Framing)),
			ratioCell(r, f, peerPlain), ratioCell(r, f, peerEG))
		name = ""
	}
}

func hasBothFramings(r *results, scenario string) bool {
	return slices.ContainsFunc(r.Figures, func(f *figure) bool {
		return f.Scenario == scenario && f.Framing == framingV1
	})
}

// appendFailures writes what failed in some scenarios, as a list.
func appendFailures(b *strings.Builder, r *results, scenarios []string) {
	first := true
	for _, f := range r.Figures {
		if !slices.Contains(scenarios, f.Scenario) || len(f.Failures) == 0 {
			continue
		}
		if first {
			b.WriteString("\nWhat was lost or failed:\n\n")
			first = false
		}
		text := strings.Join(strings.Fields(f.Failures[0]), " ")
		if len(text) > 200 {
			text = strings.ToValidUTF8(text[:200], "") + " ..."
		}
		times := "once"
		if len(f.Failures) > 1 {
			times = fmt.Sprintf("%d times; the first", len(f.Failures))
		}
		fmt.Fprintf(b, "- %s, %s, %s: `%s`\n", f.Scenario, strings.TrimSpace(f.Peer+" "+f.Framing), times,
			strings.ReplaceAll(text, "`", "'"))
	}
}

// rowsOf returns one figure for each row of a scenario: of ekg, or of another peer where ekg has none.
func rowsOf(r *results, scenario string) []*figure {
	var rows []*figure
	for _, f := range r.Figures {
		if f.Scenario != scenario || f.Metric == metricFailed {
			continue
		}
		same := func(o *figure) bool {
			return o.Metric == f.Metric && (o.Framing == f.Framing || o.Peer == peerPlain || f.Peer == peerPlain)
		}
		switch i := slices.IndexFunc(rows, same); {
		case i < 0:
			rows = append(rows, f)
		case f.Peer == peerEKG || rows[i].Peer == peerPlain:
			rows[i] = f
		}
	}
	slices.SortStableFunc(rows, func(a, b *figure) int { return order(a.Metric) - order(b.Metric) })
	return rows
}

// cell is the median of a figure.
func cell(f *figure) string {
	if f == nil || len(f.Values) == 0 {
		return ""
	}
	return number(median(f.Values))
}

// number writes a figure with three digits, and thousands with a comma.
func number(v float64) string {
	if v < 1000 {
		s := strconv.FormatFloat(v, 'f', digits(v), 64)
		if strings.Contains(s, ".") {
			s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
		}
		return s
	}
	s := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// digits is how many of three digits are behind the point.
func digits(v float64) int {
	switch {
	case v >= 100:
		return 0
	case v >= 10:
		return 1
	default:
		return 2
	}
}

// ratioCell is the median of the ratios of ekg to a peer, with the lowest and the highest.
func ratioCell(r *results, f *figure, peer string) string {
	if f.Peer != peerEKG && f.Peer != peerBefore {
		return ""
	}
	s, ok := r.ratio(f, peer)
	if !ok {
		return ""
	}
	if number(s.low) == number(s.high) {
		return number(s.median)
	}
	return fmt.Sprintf("%s (%s to %s)", number(s.median), number(s.low), number(s.high))
}

// The lines around the generated part of docs/benchmarks.md.
const docsBegin, docsEnd = "<!-- figures -->\n", "<!-- /figures -->\n"

// generated returns the generated part of docs/benchmarks.md.
func generated(r *results) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n![How fast output is, as a part of what libzmq reaches, and how long a round trip takes](%s)\n\n",
		strings.TrimPrefix(pictureFile, "docs/"))
	fmt.Fprintf(&b, "Measured on %s with `%s`, %d rounds, in %s.\n", strings.Split(r.Date, "T")[0],
		r.Command, r.Rounds, r.Took)
	fmt.Fprintf(&b, "The machine: %s.\n\nVersions: ", r.Machine)
	var versions []string
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		versions = append(versions, name+" "+r.Versions[name])
	}
	b.WriteString(strings.Join(versions, ", ") + ".\n")
	b.WriteString(tables(r) + "\n")
	return b.String()
}

// writeDocs writes the generated part of docs/benchmarks.md, and its picture.
func writeDocs(r *results) error {
	old, err := os.ReadFile(docsFile)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(old), docsBegin)
	_, after, ok2 := strings.Cut(rest, docsEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no lines %q and %q", docsFile, docsBegin, docsEnd)
	}
	text := before + docsBegin + generated(r) + docsEnd + after
	if err := os.WriteFile(docsFile, []byte(text), 0o644); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(pictureFile), 0o755); err != nil {
		return err
	}
	return os.WriteFile(pictureFile, []byte(picture(r)), 0o644)
}
