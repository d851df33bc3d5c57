package main

import (
	"fmt"
	"time"
)

// scenario is something that is measured.
type scenario struct {
	name string
	run  func(b *bench)
}

// scenarios returns all of them. In quick mode the measurements are shorter.
func scenarios(quick bool) []scenario {
	length := time.Second
	if quick {
		length = 300 * time.Millisecond
	}
	var all []scenario
	for _, size := range []string{"100", "10k", "1m", "100m"} {
		name := "output " + sizeNames[size]
		all = append(all, scenario{name, func(b *bench) { b.flood(flood{size: size, clients: 1, length: length}) }})
	}
	for _, size := range []string{"100", "10k"} {
		name := fmt.Sprintf("output %s, ten clients on ten kernels", sizeNames[size])
		all = append(all, scenario{name, func(b *bench) { b.flood(flood{size: size, clients: 10, length: length}) }})
	}
	return append(all,
		scenario{"round trip, quick acknowledgements", func(b *bench) { b.roundTrips(trips{quick: true, length: length}) }},
		scenario{"round trip, default acknowledgements", func(b *bench) { b.roundTrips(trips{length: length}) }},
		scenario{"round trip, one every 20 ms", func(b *bench) {
			b.roundTrips(trips{quick: true, length: 3 * length, pace: 20 * time.Millisecond})
		}},
		scenario{"round trip beside a flood on another kernel", func(b *bench) {
			b.roundTrips(trips{quick: true, length: 3 * length, pace: 20 * time.Millisecond, flooded: true})
		}},
	)
}

// sizeNames are the sizes of outputs as the fake kernel reads them, and as people do.
var sizeNames = map[string]string{"100": "100 B", "10k": "10 kB", "1m": "1 MB", "100m": "100 MB"}

// sizeBytes are the same in bytes.
var sizeBytes = map[string]float64{"100": 100, "10k": 10e3, "1m": 1e6, "100m": 100e6}

// lane is a peer with one of its framings and the kernels that a scenario uses.
type lane struct {
	b       *bench
	peer    peer
	framing string
	spec    string
	count   int      // of kernels
	kernels []kernel // nil before the first use, and after a failure
	size    int      // of the measurement, where it is adapted to the lane
}

// lanes returns the lanes of all peers.
func (b *bench) lanes(spec string, kernels int) []*lane {
	var all []*lane
	for _, p := range b.usePeers() {
		for _, f := range p.framings() {
			all = append(all, &lane{b: b, peer: p, framing: f, spec: spec, count: kernels})
		}
	}
	return all
}

// rounds gives each lane its turn, as often as the options say. In every second round the order is reversed, so that no
// lane always follows the same one. A lane that fails gets new kernels for its next turn.
func (b *bench) rounds(lanes []*lane, turn func(l *lane) error) {
	for n := range b.options.rounds {
		for i := range lanes {
			l := lanes[i]
			if n%2 == 1 {
				l = lanes[len(lanes)-1-i]
			}
			if b.ctx.Err() != nil {
				return
			}
			err := l.prepare()
			if err == nil {
				err = turn(l)
			}
			if err != nil {
				b.fail(l.peer.name(), l.framing, err)
				l.drop()
			}
		}
	}
	for _, l := range lanes {
		l.drop()
	}
}

// metricFailed is the metric of turns that failed.
const metricFailed = "failed"

// prepare starts the lane's kernels.
func (l *lane) prepare() error {
	for len(l.kernels) < l.count {
		k, err := l.peer.startKernel(l.b.ctx, l.spec)
		if err != nil {
			return err
		}
		l.kernels = append(l.kernels, k)
	}
	return nil
}

// drop removes the lane's kernels.
func (l *lane) drop() {
	for _, k := range l.kernels {
		if err := k.remove(); err != nil {
			l.b.say("%v", err)
		}
	}
	l.kernels = nil
}

func (l *lane) add(metric string, value float64) { l.b.add(metric, l.peer.name(), l.framing, value) }
