package election

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	leases "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"
)

var timing = Timing{Duration: 5 * time.Second, Renew: 4 * time.Second, Retry: time.Second, Release: true}

var resource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// server is an API server with one lease. It rejects what does not follow from the present version.
type server struct {
	leases.LeaseInterface
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	asked   int
}

func (s *server) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.lease == nil {
		return nil, apierrors.NewNotFound(resource, "lease")
	}
	return s.lease.DeepCopy(), nil
}

func (s *server) Create(_ context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.lease != nil {
		return nil, apierrors.NewAlreadyExists(resource, "lease")
	}
	return s.store(l), nil
}

func (s *server) Update(_ context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.lease == nil || s.lease.ResourceVersion != l.ResourceVersion {
		return nil, apierrors.NewConflict(resource, "lease", errors.New("it has changed"))
	}
	return s.store(l), nil
}

func (s *server) store(l *coordinationv1.Lease) *coordinationv1.Lease {
	l = l.DeepCopy()
	s.version++
	l.ResourceVersion = strconv.Itoa(s.version)
	s.lease = l
	return l.DeepCopy()
}

// now returns the lease, and the number of requests so far.
func (s *server) now() (*coordinationv1.Lease, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.DeepCopy(), s.asked
}

// unreliable is a server whose requests wait, fail, or have their answers lost.
type unreliable struct {
	*server
	random *rand.Rand
	mu     *sync.Mutex  // of random
	away   *atomic.Bool // no request is answered
}

func fault[T any](ctx context.Context, u unreliable, ask func() (T, error)) (answer T, err error) {
	u.mu.Lock()
	kind, wait := u.random.IntN(10), time.Duration(u.random.IntN(3000))*time.Millisecond
	u.mu.Unlock()
	if kind < 4 {
		wait /= 100
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return answer, ctx.Err()
	}
	switch {
	case u.away.Load():
		<-ctx.Done()
		return answer, ctx.Err()
	case kind == 8:
		return answer, errors.New("refused")
	}
	answer, err = ask()
	if kind == 9 {
		return answer, errors.New("the answer was lost")
	}
	return answer, err
}

func (u unreliable) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	return fault(ctx, u, func() (*coordinationv1.Lease, error) { return u.server.Get(ctx, name, o) })
}

func (u unreliable) Create(ctx context.Context, l *coordinationv1.Lease, o metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	return fault(ctx, u, func() (*coordinationv1.Lease, error) { return u.server.Create(ctx, l, o) })
}

func (u unreliable) Update(ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	return fault(ctx, u, func() (*coordinationv1.Lease, error) { return u.server.Update(ctx, l, o) })
}

func candidate(t *testing.T, s leases.LeaseInterface, name string) *Election {
	return New(Options{Leases: s, Name: "lease", Labels: map[string]string{"app": "x"}, Holder: name, Timing: timing,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
}

// run takes part until the returned function is called.
func run(ctx context.Context, e *Election, lead func(context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { e.Run(ctx, lead) })
	return func() { cancel(); done.Wait() }
}

// TestElection_Takes: a lease that is given back is taken at the next look, and one that is not after its duration. The
// holder makes one request for each renewal.
func TestElection_Takes(t *testing.T) {
	for _, given := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{}
			leads := make(chan string, 9)
			lead := func(name string) func(context.Context) {
				return func(ctx context.Context) { leads <- name; <-ctx.Done() }
			}
			a := candidate(t, s, "a")
			a.opts.Timing.Release = given
			endA := run(t.Context(), a, lead("a"))
			got := <-leads
			lease, before := s.now()
			if got != "a" || !a.Holds() || holder(lease) != "a" || lease.Labels["app"] != "x" {
				t.Fatalf("%s leads, it holds: %v, %v", got, a.Holds(), lease)
			}
			time.Sleep(time.Minute)
			if _, n := s.now(); n-before < 58 || n-before > 60 || !a.Holds() {
				t.Errorf("%d requests in a minute, it holds: %v", n-before, a.Holds())
			}
			b := candidate(t, s, "b")
			endB := run(t.Context(), b, lead("b"))
			time.Sleep(time.Minute)
			if b.Holds() || len(leads) > 0 {
				t.Error("two hold the lease")
			}
			endA()
			if a.Holds() {
				t.Error("it holds the lease after its end")
			}
			began, most := time.Now(), 8*time.Second
			if given {
				most = 2300 * time.Millisecond
			}
			if got, took := <-leads, time.Since(began); got != "b" || took > most || !given && took < 4*time.Second {
				t.Errorf("%s leads after %s", got, took)
			}
			if lease, _ = s.now(); ptr.Deref(lease.Spec.LeaseTransitions, 0) != 2 {
				t.Errorf("%v", lease.Spec)
			}
			endB()
		})
	}
}

// TestElection_LeadReturns: a leader that returns gives the lease back, and takes part again.
func TestElection_LeadReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, times := &server{}, make(chan time.Time, 9)
		end := run(t.Context(), candidate(t, s, "a"), func(context.Context) { times <- time.Now() })
		first, second := <-times, <-times
		if second.Sub(first) < time.Second || second.Sub(first) > 3*time.Second {
			t.Errorf("again after %s", second.Sub(first))
		}
		end()
		if lease, _ := s.now(); holder(lease) != "" {
			t.Errorf("%s holds the lease", holder(lease))
		}
	})
}

// TestElection_Taken: the context of a leader ends soon after another one has the lease, which is not taken back.
func TestElection_Taken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ended := &server{}, make(chan struct{}, 9)
		e := candidate(t, s, "a")
		end := run(t.Context(), e, func(ctx context.Context) { <-ctx.Done(); ended <- struct{}{} })
		time.Sleep(10 * time.Second)
		taken, _ := s.now()
		taken.Spec.HolderIdentity = new("b")
		if _, err := s.Update(t.Context(), taken, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		<-ended
		if took := time.Since(began); took > 2*time.Second+timing.Retry || e.Holds() {
			t.Errorf("after %s, it holds: %v", took, e.Holds())
		}
		if lease, _ := s.now(); holder(lease) != "b" {
			t.Errorf("%q holds the lease", holder(lease))
		}
		end()
	})
}

// slow is a server that answers after a time.
type slow struct {
	leases.LeaseInterface
	after time.Duration
	err   error // instead of each answer, if it is not nil
}

func (s slow) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	time.Sleep(s.after)
	if s.err != nil {
		return nil, s.err
	}
	return s.LeaseInterface.Get(ctx, name, o)
}

func (s slow) Update(ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	time.Sleep(s.after)
	return s.LeaseInterface.Update(ctx, l, o)
}

// TestElection_Slow: the holder keeps the lease, though each answer of the API server takes nearly as long as Renew.
func TestElection_Slow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var led atomic.Int32
		end := run(t.Context(), candidate(t, slow{&server{}, 2900 * time.Millisecond, nil}, "a"),
			func(ctx context.Context) { led.Add(1); <-ctx.Done() })
		time.Sleep(time.Hour)
		if n := led.Load(); n != 1 {
			t.Errorf("it led %d times", n)
		}
		end()
	})
}

// TestElection_Refused: the log says once why this gateway cannot take part.
func TestElection_Refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		e := candidate(t, slow{&server{}, 0, errors.New("leases is forbidden")}, "a")
		e.opts.Log = slog.New(slog.NewTextHandler(&log, nil))
		end := run(t.Context(), e, func(context.Context) { t.Error("it leads") })
		time.Sleep(time.Minute)
		end()
		if strings.Count(log.String(), "leases is forbidden") != 1 || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("the log is %s", &log)
		}
	})
}

// TestElection_Faults: with requests that fail, wait or have their answers lost, at most one candidate holds the lease
// at each moment, and each outage ends with one that does.
func TestElection_Faults(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				away := make([]atomic.Bool, 4)
				random := unreliable{server: &server{}, random: rand.New(rand.NewPCG(seed, 1)), mu: new(sync.Mutex)}
				all := make([]*Election, len(away))
				for i := range all {
					u := random
					u.away = &away[i]
					all[i] = candidate(t, u, strconv.Itoa(i))
					var leading atomic.Int32
					defer run(t.Context(), all[i], func(ctx context.Context) {
						if leading.Add(1) > 1 {
							t.Error("it leads twice")
						}
						<-ctx.Done()
						leading.Add(-1)
					})()
				}
				held := 0
				for range 6000 {
					time.Sleep(100 * time.Millisecond)
					n := 0
					for _, e := range all {
						if e.Holds() {
							n++
						}
					}
					if n > 1 {
						t.Fatalf("%d hold the lease", n)
					}
					held += n
					random.mu.Lock()
					if random.random.IntN(100) == 0 {
						i := random.random.IntN(len(away))
						away[i].Store(!away[i].Load() && i > 0) // one is never away
					}
					random.mu.Unlock()
				}
				if held < 2000 {
					t.Errorf("in %d of 6000 looks one held the lease", held)
				}
			})
		})
	}
}

// TestWithin: neither a clock that is set nor a machine that was suspended makes a lease longer.
func TestWithin(t *testing.T) {
	from := time.Now()
	if !within(from, from.Add(3*time.Second), 4*time.Second) || within(from, from.Add(4*time.Second), 4*time.Second) {
		t.Error("by both clocks")
	}
	// The test cannot make the two clocks differ; a time without a monotonic reading stands for that.
	if within(from, from.Round(0).Add(time.Hour), 4*time.Second) {
		t.Error("the machine was suspended")
	}
}
