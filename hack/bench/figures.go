package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
)

// results are the figures of a run.
type results struct {
	Date     string            `json:"date"`
	Command  string            `json:"command"`
	Took     string            `json:"took"`
	Quick    bool              `json:"quick"`
	Rounds   int               `json:"rounds"`
	Machine  string            `json:"machine"`
	Versions map[string]string `json:"versions"`
	Figures  []*figure         `json:"figures"`
}

// figure is one measured quantity of a peer in a scenario.
type figure struct {
	Scenario string    `json:"scenario"`
	Metric   string    `json:"metric"`
	Peer     string    `json:"peer"`              // direct, ekg, EG or JS
	Framing  string    `json:"framing,omitempty"` // json or v1; empty for direct, and where the framing does not matter
	Values   []float64 `json:"values"`            // one for each round; none if all failed
	Failures []string  `json:"failures,omitempty"`
}

// metrics are the measured quantities, in the order of the tables. All others are better when they are lower.
var metrics = []struct {
	name   string
	higher bool // higher is better
	digits int  // behind the decimal point
}{
	{"messages/s", true, 0},
	{"MB/s", true, 0},
	{"arrived %", true, 1},
	{"p50 µs", false, 0},
	{"p99 µs", false, 0},
	{"p50 ms", false, 1},
	{"p99 ms", false, 1},
	{"CPU µs/message", false, 1},
	{"peak MB", false, 0},
}

// order is the place of a metric in the tables.
func order(metric string) int {
	for i, m := range metrics {
		if m.name == metric {
			return i
		}
	}
	return len(metrics)
}

func higherIsBetter(metric string) bool {
	i := order(metric)
	return i < len(metrics) && metrics[i].higher
}

// find returns a figure, or nil.
func (r *results) find(scenario, metric, peer, framing string) *figure {
	for _, f := range r.Figures {
		if f.Scenario == scenario && f.Metric == metric && f.Peer == peer && f.Framing == framing {
			return f
		}
	}
	return nil
}

// figure returns a figure, and adds it first if it is new.
func (r *results) figure(scenario, metric, peer, framing string) *figure {
	f := r.find(scenario, metric, peer, framing)
	if f == nil {
		f = &figure{Scenario: scenario, Metric: metric, Peer: peer, Framing: framing}
		r.Figures = append(r.Figures, f)
	}
	return f
}

// scenarios returns the names of the scenarios, in the order in which they were measured.
func (r *results) scenarios() []string {
	var names []string
	for _, f := range r.Figures {
		if !slices.Contains(names, f.Scenario) {
			names = append(names, f.Scenario)
		}
	}
	return names
}

func readResults(file string) (*results, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var r results
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &r, nil
}

func (r *results) write(file string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}
