package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
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
	Figures  []*figure         `json:"figures,omitempty"`
}

// figure is one measured quantity of a peer in a scenario.
type figure struct {
	Scenario string    `json:"scenario"`
	Metric   string    `json:"metric"`
	Peer     string    `json:"peer"`              // direct, ekg, EG, JS or before
	Framing  string    `json:"framing,omitempty"` // json or v1; empty for direct, and where the framing does not matter
	Values   []float64 `json:"values"`            // one for each round; none if all failed
	Failures []string  `json:"failures,omitempty"`
}

// metrics are the measured quantities, in the order of the tables. All others are better when they are lower.
var metrics = []struct {
	name   string
	higher bool // higher is better
}{
	{"messages/s", true},
	{"MB/s", true},
	{"arrived %", true},
	{"kernels/s", true},
	{"p50 µs", false},
	{"p99 µs", false},
	{"p50 ms", false},
	{"p99 ms", false},
	{"DELETE ms", false},
	{"atexit %", true},
	{"CPU µs/message", false},
	{"CPU µs/cell", false},
	{"peak MB", false},
	{"peak MB without programs", false},
	{"gateway MB", false},
	{"gateway kB/kernel", false},
	{"supervisor kB", false},
	{"gateway CPU %", false},
	{"supervisors CPU %", false},
	{"gateway descriptors", false},
	{"list p50 ms", false},
	{"list p99 ms", false},
	{"list of a user p50 ms", false},
	{"list of a user p99 ms", false},
	{"after restart ms", false},
	{"restart CPU ms", false},
	{"gateway MB" + adopted, false},
	{"supervisor kB" + adopted, false},
	{"gateway CPU %" + adopted, false},
	{"supervisors CPU %" + adopted, false},
	{"gateway descriptors" + adopted, false},
	{"list p50 ms" + adopted, false},
	{"list p99 ms" + adopted, false},
	{"list of a user p50 ms" + adopted, false},
	{"list of a user p99 ms" + adopted, false},
}

// adopted ends the names of what is measured after a gateway has adopted all kernels.
const adopted = ", adopted"

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

// write writes the results to a file, with a line for each figure.
func (r *results) write(file string) error {
	head := *r
	head.Figures = nil
	b, err := json.MarshalIndent(&head, "", " ")
	if err != nil {
		return err
	}
	text := strings.TrimSuffix(string(b), "\n}") + ",\n \"figures\": ["
	for i, f := range r.Figures {
		line, err := json.Marshal(f.rounded())
		if err != nil {
			return err
		}
		if i > 0 {
			text += ","
		}
		text += "\n  " + string(line)
	}
	return os.WriteFile(file, []byte(text+"\n ]\n}\n"), 0o644)
}

// rounded returns the figure with five digits of each value.
func (f *figure) rounded() *figure {
	short := *f
	short.Values = make([]float64, len(f.Values))
	for i, v := range f.Values {
		short.Values[i], _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 5, 64), 64) // FormatFloat has written it
	}
	return &short
}
