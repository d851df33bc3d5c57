package main

import (
	"math"
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
		{"a new figure", figures("p50 µs", 50), figures("messages/s", 10), nil},
		{"a new failure", figures("p50 µs", 50), figures("p50 µs", 50, "lost"), []string{"failed: lost"}},
		{"an old failure", figures("p50 µs", 50, "lost"), figures("p50 µs", 50, "lost"), nil},
	} {
		got := compare(test.before, test.after)
		if !slices.EqualFunc(got, test.want, strings.Contains) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
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
