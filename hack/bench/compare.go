package main

import "fmt"

// fallen is the least part of an earlier ratio that counts as no fall: 20 % may be noise.
const fallen = 0.8

// compare returns a line for each ratio of ekg to direct and to Enterprise Gateway that is worse than before by more
// than 20 %, and for each scenario in which ekg fails and did not before.
func compare(before, after *results) []string {
	var lines []string
	for _, f := range after.Figures {
		if f.Peer != peerEKG {
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
