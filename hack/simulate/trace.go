package main

import (
	"math"
	"math/rand/v2"
	"time"
)

// What is published of the AdobeTrace: half of its tasks last at most 2 minutes and three quarters at most 5. A
// session's tasks begin 5 minutes apart in the median and never less than 4. Reserved GPUs idle for more than 81 % of
// the time. About 70 % of them are never used, and three quarters of the sessions use theirs for at most 5 % of it.
const (
	cellMedian   = 2 * time.Minute
	cellQuartile = 5 * time.Minute
	gapMedian    = 5 * time.Minute
	gapLeast     = 4 * time.Minute
	unusedPart   = 0.70
	lightPart    = 0.05 // uses its GPU, for at most 5 % of the time
)

// What is assumed, since nothing is published.
const (
	gapSigma     = 1.0 // of what a gap has above gapLeast
	lightFactor  = 20  // gaps of a light session are this much longer
	memoryMedian = 2 << 30
	memorySigma  = 1.0
	memoryMost   = 64 << 30
	leadMedian   = 20 * time.Second // from a user's first key to the cell
	leadSigma    = 1.0
	keyEvery     = 5 * time.Second // the front end says that its user types
)

const (
	horizon    = 17*time.Hour + 30*time.Minute // that of NotebookOS's evaluation
	startsIn   = time.Hour                     // sessions start evenly in this time
	sessions   = 240
	quartileAt = 0.6744897501960817 // of the normal distribution
)

// cell is a cell that needs the GPU.
type cell struct {
	gap    time.Duration // from the moment its predecessor was sent; it is sent after the predecessor's end
	length time.Duration
	lead   time.Duration // the user has typed for so long
}

// session is a kernel with its user.
type session struct {
	start  time.Duration
	memory int64 // of the GPU, in bytes
	cells  []cell
}

// lognormal draws from a distribution with the given median.
func lognormal(r *rand.Rand, median, sigma float64) float64 {
	return median * math.Exp(sigma*r.NormFloat64())
}

// newTrace draws sessions. The same seed gives the same sessions.
func newTrace(seed uint64, sessions int) []session {
	r := rand.New(rand.NewPCG(seed, 1))
	all := make([]session, sessions)
	cellSigma := math.Log(float64(cellQuartile)/float64(cellMedian)) / quartileAt
	for n, i := range r.Perm(sessions) {
		s := &all[i]
		s.start = time.Duration(r.Float64() * float64(startsIn))
		s.memory = min(int64(lognormal(r, memoryMedian, memorySigma)), memoryMost)
		factor := time.Duration(1)
		switch part := (float64(n) + 0.5) / float64(sessions); {
		case part < unusedPart:
			continue
		case part < unusedPart+lightPart:
			factor = lightFactor
		}
		for sent := s.start; sent < horizon; {
			gap := factor * (gapLeast + time.Duration(lognormal(r, float64(gapMedian-gapLeast), gapSigma)))
			if len(s.cells) == 0 { // a session may begin anywhere in a gap
				gap = time.Duration(r.Float64() * float64(gap))
			}
			sent += gap
			s.cells = append(s.cells, cell{
				gap:    gap,
				length: time.Duration(lognormal(r, float64(cellMedian), cellSigma)),
				lead:   time.Duration(lognormal(r, float64(leadMedian), leadSigma)),
			})
		}
	}
	return all
}

// undelayed calls visit for each cell with the times between which it runs where it never waits.
func (s *session) undelayed(visit func(from, to time.Duration)) {
	sent, end := s.start, s.start
	for _, c := range s.cells {
		sent = max(sent+c.gap, end)
		if sent >= horizon {
			return
		}
		end = sent + c.length
		visit(sent, min(end, horizon))
	}
}
