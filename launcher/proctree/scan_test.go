package proctree

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
)

const (
	testLeader   = 1234
	testInterval = time.Minute // between two measurements of a program
)

// machine has a clock, and sessions that each use a tenth of a processor.
type machine struct {
	path  string
	clock atomic.Int64
	scans atomic.Int32
}

func newMachine(t *testing.T) *machine {
	m := &machine{path: filepath.Join(t.TempDir(), "processors.json")}
	m.clock.Store(int64(time.Hour))
	return m
}

// program returns the Scan of another program.
func (m *machine) program() *Scan {
	s := NewScan(m.path)
	s.now = func() time.Duration { return time.Duration(m.clock.Load()) }
	s.scan = func() map[int]time.Duration {
		m.scans.Add(1)
		return map[int]time.Duration{testLeader: s.now() / 10}
	}
	return s
}

func (m *machine) pass(d time.Duration) { m.clock.Add(int64(d)) }

func TestScan_IsShared(t *testing.T) {
	m := newMachine(t)
	const programs, rounds = 120, 10
	var all []*Scan
	var last [programs]ProcessorTime
	for range programs {
		all = append(all, m.program())
	}
	began := time.Now()
	for round := range rounds {
		m.scans.Store(0)
		for i, s := range all { // evenly over the interval
			got := s.SessionTime(testLeader)
			at := time.Duration(m.clock.Load()) + time.Until(got.At).Round(time.Second)
			if age := time.Duration(m.clock.Load()) - at; age < -time.Second || age > maxScanAge+time.Second {
				t.Fatalf("a scan of %v ago is used", age)
			}
			// All rates are right, although the scans have any age.
			if round > 0 {
				if span := 10 * (got.Used - last[i].Used); span < testInterval-maxScanAge || span > testInterval+maxScanAge {
					t.Fatalf("program %d measured a span of %v", i, span)
				}
			}
			last[i] = got
			m.pass(testInterval / programs)
		}
		if n := m.scans.Load(); round > 0 && n > 7 {
			t.Errorf("%d programs needed %d scans in an interval", programs, n)
		}
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v", took)
	}
}

func TestScan_AtOneMoment(t *testing.T) {
	m := newMachine(t)
	var all []*Scan
	for range 50 {
		s := m.program()
		s.SessionTime(testLeader)
		all = append(all, s)
	}
	m.pass(testInterval)
	m.scans.Store(0)
	var asking sync.WaitGroup
	for _, s := range all {
		asking.Go(func() { s.SessionTime(testLeader) })
	}
	asking.Wait()
	if n := m.scans.Load(); n != 1 {
		t.Errorf("50 programs needed %d scans", n)
	}
}

func TestScan_OwnScan(t *testing.T) {
	good := func(s *Scan) scanned {
		return scanned{View: s.view, At: s.now() - time.Second, Sessions: map[int]time.Duration{testLeader: 7}}
	}
	for name, c := range map[string]struct {
		change func(*Scan, *scanned)
		own    bool
	}{
		"a good scan of another program": {func(*Scan, *scanned) {}, false},
		"of another boot":                {func(_ *Scan, f *scanned) { f.View = "other" }, true},
		"too old":                        {func(_ *Scan, f *scanned) { f.At -= testInterval / scanShare }, true},
		"of the future":                  {func(_ *Scan, f *scanned) { f.At += 2 * time.Second }, true},
		"without the session":            {func(_ *Scan, f *scanned) { f.Sessions = map[int]time.Duration{1: 7} }, true},
		"used before":                    {func(s *Scan, f *scanned) { s.used = f.At }, true},
		"the first one":                  {func(s *Scan, _ *scanned) { s.asked = 0 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			s := m.program()
			s.SessionTime(testLeader)
			m.pass(testInterval)
			file := good(s)
			c.change(s, &file)
			b, err := json.Marshal(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := files.Write(m.path, b); err != nil {
				t.Fatal(err)
			}
			m.scans.Store(0)
			got := s.SessionTime(testLeader)
			if own := m.scans.Load() == 1; own != c.own || own == (got.Used == 7) {
				t.Errorf("it scanned: %v; measured %v", own, got.Used)
			}
		})
	}
	t.Run("the file holds something else and cannot be written", func(t *testing.T) {
		m := newMachine(t)
		if err := os.MkdirAll(m.path+".lock", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(m.path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := m.program().SessionTime(testLeader); got.Used != time.Hour/10 {
			t.Errorf("measured %v", got.Used)
		}
	})
	t.Run("another program is stopped in its scan", func(t *testing.T) {
		m := newMachine(t)
		lock, err := os.OpenFile(m.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = lock.Close() }()
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		if got := m.program().SessionTime(testLeader); got.Used != time.Hour/10 {
			t.Errorf("measured %v", got.Used)
		}
	})
}

// TestScan_Processes measures a real session, by a scan of its own and by another program's.
func TestScan_Processes(t *testing.T) {
	busy := orphan(t, nil, "sh", "-c", "while :; do :; done & wait")
	path := filepath.Join(t.TempDir(), "processors.json")
	first, second := NewScan(path), NewScan(path)
	var used time.Duration
	waitUntil(t, "the session has used half a second", func() bool {
		second.SessionTime(busy.Process.Pid)
		used = first.SessionTime(busy.Process.Pid).Used
		return used > 500*time.Millisecond
	})
	if own := SessionTime(busy.Process.Pid).Used; own < used || own > used+30*time.Second {
		t.Errorf("measured %v, then %v", used, own)
	}
}

// BenchmarkScan measures all kernels of a machine once, as it happens in each --cull-interval: each program with scans
// of its own, and with shared ones. Every kernel is one process here.
func BenchmarkScan(b *testing.B) {
	const kernels = 100
	leaders := make(map[int]*exec.Cmd)
	for range kernels {
		cmd := exec.Command("sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		leaders[cmd.Process.Pid] = cmd
	}
	b.Cleanup(func() {
		for _, cmd := range leaders {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		}
	})
	for _, shared := range []bool{false, true} {
		b.Run(fmt.Sprintf("shared=%v", shared), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "processors.json")
			all := make(map[int]*Scan)
			clock := time.Hour
			for leader := range leaders {
				if shared {
					all[leader] = NewScan(path)
					all[leader].now = func() time.Duration { return clock }
				} else {
					all[leader] = nil
				}
			}
			order := maps.Keys(all)
			for b.Loop() {
				for leader := range order {
					all[leader].SessionTime(leader)
					clock += testInterval / kernels
				}
			}
		})
	}
}
