package main

import (
	"fmt"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/usage"
)

// slow is a scenario with a client that reads nothing for a while, as a laptop that sleeps. The kernel drops output
// while 1,000 messages wait, as libzmq does by default, and is as fast as a fast real one.
type slow struct {
	messages int // of 10 kB each
	every    time.Duration
	pause    time.Duration
}

func (b *bench) slowReader(s slow) {
	lanes := b.lanes(specDrops, 1, framingJSON)
	rounds := 3
	if b.options.quick {
		rounds = 1
	}
	b.someRounds(min(rounds, b.options.rounds), lanes, func(l *lane) error { return l.slowReader(s) })
}

func (l *lane) slowReader(s slow) error {
	c, err := l.kernels[0].connect(l.framing, true)
	if err != nil {
		return err
	}
	defer c.close()
	servers := processesOfAll(l.kernels)
	usage.ResetPeak(servers)
	got, err := c.ask(asking{
		codes:    []string{fmt.Sprintf("flood %d every %v of 10k", s.messages, s.every)},
		deadline: time.Duration(s.messages)*s.every*2 + s.pause + 5*time.Second,
		pauseAt:  s.messages / 20, pause: s.pause,
	})
	if err != nil {
		return err
	}
	l.add("arrived %", 100*float64(got.outputs)/float64(s.messages))
	if len(servers) > 0 {
		l.add("peak MB", float64(usage.Peak(servers))/1e6)
	}
	if !got.complete {
		l.drop() // it may still be sending
	}
	return nil
}
