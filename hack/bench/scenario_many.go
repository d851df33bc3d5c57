package main

import (
	"bytes"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/usage"
)

// fill sends n starts of hosted kernels, some at a time. A start that fails is not tried again, but recorded. If more
// than one in twenty fails, it gives up.
func (l *lane) fill(n int) error {
	const atOnce = 8
	most := max(10, n/20)
	var mu sync.Mutex
	failures := 0
	next := make(chan struct{}, n)
	for range n {
		next <- struct{}{}
	}
	close(next)
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for range next {
				k, err := l.peer.startKernel(l.b.ctx, l.spec)
				mu.Lock()
				if err == nil {
					l.kernels = append(l.kernels, k)
				} else if failures++; failures <= most {
					l.b.fail(l.peer.name(), l.framing, fmt.Errorf("start with %d kernels: %w", len(l.kernels), err))
				}
				over := failures > most || l.b.ctx.Err() != nil
				mu.Unlock()
				if over {
					return
				}
			}
		})
	}
	all.Wait()
	if failures > most {
		return fmt.Errorf("%d of %d kernels run, and further starts fail", len(l.kernels), n)
	}
	return nil
}

// renew removes all kernels, and with them the server, which would need minutes for thousands. It starts a new one.
func (l *lane) renew() {
	s, ok := l.peer.(*server)
	if !ok {
		l.drop()
		return
	}
	l.kernels = nil
	s.stop()
	if err := s.run(); err != nil {
		l.b.fail(s.label, l.framing, err)
	}
}

// together does something with all of the lane's kernels at the same time, and returns the first error.
func (l *lane) together(do func(i int, k kernel) error) error {
	errs := make([]error, len(l.kernels))
	var all sync.WaitGroup
	for i, k := range l.kernels {
		all.Go(func() { errs[i] = do(i, k) })
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("client %d: %w", i, err)
		}
	}
	return nil
}

// manyClients measures clients that each execute a cell a second, on a kernel of its own.
func (b *bench) manyClients(n, seconds int) {
	b.someRounds(min(3, b.options.rounds), b.lanes(specHosted, 0, framingJSON), func(l *lane) error {
		defer l.renew()
		if err := l.fill(n); err != nil {
			return err
		}
		clients := make([]client, len(l.kernels))
		defer func() {
			for _, c := range clients {
				if c != nil {
					c.close()
				}
			}
		}()
		slots := make(chan struct{}, 8) // connections that are made at once
		if err := l.together(func(i int, k kernel) (err error) {
			slots <- struct{}{}
			defer func() { <-slots }()
			clients[i], err = k.connect(l.framing, true)
			return err
		}); err != nil {
			return err
		}
		servers := l.servers()
		before := usage.ProcessorTime(servers)
		answers := make([]answer, len(l.kernels))
		err := l.together(func(i int, _ kernel) (err error) {
			time.Sleep(time.Second * time.Duration(i) / time.Duration(n)) // not all in the same moment
			answers[i], err = clients[i].ask(asking{codes: repeat("", seconds), pace: time.Second,
				deadline: time.Duration(seconds+10) * time.Second})
			if err == nil && !answers[i].complete {
				err = fmt.Errorf("%d of %d cells were answered", len(answers[i].times), seconds)
			}
			return err
		})
		if err != nil {
			return err
		}
		used := usage.ProcessorTime(servers) - before
		var times []float64
		for _, a := range answers {
			times = append(times, in(time.Millisecond, a.times)...)
		}
		l.add("p50 ms", quantile(times, 0.5))
		l.add("p99 ms", quantile(times, 0.99))
		if len(servers) > 0 {
			l.add("CPU µs/cell", float64(used.Microseconds())/float64(len(times)))
		}
		return nil
	})
}

// servers returns the processes between clients and all kernels of the peer.
func (l *lane) servers() []int {
	s, ok := l.peer.(*server)
	if !ok {
		return nil
	}
	return append([]int{s.process.pid()}, s.supervisors()...)
}

// supervisors returns the processes that ekg runs beside its kernels: supervisors and their parents.
func (s *server) supervisors() []int {
	var all []int
	if !s.isEKG() {
		return nil
	}
	for _, p := range usage.WithText(s.dir) {
		if strings.Contains(p.Command, "ekg-supervisor ") {
			all = append(all, p.PID)
		}
	}
	return all
}

// idleKernels measures what kernels without clients cost. It does so once: the start of many kernels takes long.
func (b *bench) idleKernels(n int, period time.Duration) {
	b.someRounds(1, b.lanes(specHosted, 0, framingJSON), func(l *lane) error {
		s, ok := l.peer.(*server)
		if !ok {
			return nil // direct has no server
		}
		defer l.renew()
		empty := usage.Memory([]int{s.process.pid()})
		began := time.Now()
		if err := l.fill(n); err != nil {
			return err
		}
		n := len(l.kernels)
		l.add("kernels/s", float64(n)/time.Since(began).Seconds())
		time.Sleep(3 * time.Second) // the starts are over
		gateway, supervisors := []int{s.process.pid()}, s.supervisors()
		used, usedBeside := usage.ProcessorTime(gateway), usage.ProcessorTime(supervisors)
		time.Sleep(period)
		l.add("gateway CPU %", 100*(usage.ProcessorTime(gateway)-used).Seconds()/period.Seconds())
		l.add("gateway MB", float64(usage.Memory(gateway))/1e6)
		l.add("gateway kB/kernel", float64(usage.Memory(gateway)-empty)/1e3/float64(n))
		l.add("gateway descriptors", float64(usage.Descriptors(gateway)))
		if len(supervisors) > 0 {
			l.add("supervisors CPU %", 100*(usage.ProcessorTime(supervisors)-usedBeside).Seconds()/period.Seconds())
			l.add("supervisor kB", float64(usage.Memory(supervisors))/1e3/float64(n))
		}
		if err := l.lists(s, n, "list", ""); err != nil {
			return err
		}
		if s.isEKG() {
			return l.restart(s, n)
		}
		return nil
	})
}

// How many lists are measured: 1,000, so that ten are slower than the p99, if they fit into the time.
const (
	listsMost = 1000
	listsTime = 30 * time.Second
)

// lists measures GET /api/kernels, whose answer has n kernels. The client asks again as soon as it has an answer.
func (l *lane) lists(s *server, n int, metric, when string) error {
	var times []time.Duration
	var body bytes.Buffer // of all lists, so that the client makes little garbage
	for end := time.Now().Add(listsTime); len(times) < listsMost && time.Now().Before(end); {
		body.Reset()
		began := time.Now()
		if err := s.requestInto(&body, http.MethodGet, "/api/kernels", nil, http.StatusOK); err != nil {
			return err
		}
		times = append(times, time.Since(began))
		if got := bytes.Count(body.Bytes(), []byte(`"execution_state"`)); got < n {
			return fmt.Errorf("%d of %d kernels are listed", got, n)
		}
	}
	l.add(metric+" p50 ms"+when, quantile(in(time.Millisecond, times), 0.5))
	l.add(metric+" p99 ms"+when, quantile(in(time.Millisecond, times), 0.99))
	return nil
}

// restart kills the gateway, and measures how long a new one takes to list all kernels. Others lose their kernels then.
func (l *lane) restart(s *server, n int) error {
	_ = s.process.cmd.Process.Signal(syscall.SIGKILL) // it is waited for
	<-s.process.done
	began := time.Now()
	if err := s.run(); err != nil {
		return err
	}
	pause := max(5*time.Millisecond, time.Duration(n)*10*time.Microsecond) // a long list is work for the gateway
	for end := began.Add(2 * time.Minute); time.Now().Before(end); time.Sleep(pause) {
		body, err := s.request(http.MethodGet, "/api/kernels", nil, http.StatusOK)
		if err == nil && bytes.Count(body, []byte(`"idle"`)) >= n {
			l.add("after restart ms", time.Since(began).Seconds()*1e3)
			l.add("restart CPU ms", float64(usage.ProcessorTime([]int{s.process.pid()}).Milliseconds()))
			return nil
		}
	}
	return fmt.Errorf("the restarted gateway does not list %d idle kernels in 2 minutes", n)
}

// hostSocket is where stubs find the host of their kernels.
func (b *bench) hostSocket() string { return filepath.Join(b.dir, "host") }
