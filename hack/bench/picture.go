package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// The measures of the picture, in pixels.
const (
	chartWidth  = 330 // of the bars' area
	labelWidth  = 165
	barHeight   = 9
	groupGap    = 10
	chartTop    = 64
	chartMargin = 20
)

// bars are the peers in a picture, with their colours.
var bars = []struct{ peer, name, color string }{
	{peerEKG, "ekg", "#1a6fb0"},
	{peerEG, "Enterprise Gateway", "#d98b2b"},
	{peerJS, "jupyter_server", "#9a9a9a"},
}

// chart is one of the two halves of the picture. Its axis is logarithmic.
type chart struct {
	title     string
	from, to  float64 // ends of the axis
	ticks     []float64
	tick      func(v float64) string
	scenarios []string
	metrics   []string // the first that a scenario has is shown
}

// picture returns the SVG of docs/benchmarks.md: ekg and the other gateways as parts of direct, with the JSON framing.
func picture(r *results) string {
	var output, trips []string
	for _, s := range r.scenarios() {
		switch {
		case strings.HasPrefix(s, "output "):
			output = append(output, s)
		case strings.HasPrefix(s, "round trip"):
			trips = append(trips, s)
		}
	}
	charts := []chart{
		{"Output rate, as a part of direct", 0.001, 1, []float64{0.001, 0.01, 0.1, 0.5, 1},
			func(v float64) string { return number(v*100) + " %" }, output, []string{"messages/s", "MB/s"}},
		{"Round trip (median), as a multiple of direct", 1, 1000, []float64{1, 2, 10, 100, 1000},
			func(v float64) string { return number(v) + "x" }, trips, []string{"p50 µs"}},
	}
	rows := max(len(output), len(trips), 1)
	height := chartTop + rows*(len(bars)*barHeight+groupGap) + 40
	width := 2 * (labelWidth + chartWidth + chartMargin + 40)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="sans-serif" font-size="11">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	for i, bar := range bars {
		x := chartMargin + i*170
		fmt.Fprintf(&b, `<rect x="%d" y="10" width="12" height="12" fill="%s"/><text x="%d" y="20">%s</text>`+"\n", x,
			bar.color, x+17, bar.name)
	}
	for i, c := range charts {
		c.draw(&b, r, i*width/2, height)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (c chart) draw(b *strings.Builder, r *results, left, height int) {
	axis := left + labelWidth + chartMargin
	fmt.Fprintf(b, `<text x="%d" y="42" font-weight="bold">%s</text>`+"\n", left+chartMargin, c.title)
	for _, v := range c.ticks {
		x := axis + c.place(v)
		fmt.Fprintf(b, `<path d="M%d %dV%d" stroke="#dddddd"/>`+"\n", x, chartTop-4, height-30)
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle" fill="#555555">%s</text>`+"\n", x, height-16, c.tick(v))
	}
	y := chartTop
	for _, s := range c.scenarios {
		label := strings.TrimPrefix(strings.TrimPrefix(s, "output "), "round trip ")
		label = strings.TrimPrefix(strings.TrimPrefix(label, "round trip, "), ", ")
		label = strings.NewReplacer(", ten clients on ten kernels", ", ten clients", " on another kernel", "").Replace(label)
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", axis-8, y+len(bars)*barHeight/2+4,
			html.EscapeString(label))
		for _, bar := range bars {
			c.bar(b, r, s, bar.peer, bar.color, axis, y)
			y += barHeight
		}
		y += groupGap
	}
}

// bar draws one bar with its value. Without a value it draws nothing.
func (c chart) bar(b *strings.Builder, r *results, scenario, peer, color string, axis, y int) {
	for _, metric := range c.metrics {
		s, ok := r.ratio(r.find(scenario, metric, peer, framingJSON), peerPlain)
		if !ok {
			continue
		}
		w := max(c.place(s.median), 1)
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`+"\n", axis, y, w, barHeight-1, color)
		fmt.Fprintf(b, `<text x="%d" y="%d" font-size="9" fill="#333333">%s</text>`+"\n", axis+w+3, y+barHeight-1,
			html.EscapeString(c.tick(rounded(s.median))))
		return
	}
}

// place is how far from the axis' left end a value lies.
func (c chart) place(v float64) int {
	v = min(max(v, c.from), c.to)
	return int(math.Round(chartWidth * math.Log(v/c.from) / math.Log(c.to/c.from)))
}

// rounded keeps two digits of a number.
func rounded(v float64) float64 {
	if v <= 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(v))-1)
	return math.Round(math.Round(v/unit)*unit*1e6) / 1e6
}
