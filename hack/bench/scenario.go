package main

import (
	"fmt"
	"slices"
	"sync"
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
	sizes := []string{"100", "10k"}
	if !quick {
		sizes = append(sizes, "1m", "100m")
	}
	for _, size := range sizes {
		name := fmt.Sprintf("output %s, ten clients on ten kernels", sizeNames[size])
		all = append(all, scenario{name, func(b *bench) { b.flood(flood{size: size, clients: 10, length: length}) }})
	}
	all = append(all,
		scenario{"round trip, quick acknowledgements", func(b *bench) { b.roundTrips(trips{quick: true, length: length}) }},
		scenario{"round trip, default acknowledgements", func(b *bench) { b.roundTrips(trips{length: length}) }},
		scenario{"round trip, one every 20 ms", func(b *bench) {
			b.roundTrips(trips{quick: true, length: 3 * length, pace: 20 * time.Millisecond})
		}},
		scenario{"round trip beside a flood on another kernel", func(b *bench) {
			b.roundTrips(trips{quick: true, length: 2 * length, pace: 20 * time.Millisecond, flooded: true})
		}},
	)
	if quick {
		return append(all,
			scenario{"slow reader, away for 5 s in 40 MB", func(b *bench) {
				b.slowReader(slow{messages: 4000, every: 500 * time.Microsecond, pause: 5 * time.Second})
			}},
			scenario{"start of a kernel, one at a time", func(b *bench) { b.startsInTurn(3) }},
			scenario{"start of ten kernels at once", func(b *bench) { b.startsAtOnce(10) }},
			scenario{"100 starts in a row", func(b *bench) { b.startsInARow(100) }},
			scenario{"delete of an idle ipykernel", func(b *bench) { b.removals() }},
			scenario{"100 idle kernels", func(b *bench) { b.idleKernels(100, 5*time.Second) }},
			scenario{hostedName(100), func(b *bench) { b.hostedKernels(100, 5*time.Second) }},
		)
	}
	return append(all,
		scenario{"slow reader, away for 20 s in 200 MB", func(b *bench) {
			b.slowReader(slow{messages: 20_000, every: 500 * time.Microsecond, pause: 20 * time.Second})
		}},
		scenario{"start of a kernel, one at a time", func(b *bench) { b.startsInTurn(10) }},
		scenario{"start of 50 kernels at once", func(b *bench) { b.startsAtOnce(50) }},
		scenario{"100 starts in a row", func(b *bench) { b.startsInARow(100) }},
		scenario{"delete of an idle ipykernel", func(b *bench) { b.removals() }},
		scenario{"100 idle kernels", func(b *bench) { b.idleKernels(100, 10*time.Second) }},
		scenario{"1,000 idle kernels", func(b *bench) { b.idleKernels(1000, 10*time.Second) }},
		// A supervisor sends its status every 20 s.
		scenario{hostedName(1000), func(b *bench) { b.hostedKernels(1000, 20*time.Second) }},
		scenario{hostedName(10_000), func(b *bench) { b.hostedKernels(10_000, 20*time.Second) }},
		scenario{"200 clients with a cell a second", func(b *bench) { b.manyClients(200, 5) }},
		scenario{"1,000 clients with a cell a second", func(b *bench) { b.manyClients(1000, 5) }},
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

// lanes returns the lanes of all peers, with one framing or with all of the peer.
func (b *bench) lanes(spec string, kernels int, framings ...string) []*lane {
	var all []*lane
	for _, p := range b.usePeers() {
		for _, f := range p.framings() {
			if f != "" && len(framings) > 0 && !slices.Contains(framings, f) {
				continue
			}
			all = append(all, &lane{b: b, peer: p, framing: f, spec: spec, count: kernels})
		}
	}
	return all
}

// rounds gives each lane its turn, as often as the options say. In every second round the order is reversed, so that no
// lane always follows the same one. A lane that fails gets new kernels for its next turn.
func (b *bench) rounds(lanes []*lane, turn func(l *lane) error) {
	b.someRounds(b.options.rounds, lanes, turn)
}

// someRounds is rounds with another number, for what takes long.
func (b *bench) someRounds(number int, lanes []*lane, turn func(l *lane) error) {
	for n := range number {
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

// drop removes the lane's kernels, ten at a time.
func (l *lane) drop() {
	kernels := make(chan kernel)
	var all sync.WaitGroup
	for range min(10, len(l.kernels)) {
		all.Go(func() {
			for k := range kernels {
				if err := k.remove(); err != nil {
					l.b.say("%v", err)
				}
			}
		})
	}
	for _, k := range l.kernels {
		kernels <- k
	}
	close(kernels)
	all.Wait()
	l.kernels = nil
}

func (l *lane) add(metric string, value float64) { l.b.add(metric, l.peer.name(), l.framing, value) }
