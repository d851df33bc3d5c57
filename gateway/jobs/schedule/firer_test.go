package schedule

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// memory is a Store. Its jobs are by definition and time, so that a repeated firing makes none.
type memory struct {
	mu          sync.Mutex
	definitions map[string]*Definition
	jobs        map[string]map[time.Time]int // how often each was fired
	fails       int                          // that many calls
	broken      []string
}

func (m *memory) Scheduled(context.Context) (list []Definition, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.definitions {
		list = append(list, *d)
	}
	return list, nil
}

func (m *memory) Fire(_ context.Context, id string, due time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails > 0 {
		m.fails--
		return errors.New("no connection")
	}
	if m.jobs[id] == nil {
		m.jobs[id] = map[time.Time]int{}
	}
	m.jobs[id][due.UTC()]++
	if d := m.definitions[id]; d != nil && due.After(d.Since) {
		d.Since = due
	}
	return nil
}

func (m *memory) Broken(_ context.Context, d Definition, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.definitions, d.ID)
	m.broken = append(m.broken, d.ID+": "+err.Error())
}

func (m *memory) add(t *testing.T, id, expression, zone string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.definitions[id] = &Definition{ID: id, Schedule: parse(t, expression, zone), Since: time.Now()}
}

// gateway runs a Firer until the returned function is called.
func gateway(t *testing.T, m *memory, changed <-chan struct{}) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	f := &Firer{Store: m, Changed: changed, Log: slog.New(slog.DiscardHandler), Poll: 5 * time.Minute}
	done.Go(func() { f.Run(ctx) })
	return func() { cancel(); done.Wait() }
}

func newMemory() *memory {
	return &memory{definitions: map[string]*Definition{}, jobs: map[string]map[time.Time]int{}}
}

// TestFirer_Day: a day's schedules with two gateways, of which at most one is away at a time. The clock is a fake one,
// which begins on 2000-01-01. Each time is fired, and on time.
func TestFirer_Day(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.fails = 3
		begin := time.Now()
		m.add(t, "quarters", "*/15 * * * *", "Europe/Berlin")
		m.add(t, "daily", "30 9 * * *", "America/New_York")
		m.add(t, "monthly", "0 0 1 * *", "")
		first, second := gateway(t, m, nil), gateway(t, m, nil)
		for range 24 {
			time.Sleep(30 * time.Minute)
			first()
			time.Sleep(5 * time.Minute)
			first = gateway(t, m, nil)
			time.Sleep(20 * time.Minute)
			second()
			time.Sleep(5 * time.Minute)
			second = gateway(t, m, nil)
		}
		synctest.Wait()
		first()
		second()
		end := time.Now()
		if n := len(m.jobs["quarters"]); n != 96 {
			t.Errorf("%d quarters of the day", n)
		}
		for at := begin.Add(15 * time.Minute); !at.After(end); at = at.Add(15 * time.Minute) {
			if m.jobs["quarters"][at.UTC()] == 0 {
				t.Errorf("%s is missing", at)
			}
		}
		daily := m.jobs["daily"]
		if len(daily) != 1 || daily[time.Date(2000, 1, 1, 14, 30, 0, 0, time.UTC)] == 0 || len(m.jobs["monthly"]) != 0 {
			t.Errorf("daily %v, monthly %v", daily, m.jobs["monthly"])
		}
	})
}

// TestFirer_Missed: while no gateway lives, firings are missed. The newest is made up for within the deadline.
func TestFirer_Missed(t *testing.T) {
	for _, test := range []struct {
		away  time.Duration
		fired int
	}{{2*time.Hour + 5*time.Minute, 1}, {2*time.Hour + 30*time.Minute, 0}} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			m.add(t, "hours", "0 * * * *", "")
			time.Sleep(test.away)
			stop := gateway(t, m, nil)
			synctest.Wait()
			stop()
			if n := len(m.jobs["hours"]); n != test.fired {
				t.Errorf("after %s: %d are made up for, want %d", test.away, n, test.fired)
			}
		})
	}
}

// TestFirer_Changed: a new definition is noticed at once.
func TestFirer_Changed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, changed := newMemory(), make(chan struct{})
		stop := gateway(t, m, changed)
		time.Sleep(59 * time.Second)
		m.add(t, "minutes", "* * * * *", "")
		changed <- struct{}{}
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		stop()
		if len(m.jobs["minutes"]) != 1 {
			t.Errorf("fired %v", m.jobs["minutes"])
		}
	})
}

// TestFirer_Broken: a schedule whose times cannot be computed ends neither the process nor the other schedules.
func TestFirer_Broken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.add(t, "minutes", "* * * * *", "")
		m.definitions["broken"] = &Definition{ID: "broken", Schedule: &Schedule{}, Since: time.Now()}
		stop := gateway(t, m, nil)
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		stop()
		if len(m.jobs["minutes"]) != 1 {
			t.Errorf("the other schedule has fired %v", m.jobs["minutes"])
		}
		if len(m.broken) != 1 || !strings.HasPrefix(m.broken[0], "broken: panic: ") ||
			!strings.Contains(m.broken[0], "schedule.go") {
			t.Errorf("broken: %q, want one with the stack", m.broken)
		}
	})
}
