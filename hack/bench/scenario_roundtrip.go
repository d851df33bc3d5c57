package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/usage"
)

// trips is a scenario of empty cells, each sent after the end of the one before. The time of each is until its reply.
type trips struct {
	quick   bool          // acknowledge TCP at once
	pace    time.Duration // between two cells
	length  time.Duration
	flooded bool // another kernel of the same peer puts out messages of 100 B
}

func (b *bench) roundTrips(t trips) {
	kernels := 1
	if t.flooded {
		kernels = 2
	}
	b.rounds(b.lanes(specFake, kernels), func(l *lane) error { return l.roundTrips(t) })
}

func (l *lane) roundTrips(t trips) error {
	c, err := l.kernels[0].connect(l.framing, t.quick)
	if err != nil {
		return err
	}
	defer c.close()
	var flooding chan error
	if t.flooded {
		if flooding, err = l.startFlood(t.length); err != nil {
			return err
		}
	}
	servers := processesOfAll(l.kernels)
	usage.ResetPeak(servers)
	got, err := c.ask(asking{codes: repeat("", 2000), pace: t.pace, limit: t.length, deadline: t.length + 20*time.Second})
	if err != nil {
		return err
	}
	if !got.complete {
		return fmt.Errorf("a reply is missing after %d cells", len(got.times))
	}
	times := in(time.Microsecond, got.times)
	l.add("p50 µs", quantile(times, 0.5))
	l.add("p99 µs", quantile(times, 0.99))
	if flooding == nil {
		return nil
	}
	if len(servers) > 0 {
		l.add("peak MB", float64(usage.Peak(servers))/1e6)
	}
	select {
	case err := <-flooding:
		if err == nil {
			l.size *= 2
			err = errors.New("the flood ended before the last cell")
		}
		return err
	default:
		return <-flooding
	}
}

// startFlood lets the lane's second kernel put out messages for longer than the length. The channel gets the result.
func (l *lane) startFlood(length time.Duration) (chan error, error) {
	c, err := l.kernels[1].connect(l.framing, true)
	if err != nil {
		return nil, err
	}
	if l.size == 0 {
		if err := l.adapt([]client{c}, flood{size: "100", clients: 1, length: 3 * length}); err != nil {
			c.close()
			return nil, err
		}
	}
	done := make(chan error, 1)
	go func() {
		defer c.close()
		got, err := floodOnce([]client{c}, "100", l.size)
		if err == nil && (got.outputs != l.size || !got.complete) {
			err = fmt.Errorf("%d of %d messages of the flood have arrived", got.outputs, l.size)
		}
		done <- err
	}()
	return done, nil
}
