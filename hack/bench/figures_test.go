package main

import (
	"encoding/xml"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestQuantile(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for _, test := range []struct{ q, want float64 }{{0, 1}, {0.2, 1}, {0.5, 3}, {0.99, 5}, {1, 5}} {
		if got := quantile(values, test.q); got != test.want {
			t.Errorf("quantile %v is %v, want %v", test.q, got, test.want)
		}
	}
	if got := median(append(values, 6)); got != 3.5 {
		t.Errorf("median of six is %v", got)
	}
	if !math.IsNaN(quantile(nil, 0.5)) || !math.IsNaN(median(nil)) {
		t.Error("no values have a quantile")
	}
}

func TestRatios(t *testing.T) {
	for _, test := range []struct {
		name string
		a, b []float64
		want spread
		ok   bool
	}{
		{"round by round", []float64{10, 40, 90}, []float64{10, 20, 30}, spread{2, 1, 3}, true},
		{"a round has failed", []float64{10, 40}, []float64{10, 20, 30}, spread{1.25, 1.25, 1.25}, true},
		{"a round without a message", []float64{10, 40, 90}, []float64{0, 20, 30}, spread{2, 2, 2}, true},
		{"nothing to divide", nil, []float64{1}, spread{}, false},
		{"nothing to divide by", []float64{1}, []float64{0}, spread{}, false},
	} {
		if got, ok := ratios(test.a, test.b); got != test.want || ok != test.ok {
			t.Errorf("%s: %v, %v, want %v, %v", test.name, got, ok, test.want, test.ok)
		}
	}
}

// figures returns results in which direct has the value 100, Enterprise Gateway 10 and ekg the given one.
func figures(metric string, ekg float64, failures ...string) *results {
	r := &results{}
	r.figure("s", metric, peerPlain, "").Values = []float64{100}
	r.figure("s", metric, peerEG, framingV1).Values = []float64{10}
	r.figure("s", metric, peerEKG, framingV1).Values = []float64{ekg}
	if len(failures) > 0 {
		r.figure("s", metricFailed, peerEKG, framingV1).Failures = failures
	}
	return r
}

func TestCompare(t *testing.T) {
	for _, test := range []struct {
		name          string
		before, after *results
		want          []string // a part of each line
	}{
		{"equal", figures("messages/s", 50), figures("messages/s", 50), nil},
		{"a little slower", figures("messages/s", 50), figures("messages/s", 41), nil},
		{"slower", figures("messages/s", 50), figures("messages/s", 39),
			[]string{"ekg/direct was 0.5 and is 0.39", "ekg/EG was 5 and is 3.9"}},
		{"faster", figures("messages/s", 50), figures("messages/s", 80), nil},
		{"longer", figures("p50 µs", 50), figures("p50 µs", 63),
			[]string{"ekg/direct was 0.5 and is 0.63", "ekg/EG was 5 and is 6.3"}},
		{"shorter", figures("p50 µs", 50), figures("p50 µs", 10), nil},
		{"a new figure, and one that is gone", figures("p50 µs", 50), figures("messages/s", 10),
			[]string{"p50 µs: ekg has no figure any more"}},
		{"a scenario that was not run", figures("p50 µs", 50), &results{}, nil},
		{"a fault of the harness", &results{}, &results{Figures: []*figure{{Scenario: "s", Metric: metricFailed,
			Peer: peerHarness, Failures: []string{"panic: no"}}}}, []string{"failed: panic: no"}},
		{"a new failure", figures("p50 µs", 50), figures("p50 µs", 50, "lost"), []string{"failed: lost"}},
		{"an old failure", figures("p50 µs", 50, "lost"), figures("p50 µs", 50, "lost"), nil},
	} {
		got := compare(test.before, test.after)
		if !slices.EqualFunc(got, test.want, strings.Contains) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// A fault of the harness in one scenario is recorded, and the next one can be measured.
func TestBench_Measure(t *testing.T) {
	b := &bench{results: &results{}}
	b.measure(scenario{"first", func(*bench) { panic("no turn") }})
	b.measure(scenario{"second", func(b *bench) { b.add("MB/s", peerEKG, framingV1, 5) }})
	failed := b.results.find("first", metricFailed, peerHarness, "")
	if failed == nil || len(failed.Failures) != 1 || !strings.HasPrefix(failed.Failures[0], "panic: no turn") {
		t.Errorf("recorded is %+v", failed)
	}
	if f := b.results.find("second", "MB/s", peerEKG, framingV1); f == nil || !slices.Equal(f.Values, []float64{5}) {
		t.Errorf("the second scenario has %+v", f)
	}
}

func TestTables(t *testing.T) {
	r := figures("messages/s", 25, "2 of 3 messages have arrived")
	for _, f := range r.Figures {
		f.Scenario = "output 100 B"
	}
	r.figure("output 100 B", "messages/s", peerEKG, framingV1).Values = []float64{20, 25, 40}
	r.figure("output 100 B", "messages/s", peerPlain, "").Values = []float64{100, 100, 100}
	want := `
### Output

| | | direct | EG | JS | ekg | ekg/direct | ekg/EG |
| --- | --- | --- | --- | --- | --- | --- | --- |
| output 100 B | messages/s v1 | 100 | 10 |  | 25 | 0.25 (0.2 to 0.4) | 2.5 |

What was lost or failed:

` + "- output 100 B, ekg v1, once: `2 of 3 messages have arrived`\n"
	if got := tables(r); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestTables_Before(t *testing.T) {
	r := &results{}
	r.figure("output 1 MB", "MB/s", peerEKG, framingJSON).Values = []float64{30, 50, 40}
	r.figure("output 1 MB", "MB/s", peerPlain, "").Values = []float64{100, 100, 100}
	if got := beforeTable(r); got != "" {
		t.Errorf("without -before: %s", got)
	}
	r.figure("output 1 MB", "MB/s", peerBefore, framingJSON).Values = []float64{20, 20, 20}
	const want = "| output 1 MB | MB/s json | 20 | 40 | 2 (1.5 to 2.5) | 0.2 | 0.4 (0.3 to 0.5) |\n"
	if got := beforeTable(r); !strings.HasSuffix(got, want) {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestPicture(t *testing.T) {
	r := &results{}
	r.figure("output 1 MB", "MB/s", peerPlain, "").Values = []float64{1000}
	r.figure("output 1 MB", "MB/s", peerEKG, framingJSON).Values = []float64{304}
	got := picture(r)
	if err := xml.Unmarshal([]byte(got), new(struct{})); err != nil {
		t.Errorf("%v in %s", err, got)
	}
	if !strings.Contains(got, ">30 %</text>") {
		t.Errorf("no bar of 30 %% in %s", got)
	}
}

// The committed page has the committed figures.
func TestDocs_Benchmarks(t *testing.T) {
	r, err := readResults("../../" + resultsFile)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{docsFile: docsBegin + generated(r) + docsEnd, pictureFile: picture(r)} {
		got, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(got), want) {
			t.Errorf("%s differs from %s; run `go run -C hack/bench . -docs`", file, resultsFile)
		}
	}
}

func TestResults(t *testing.T) {
	r := figures("messages/s", 123456.789, "lost")
	r.Date, r.Machine = "2026-01-01T00:00:00Z", "a machine"
	file := t.TempDir() + "/results.json"
	if err := r.write(file); err != nil {
		t.Fatal(err)
	}
	got, err := readResults(file)
	if err != nil {
		t.Fatal(err)
	}
	if got.Machine != r.Machine || len(got.Figures) != 4 || got.Figures[2].Values[0] != 123460 ||
		got.Figures[3].Failures[0] != "lost" {
		t.Errorf("read %+v", got)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0.126: "0.13", 0.5: "0.5", 3: "3", 12.34: "12.3", 100: "100", 999.4: "999",
		1000: "1,000", 634464.2: "634,464", 1234567: "1,234,567"} {
		if got := number(v); got != want {
			t.Errorf("%v is written %q, want %q", v, got, want)
		}
	}
}
