package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/usage"
)

// flood is a scenario in which kernels put out messages as fast as they can.
type flood struct {
	size    string // of a message, as the fake kernel reads it
	clients int    // each with a kernel of its own
	length  time.Duration
}

func (b *bench) flood(f flood) {
	b.rounds(b.lanes(specFake, f.clients), func(l *lane) error { return l.flood(f) })
}

// flood measures one turn. The first turn also finds how many messages fill its time.
func (l *lane) flood(f flood) error {
	var clients []client
	defer func() {
		for _, c := range clients {
			c.close()
		}
	}()
	for _, k := range l.kernels {
		c, err := k.connect(l.framing, true)
		if err != nil {
			return err
		}
		clients = append(clients, c)
	}
	if l.size == 0 {
		if err := l.adapt(clients, f); err != nil {
			return err
		}
		l.shareSize()
	}
	// A new connection is slow at first: its windows are small, and its client has no memory yet.
	if _, err := floodOnce(clients, f.size, max(1, l.size/2)); err != nil {
		return err
	}
	servers := processesOfAll(l.kernels)
	usage.ResetPeak(servers)
	before := usage.ProcessorTime(servers)
	got, err := floodOnce(clients, f.size, l.size)
	if err != nil {
		return err
	}
	used := usage.ProcessorTime(servers) - before
	sent := l.size * len(clients)
	rate := float64(got.outputs) / got.took.Seconds()
	if f.size == "100" || f.size == "10k" {
		l.add("messages/s", rate)
	}
	if f.size != "100" {
		l.add("MB/s", rate*sizeBytes[f.size]/1e6)
	}
	if len(servers) > 0 {
		l.add("CPU µs/message", float64(used.Microseconds())/float64(sent))
		l.add("peak MB", float64(usage.Peak(servers))/1e6)
		l.add("peak MB without programs", float64(usage.PeakOwn(servers))/1e6)
	}
	if got.outputs != sent || !got.complete {
		return fmt.Errorf("%d of %d messages have arrived, complete: %v", got.outputs, sent, got.complete)
	}
	return nil
}

// adapt finds the number of messages for each client that takes about the length.
func (l *lane) adapt(clients []client, f flood) error {
	n := map[string]int{"100": 500, "10k": 100, "1m": 4, "100m": 1}[f.size]
	fewest := 2 * n
	if f.length < time.Second || f.size == "100m" && f.clients > 1 {
		fewest = n // in quick mode, and where one from each client takes seconds
	}
	for {
		got, err := floodOnce(clients, f.size, n)
		if err != nil {
			return err
		}
		l.size = int(float64(n) * f.length.Seconds() / got.took.Seconds())
		if got.took > f.length/5 || !got.complete || got.outputs < n*len(clients) {
			l.size = max(l.size, fewest)
			return nil
		}
		n = min(max(l.size, 2*n), 8*n)
	}
}

// shareSize gives the programs of -before the same number of messages as the present ones. Memory depends on it.
func (l *lane) shareSize() {
	if s, ok := l.peer.(*server); !ok || !s.isEKG() {
		return
	}
	key := l.b.scenario + l.framing
	if size, ok := l.b.sizes[key]; ok {
		l.size = size
	}
	l.b.sizes[key] = l.size
}

// floodOnce lets the kernels of all clients put out n messages each. The time is until the last has its idle.
func floodOnce(clients []client, size string, n int) (answer, error) {
	answers, errs := make([]answer, len(clients)), make([]error, len(clients))
	limit := floodLimit + time.Duration(float64(n*len(clients))*sizeBytes[size]/slowest*float64(time.Second))
	began := time.Now()
	var all sync.WaitGroup
	for i, c := range clients {
		all.Go(func() {
			answers[i], errs[i] = c.ask(asking{codes: []string{fmt.Sprintf("flood %d of %s", n, size)}, deadline: limit})
		})
	}
	all.Wait()
	sum := answer{complete: true, took: time.Since(began)}
	for i, a := range answers {
		if errs[i] != nil {
			return sum, errs[i]
		}
		sum.complete = sum.complete && a.complete
		sum.outputs += a.outputs
		sum.bytes += a.bytes
	}
	if len(clients) == 1 {
		sum.took = answers[0].took
	}
	return sum, nil
}

// A flood whose end was lost is given up after floodLimit and the time for its bytes with the slowest rate.
const (
	floodLimit = 30 * time.Second
	slowest    = 20e6 // bytes in a second
)
