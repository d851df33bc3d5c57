package main

import (
	"math"
	"slices"
	"time"
)

// quantile returns the smallest value that at least the part q of the values does not exceed. It is NaN without values.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// median returns the middle value, or the mean of the two in the middle. It is NaN without values.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// spread is a median with the lowest and the highest value.
type spread struct{ median, low, high float64 }

// ratios returns the spread of a divided by b, round by round: the values of a round were measured one right after the
// other. If the numbers of values differ, rounds have failed; then the medians are divided, and low and high are equal
// to the median. It reports false if there is nothing to divide.
func ratios(a, b []float64) (spread, bool) {
	if len(a) == 0 || len(b) == 0 || median(b) == 0 {
		return spread{}, false
	}
	if len(a) != len(b) || slices.Contains(b, 0) {
		m := median(a) / median(b)
		return spread{m, m, m}, true
	}
	all := make([]float64, len(a))
	for i := range a {
		all[i] = a[i] / b[i]
	}
	return spread{median(all), slices.Min(all), slices.Max(all)}, true
}

// in returns durations as numbers of a unit.
func in(unit time.Duration, times []time.Duration) []float64 {
	all := make([]float64, len(times))
	for i, t := range times {
		all[i] = float64(t) / float64(unit)
	}
	return all
}
