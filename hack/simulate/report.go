package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// table returns the generated part of the document.
func table(rows []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "![GPU-hours and waits of each policy](%s)\n\n", strings.TrimPrefix(picture, "docs/"))
	b.WriteString("| policy | GPU-hours | wait: p50 | p95 | p99 | found awake | lost |\n")
	b.WriteString("| --- | --- | --- | --- | --- | --- | --- |\n")
	group := ""
	for _, r := range rows {
		if r.group != group {
			group = r.group
			fmt.Fprintf(&b, "| **%s** | | | | | | |\n", group)
		}
		p50, p95, p99 := wait(r.quantile(0.5)), wait(r.quantile(0.95)), wait(r.quantile(0.99))
		lost := "0"
		if r.lost > 0 {
			p50, p95, p99 = "", "", ""
			lost = percent(float64(r.lost) / float64(len(r.waits)))
		}
		awake := ""
		if r.parked > 0 {
			awake = percent(float64(r.hidden) / float64(r.parked))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", r.name, percent(r.hours), p50, p95, p99, awake, lost)
	}
	return b.String()
}

// percent writes a part.
func percent(part float64) string {
	return fmt.Sprintf("%.1f %%", 100*part)
}

// minutes writes a setting.
func minutes(d time.Duration) string {
	if d >= time.Hour {
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d min", d/time.Minute)
}

// wait writes how long a cell waits.
func wait(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f min", d.Minutes())
}

// The measures of the picture, in pixels, and the ends of its axes.
const (
	plotLeft, plotTop     = 70, 50
	plotWidth, plotHeight = 560, 320
	shortest, longest     = 0.1, 3600.0 // seconds; a shorter wait is drawn as none
	fewest                = 0.1         // of reservation's GPU-hours
	goalHours, goalWait   = 0.25, 2.0
)

// colors are those of the groups.
var colors = []struct{ group, color string }{
	{others, "#777777"}, {pool, "#1a6fb0"}, {pinned, "#d98b2b"}, {moved, "#3b8f4e"},
}

// leftward are the points that have their text at the left, beside that of another one.
var leftward = []string{"the best", "1 min", "5 min", noTyping}

// plot returns the picture: the GPU-hours of each policy, and the wait that one cell of twenty exceeds.
func plot(rows []row) string {
	var b strings.Builder
	width, height := plotLeft+plotWidth+130, plotTop+plotHeight+60
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="sans-serif" font-size="11">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="#eaf4ea"/>`+"\n", plotLeft, down(goalWait),
		across(goalHours)-plotLeft, plotTop+plotHeight-down(goalWait))
	fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#3b8f4e">the goal</text>`+"\n", plotLeft+6, plotTop+plotHeight-24)
	for _, tick := range []struct {
		seconds float64
		text    string
	}{{0, "none"}, {1, "1 s"}, {10, "10 s"}, {60, "1 min"}, {600, "10 min"}, {3600, "1 h"}} {
		y := down(tick.seconds)
		fmt.Fprintf(&b, `<path d="M%d %dh%d" stroke="#dddddd"/><text x="%d" y="%d" text-anchor="end" fill="#555555">%s</text>`+
			"\n", plotLeft, y, plotWidth, plotLeft-8, y+4, tick.text)
	}
	for _, part := range []int{10, 15, 25, 50, 100} {
		x := across(float64(part) / 100)
		fmt.Fprintf(&b, `<path d="M%d %dv%d" stroke="#dddddd"/><text x="%d" y="%d" text-anchor="middle" fill="#555555">%d %%</text>`+
			"\n", x, plotTop, plotHeight, x, plotTop+plotHeight+18, part)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">GPU-hours, as a part of reservation's</text>`+"\n",
		plotLeft+plotWidth/2, plotTop+plotHeight+42)
	fmt.Fprintf(&b, `<text x="%d" y="%d">the wait that one cell of twenty exceeds</text>`+"\n", plotLeft, plotTop-30)
	for i, c := range colors {
		x := plotLeft + i*150
		fmt.Fprintf(&b, `<circle cx="%d" cy="%d" r="4" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n", x+4, plotTop-14, c.color,
			x+12, plotTop-10, c.group)
		for _, r := range rows {
			if r.group != c.group || r.lost > 0 { // a wait means nothing where variables are lost
				continue
			}
			x, y, at, anchor := across(r.hours), down(r.quantile(0.95).Seconds()), 7, "start"
			if c.group == moved || slices.Contains(leftward, r.short) {
				at, anchor = -7, "end"
			}
			fmt.Fprintf(&b, `<circle cx="%d" cy="%d" r="4" fill="%s"/>`, x, y, c.color)
			fmt.Fprintf(&b, `<text x="%d" y="%d" font-size="10" text-anchor="%s">%s</text>`+"\n", x+at, y-3, anchor, r.short)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// across is where a part of reservation's GPU-hours lies.
func across(part float64) int {
	return plotLeft + place(part, fewest, 1, plotWidth)
}

// down is where a wait lies.
func down(seconds float64) int {
	return plotTop + plotHeight - place(seconds, shortest, longest, plotHeight)
}

// place is how far from its beginning a value lies on a logarithmic axis.
func place(v, from, to, length float64) int {
	return int(math.Round(length * math.Log(min(max(v, from), to)/from) / math.Log(to/from)))
}
