package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// startTime starts a kernel and returns the time until its first reply.
func (l *lane) startTime() (kernel, time.Duration, error) {
	began := time.Now()
	k, err := l.peer.startKernel(l.b.ctx, l.spec)
	if err != nil {
		return nil, 0, err
	}
	c, err := k.connect(l.framing, true)
	if err != nil {
		return k, 0, err
	}
	took := time.Since(began)
	c.close()
	return k, took, nil
}

// startsInTurn starts kernels one at a time and removes each before the next.
func (b *bench) startsInTurn(n int) {
	b.rounds(b.lanes(specFake, 0, framingJSON), func(l *lane) error {
		var times []float64
		for range n {
			k, took, err := l.startTime()
			if k != nil {
				l.kernels = append(l.kernels, k)
			}
			if err != nil {
				return err
			}
			times = append(times, took.Seconds()*1e3)
			l.drop()
		}
		l.add("p50 ms", quantile(times, 0.5))
		return nil
	})
}

// startsAtOnce starts kernels at the same time.
func (b *bench) startsAtOnce(n int) {
	b.rounds(b.lanes(specFake, 0, framingJSON), func(l *lane) error {
		times, errs := make([]time.Duration, n), make([]error, n)
		kernels := make([]kernel, n)
		began := time.Now()
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() { kernels[i], times[i], errs[i] = l.startTime() })
		}
		all.Wait()
		took := time.Since(began)
		for _, k := range kernels {
			if k != nil {
				l.kernels = append(l.kernels, k)
			}
		}
		defer l.drop()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		l.add("kernels/s", float64(n)/took.Seconds())
		l.add("p50 ms", quantile(in(time.Millisecond, times), 0.5))
		l.add("p99 ms", quantile(in(time.Millisecond, times), 0.99))
		return nil
	})
}

// startsInARow sends one POST after the other. Some peers answer it before the kernel runs.
func (b *bench) startsInARow(n int) {
	b.rounds(b.lanes(specFake, 0, framingJSON), func(l *lane) error {
		if l.peer.name() == peerPlain {
			return nil // has no POST
		}
		defer l.drop()
		began := time.Now()
		for range n {
			k, err := l.peer.startKernel(l.b.ctx, l.spec)
			if err != nil {
				return err
			}
			l.kernels = append(l.kernels, k)
		}
		l.add("kernels/s", float64(n)/time.Since(began).Seconds())
		return nil
	})
}

// removals measures DELETE of an idle ipykernel, and whether it has run its exit handlers.
func (b *bench) removals() {
	b.rounds(b.lanes(specPython3, 0, framingJSON), func(l *lane) error {
		if l.peer.name() == peerPlain {
			return nil // has no DELETE
		}
		k, _, err := l.startTime()
		if k != nil {
			l.kernels = append(l.kernels, k)
		}
		if err != nil {
			return err
		}
		file := filepath.Join(b.dir, "atexit")
		defer func() { _ = os.Remove(file) }() // it may not have been made
		c, err := k.connect(l.framing, true)
		if err != nil {
			return err
		}
		defer c.close()
		code := fmt.Sprintf("import atexit; atexit.register(lambda: open(%q, 'w').close()) and None", file)
		got, err := c.ask(asking{codes: []string{code}, deadline: 30 * time.Second})
		if err != nil || !got.complete {
			return fmt.Errorf("the cell before DELETE: complete: %v: %w", got.complete, err)
		}
		l.kernels = nil
		began := time.Now()
		if err := k.remove(); err != nil {
			return err
		}
		l.add("DELETE ms", time.Since(began).Seconds()*1e3)
		ran := 0.0
		if _, err := os.Stat(file); err == nil {
			ran = 100
		}
		l.add("atexit %", ran)
		return nil
	})
}
