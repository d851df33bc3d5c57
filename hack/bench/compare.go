package main

import (
	"fmt"
	"slices"
)

// fallen is the least part of an earlier ratio that counts as no fall: 20 % may be noise.
const fallen = 0.8

// compare returns a line for each ratio of ekg to direct and to Enterprise Gateway that is worse than before by more
// than 20 %, for each scenario in which ekg or the harness fails and did not before, and for each figure that is gone.
func compare(before, after *results) []string {
	lines := gone(before, after)
	for _, f := range after.Figures {
		if f.Peer != peerEKG && f.Peer != peerHarness {
			continue
		}
		old := before.find(f.Scenario, f.Metric, f.Peer, f.Framing)
		if old == nil && f.Metric != metricFailed {
			continue // new, so nothing has fallen
		}
		if len(f.Failures) > 0 && (old == nil || len(old.Failures) == 0) {
			lines = append(lines, fmt.Sprintf("%s, %s: failed: %s", f.Scenario, f.Framing, f.Failures[0]))
		}
		for _, peer := range []string{peerPlain, peerEG} {
			now, ok := after.ratio(f, peer)
			then, known := before.ratio(old, peer)
			if !ok || !known || then.median == 0 {
				continue
			}
			left := now.median / then.median
			if !higherIsBetter(f.Metric) {
				left = then.median / now.median
			}
			if left < fallen {
				lines = append(lines, fmt.Sprintf("%s, %s %s: ekg/%s was %.3g and is %.3g", f.Scenario, f.Framing, f.Metric, peer,
					then.median, now.median))
			}
		}
	}
	return lines
}

// gone returns a line for each earlier figure of ekg without a value now, although its scenario has run.
func gone(before, after *results) []string {
	var lines []string
	for _, f := range before.Figures {
		if f.Peer != peerEKG || len(f.Values) == 0 || !slices.Contains(after.scenarios(), f.Scenario) {
			continue
		}
		if now := after.find(f.Scenario, f.Metric, f.Peer, f.Framing); now == nil || len(now.Values) == 0 {
			lines = append(lines, fmt.Sprintf("%s, %s %s: ekg has no figure any more", f.Scenario, f.Framing, f.Metric))
		}
	}
	return lines
}

// ratio divides a figure by the same figure of a peer, round by round. It returns false if one of them is missing.
func (r *results) ratio(f *figure, peer string) (spread, bool) {
	if f == nil {
		return spread{}, false
	}
	framing := f.Framing
	if peer == peerPlain {
		framing = ""
	}
	other := r.find(f.Scenario, f.Metric, peer, framing)
	if other == nil {
		return spread{}, false
	}
	return ratios(f.Values, other.Values)
}
