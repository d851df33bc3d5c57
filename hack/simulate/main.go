// Command simulate computes what parking saves and what it costs, with the policy of package parking and a trace in the
// shape of a published one. It prints a table. With -write it writes the table and a picture into docs/parking.md, as
// `make simulate` does. The same code and seed give the same result. The test of this package fails where the document
// differs from that.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/parking"
)

const (
	document = "docs/parking.md"
	picture  = "docs/pictures/parking.svg"
	begin    = "<!-- simulation -->\n"
	end      = "<!-- /simulation -->\n"
)

func main() {
	write := flag.Bool("write", false, "write the table and the picture into docs")
	flag.Parse()
	rows := simulate()
	if !*write {
		fmt.Print(table(rows))
		return
	}
	if err := update(".", rows); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

// update writes the generated part of the document, and the picture.
func update(root string, rows []row) error {
	file := filepath.Join(root, document)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, _, after, err := cut(string(text))
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(before+table(rows)+after), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, picture), []byte(plot(rows)), 0o644)
}

// cut returns the generated part of the document, and what is before and after it.
func cut(text string) (before, generated, after string, err error) {
	before, rest, found := strings.Cut(text, begin)
	generated, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", "", "", fmt.Errorf("%s has no lines %q and %q", document, begin, end)
	}
	return before + begin, generated, end + after, nil
}

// The groups of rows, and what the picture names one of them.
const (
	others = "without parking"
	pool   = "parked, from a pool"
	pinned = "parked, pinned"
	moved  = "parked, moved"

	noTyping = "1 min, no typing"
)

// row is a policy with what it costs.
type row struct {
	group, name string
	short       string  // in the picture
	hours       float64 // GPU-hours, as a part of reservation's
	outcome
}

// simulate runs all policies over one trace.
func simulate() []row {
	trace := newTrace(1, sessions)
	reserved := reserve(trace)
	var rows []row
	add := func(group, short, name string, o outcome, hours time.Duration) {
		slices.Sort(o.waits)
		rows = append(rows, row{group, name, short, float64(hours) / float64(reserved.held), o})
	}
	add(others, "reservation", "reservation: a GPU for each session", reserved, reserved.held)
	for _, after := range []time.Duration{time.Hour, 10 * time.Minute} {
		o := cull(trace, after)
		add(others, "culling", "culling after "+minutes(after), o, o.held)
	}
	o := best(trace)
	add(others, "the best", "the best that is possible: a GPU only while a cell computes", o, o.held)

	for _, after := range []time.Duration{15 * time.Minute, 5 * time.Minute, time.Minute} {
		idle := parking.Settings{Idle: min(after, time.Minute), After: after}
		o := park(trace, idle, sharing{machine: 1, perGPU: 1, typing: true})
		add(pool, minutes(after), "parked after "+minutes(after), o, o.held)
	}
	minute := parking.Settings{Idle: time.Minute, After: time.Minute}
	o = park(trace, minute, sharing{machine: 1, perGPU: 1})
	add(pool, noTyping, "parked after 1 min, not woken by typing", o, o.held)

	for _, group := range []string{pinned, moved} {
		for _, n := range []int{2, 3, 4, 6} {
			o := park(trace, minute, sharing{machine: 8, perGPU: n, moves: group == moved, typing: true})
			name := fmt.Sprintf("%d sessions for each GPU", n)
			add(group, fmt.Sprintf("%d to a GPU", n), name, o, reserved.held/time.Duration(n))
		}
	}
	return rows
}

// quantile returns the wait that a part of all cells does not exceed.
func (o outcome) quantile(part float64) time.Duration {
	if len(o.waits) == 0 {
		return 0
	}
	return o.waits[max(0, int(part*float64(len(o.waits))+0.999999)-1)]
}
