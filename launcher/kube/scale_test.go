package kube

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// awaitStreams waits until a launcher has status streams of exactly so many kernels.
func awaitStreams(t testing.TB, l *Launcher, kernels int) {
	t.Helper()
	for n := range kernels {
		waitFor(t, l, idOf(n), func(k launcher.Kernel) bool { return k.State == api.Idle && !k.Stale })
	}
	if all, err := l.Kernels(t.Context()); err != nil || len(all) != kernels {
		t.Fatalf("%d kernels are listed, %v", len(all), err)
	}
}

// asked counts the requests to the cluster since the last call.
func (c *testCluster) asked() map[string]int {
	all := map[string]int{}
	for _, a := range c.Actions() {
		all[a.GetVerb()+" "+a.GetResource().Resource]++
	}
	c.ClearActions()
	return all
}

// TestManyKernels: 200 kernels are no burden to a gateway, and the next gateway knows them soon.
func TestManyKernels(t *testing.T) {
	const n = 200
	c, f := newRunning(t, n)
	memory, goroutines := use()
	began := time.Now()
	l := openTest(t, c, nil)
	awaitStreams(t, l, n)
	t.Logf("%d kernels are known and their streams open after %v", n, time.Since(began))

	t.Run("what an idle kernel takes", func(t *testing.T) {
		m, g := use()
		// The supervisors are in this process, too.
		each, total, ours := (m-memory)/n, float64(g-goroutines)/n, ownGoroutines()
		t.Logf("with its supervisor's end of the stream: %d KiB and %.2f goroutines; the launcher itself has %d goroutines",
			each>>10, total, ours)
		if each > 200<<10 {
			t.Errorf("%d bytes for each kernel", each)
		}
		if ours > n+20 {
			t.Errorf("%d goroutines for %d kernels", ours, n)
		}
	})
	t.Run("lists while statuses change", func(t *testing.T) {
		// A busy machine delays some attempts, but not all.
		var p99 time.Duration
		for range 3 {
			if p99 = timeLists(t, l, f, n); p99 < 50*time.Millisecond {
				return
			}
		}
		t.Errorf("p99 is %v", p99)
	})
	t.Run("another gateway", func(t *testing.T) {
		began := time.Now()
		next := openTest(t, c, nil)
		known := time.Since(began)
		for i := range n {
			waitFor(t, next, idOf(i), func(k launcher.Kernel) bool { return !k.Stale })
		}
		took := time.Since(began)
		t.Logf("it knows %d kernels after %v and hears of all after %v", n, known, took)
		if took > 10*time.Second {
			t.Errorf("it takes %v", took)
		}
		if err := next.Stop(launcher.WithRequestID(t.Context(), "0123abcd"), idOf(7), "enough"); err != nil {
			t.Fatal(err)
		}
		s := f.of(idOf(7))
		s.mu.Lock()
		reason, request := s.reason, s.request
		s.mu.Unlock()
		if reason != "enough" || request != "0123abcd" {
			t.Errorf("its supervisor received %q by request %q", reason, request)
		}
		if all, err := next.Kernels(t.Context()); err != nil || len(all) != n-1 {
			t.Errorf("after one was stopped: %d, %v", len(all), err)
		}
	})
}

// timeLists lists the kernels some hundreds of times, while random kernels become busy and idle. It returns the 99th
// percentile of the times.
func timeLists(t *testing.T, l *Launcher, f *fakeSupervisors, kernels int) time.Duration {
	t.Helper()
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		changes := time.NewTicker(2 * time.Millisecond)
		defer changes.Stop()
		for {
			select {
			case <-changes.C:
				f.of(idOf(rand.N(kernels))).toggle()
			case <-done:
				return
			}
		}
	}()
	defer func() { close(done); <-over }()
	took := make([]time.Duration, 300)
	seen := map[string]bool{}
	first := time.Now()
	for i := range took {
		began := time.Now()
		all, err := l.Kernels(t.Context())
		took[i] = time.Since(began)
		if time.Since(first) > 10*time.Second {
			t.Fatalf("%d lists have taken ten seconds", i+1)
		}
		if err != nil || len(all) != kernels {
			t.Fatalf("%d kernels, %v", len(all), err)
		}
		var states strings.Builder
		for n, k := range all {
			if k.ID != idOf(n) || k.Stale {
				t.Fatalf("number %d is %+v", n, k)
			}
			states.WriteString(string(k.State))
		}
		seen[states.String()] = true
	}
	slices.Sort(took)
	t.Logf("a list of %d kernels: median %v, p99 %v, longest %v; %d lists were different", kernels, took[150], took[296],
		took[299], len(seen))
	if len(seen) < 2 {
		t.Error("the statuses have not changed")
	}
	return took[296]
}

// use returns what the process uses at present: bytes of its heap and stacks, and the number of goroutines.
func use() (memory, goroutines int) {
	runtime.GC()
	runtime.GC() // empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
}

// ownGoroutines counts the goroutines in methods of a Launcher.
func ownGoroutines() int {
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	n := 0
	for g := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(g, "/launcher/kube.(*Launcher).") {
			n++
		}
	}
	return n
}

// TestSteadyState: the requests of a gateway depend on its users' actions and not on the number of kernels. There is
// one request every five seconds for the reaper's lease. There is one list of pods for every ten seconds in which
// kernels are listed. A pod is patched when its kernel was idle for five minutes, and when the kernel becomes busy
// again. Every five minutes the gateway asks what it may watch. A real cluster also gets the watches again every five
// to ten minutes: of pods and of events for each namespace, and of the replicas.
func TestSteadyState(t *testing.T) {
	few, many := askedBy(t, 10), askedBy(t, 200)
	for i, want := range []struct {
		phase string
		asked map[string]int
	}{
		{"no requests", map[string]int{"update leases": 24}},
		{"lists and gets", map[string]int{"update leases": 24, "list pods": 12}},
		{"ten kernels busy and idle", map[string]int{"update leases": 24, "list pods": 12, "patch pods": 10}},
	} {
		for _, asked := range []map[string]int{few[i], many[i]} {
			if asked["create selfsubjectaccessreviews"] <= 4 { // of nodes, pods, slices and claims, in one phase of three
				delete(asked, "create selfsubjectaccessreviews")
			}
			if asked["get pods"] <= want.asked["patch pods"] { // a list may find a change before the watch brings it
				delete(asked, "get pods")
			}
		}
		if !maps.Equal(few[i], want.asked) || !maps.Equal(many[i], want.asked) {
			t.Errorf("%s: 10 kernels ask for %v in two minutes, 200 for %v, want %v", want.phase, few[i], many[i], want.asked)
		}
		t.Logf("%s: in two minutes 10 kernels ask for %v, 200 for %v", want.phase, few[i], many[i])
	}
}

// askedBy returns a launcher's requests to a cluster with so many kernels, in each of three phases of two minutes.
func askedBy(t *testing.T, kernels int) (phases []map[string]int) {
	synctest.Test(t, func(t *testing.T) {
		c, f := newRunning(t, kernels)
		// The bubble's clock stops while a goroutine waits for a socket, or for client-go's channel of a resync that
		// never comes.
		f.pipe = func() (net.Conn, net.Conn, error) { a, b := net.Pipe(); return a, b, nil }
		const evictable = 5 * time.Minute
		resync := func(o *Options, tm *timing) { o.EvictIdleAfter, tm.resync = evictable, 1000*time.Hour }
		for n := range kernels { // not all at one moment: the fake's watches have small buffers
			f.of(idOf(n)).set(func(st *api.Status) { st.LastActivity = time.Now().Add(-time.Duration(n) * time.Second) })
		}
		l := openTest(t, c, resync)
		awaitStreams(t, l, kernels)
		// Each kernel has been idle for long, and its pod is marked as evictable.
		time.Sleep(evictable + time.Minute)
		synctest.Wait()
		if got := c.asked()["patch pods"]; got != kernels {
			t.Errorf("until %d kernels are idle for long their pods are patched %d times", kernels, got)
		}
		phase := func(step func(n int)) {
			for n := range 60 {
				step(n)
				time.Sleep(2 * time.Second)
			}
			synctest.Wait()
			phases = append(phases, c.asked())
		}
		ask := func(n int) {
			if all, err := l.Kernels(t.Context()); err != nil || len(all) != kernels {
				t.Fatalf("%d kernels, %v", len(all), err)
			}
			for i := range 3 {
				if _, err := l.Kernel(t.Context(), idOf((3*n+i)%kernels)); err != nil {
					t.Fatal(err)
				}
			}
		}
		phase(func(int) {})
		phase(ask)
		phase(func(n int) { ask(n); f.of(idOf(n * 7 % 10)).toggle() })
	})
	return phases
}

// BenchmarkKernels measures a list of kernels that are up.
func BenchmarkKernels(b *testing.B) {
	for _, n := range []int{200, 2000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, _ := newRunning(b, n)
			l := openTest(b, c, nil)
			awaitStreams(b, l, n)
			b.ReportAllocs()
			for b.Loop() {
				l.freshness.proved(time.Now()) // a proof would measure the cluster
				if all, err := l.Kernels(b.Context()); err != nil || len(all) != n {
					b.Fatal(errors.Join(err, fmt.Errorf("%d kernels", len(all))))
				}
			}
		})
	}
}
