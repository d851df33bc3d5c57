package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// tables returns a table for each scenario, in Markdown, with medians and ratios.
func tables(r *results) string {
	var b strings.Builder
	for _, s := range r.scenarios() {
		b.WriteString("\n" + strings.ToUpper(s[:1]) + s[1:] + "\n\n| | direct | EG | JS | ekg | ekg/direct | ekg/EG |\n" +
			"| --- | --- | --- | --- | --- | --- | --- |\n")
		for _, f := range rowsOf(r, s) {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", strings.TrimSpace(f.Metric+" "+f.Framing),
				cell(r.find(s, f.Metric, peerPlain, "")), cell(r.find(s, f.Metric, peerEG, f.Framing)),
				cell(r.find(s, f.Metric, peerJS, f.Framing)), cell(r.find(s, f.Metric, peerEKG, f.Framing)),
				ratioCell(r, f, peerPlain), ratioCell(r, f, peerEG))
		}
		for _, f := range r.Figures {
			if f.Scenario == s && len(f.Failures) > 0 {
				fmt.Fprintf(&b, "\n%s %s failed %d times: %s\n", f.Peer, f.Framing, len(f.Failures), f.Failures[0])
			}
		}
	}
	return b.String()
}

// rowsOf returns one figure for each row of a scenario's table: of ekg, or of another peer where ekg has none.
func rowsOf(r *results, scenario string) []*figure {
	var rows []*figure
	for _, f := range r.Figures {
		if f.Scenario != scenario || f.Metric == metricFailed || f.Peer == peerPlain {
			continue
		}
		i := slices.IndexFunc(rows, func(o *figure) bool { return o.Metric == f.Metric && o.Framing == f.Framing })
		switch {
		case i < 0:
			rows = append(rows, f)
		case f.Peer == peerEKG:
			rows[i] = f
		}
	}
	if len(rows) == 0 { // only direct was measured
		for _, f := range r.Figures {
			if f.Scenario == scenario && f.Metric != metricFailed {
				rows = append(rows, f)
			}
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
	if f.Peer != peerEKG {
		return ""
	}
	s, ok := r.ratio(f, peer)
	if !ok {
		return ""
	}
	if s.low == s.high {
		return number(s.median)
	}
	return fmt.Sprintf("%s (%s to %s)", number(s.median), number(s.low), number(s.high))
}

// writeDocs writes the generated part of the documents.
func writeDocs(*results) error { return nil }
