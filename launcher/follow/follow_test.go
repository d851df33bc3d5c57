package follow

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const testID = "01234567-89ab-cdef-0123-456789abcdef"

// place is a follower in a bubble of synctest, and the fields that a launcher would have.
type place struct {
	*Follower
	mu         sync.Mutex
	goroutines goroutines.Group
	close      context.CancelCauseFunc
}

var errTestOver = errors.New("the test is over")

func newPlace(t *testing.T) *place {
	ctx, cancel := context.WithCancelCause(t.Context())
	p := &place{close: cancel}
	p.Follower = New(ctx, Options{
		Lock:        &p.mu,
		Goroutines:  &p.goroutines,
		FirstRedial: time.Second,
		LastRedial:  4 * time.Second,
		Since:       time.Now(),
		Log:         slog.New(slog.DiscardHandler),
	})
	t.Cleanup(func() {
		p.close(errTestOver)
		p.goroutines.Close()
		p.goroutines.Wait()
	})
	return p
}

// testKernel is a kernel whose supervisor writes to each stream the statuses that serve returns, and then breaks the
// stream.
type testKernel struct {
	p          *place
	supervisor Supervisor
	serve      func(attempt int) []api.Status
	hold       bool // streams stay open
	rests      []time.Duration
	attempts   int
	received   int
	panics     int // how many statuses make Receive panic
}

func newTestKernel(p *place, serve func(attempt int) []api.Status) *testKernel {
	return &testKernel{p: p, supervisor: NewSupervisor(), serve: serve}
}

func (k *testKernel) follow() {
	k.p.mu.Lock()
	defer k.p.mu.Unlock()
	k.p.FollowLocked(&k.supervisor, k)
}

func (k *testKernel) ID() string { return testID }

func (k *testKernel) Client() (*api.Client, error) {
	return &api.Client{KernelID: testID, Dial: func(context.Context) (net.Conn, error) {
		k.attempts++
		lines := k.serve(k.attempts)
		if lines == nil {
			return nil, errors.New("connection refused")
		}
		ours, theirs := net.Pipe()
		k.p.goroutines.Go(func() { k.answer(theirs, lines) })
		return ours, nil
	}}, nil
}

// answer serves one stream. It ignores errors: they come from a follower that has closed the connection.
func (k *testKernel) answer(conn net.Conn, lines []api.Status) {
	defer conn.Close() //nolint:errcheck // nothing depends on it
	in := bufio.NewReader(conn)
	if _, err := http.ReadRequest(in); err != nil {
		return
	}
	_, _ = fmt.Fprint(conn, "HTTP/1.1 200 OK\r\n\r\n")
	for _, st := range lines {
		if json.NewEncoder(conn).Encode(st) != nil {
			return
		}
	}
	if k.hold {
		_, _ = in.ReadByte() // until the follower leaves
	}
}

func (k *testKernel) Receive(_ api.Status, enterLocked func() (Supervisor, bool)) {
	k.p.mu.Lock()
	defer k.p.mu.Unlock()
	if k.panics > 0 {
		k.panics--
		panic("a status that a kernel has forged")
	}
	if _, ok := enterLocked(); ok {
		k.received++
	}
}

func (k *testKernel) Rest(pause time.Duration) bool {
	k.rests = append(k.rests, pause)
	select {
	case <-time.After(pause):
		return true
	case <-k.p.ctx.Done():
		return false
	}
}

func status(state api.State) api.Status {
	return api.Status{Protocol: api.ProtocolVersion, KernelID: testID, State: state}
}

func TestFollower_PausesGrowUntilAStatusComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		k := newTestKernel(p, func(attempt int) []api.Status {
			if attempt == 5 {
				return []api.Status{status(api.Idle)}
			}
			return nil
		})
		k.follow()
		time.Sleep(16 * time.Second) // 1, 2, 4, 4 seconds and up to a quarter more; then one, which ends after 15; then two
		synctest.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(k.rests) < 6 {
			t.Fatalf("it has rested %v", k.rests)
		}
		for i, least := range []time.Duration{1, 2, 4, 4, 1, 2} {
			if least *= time.Second; k.rests[i] < least || k.rests[i] > least*5/4 {
				t.Errorf("pause %d is %s, want %s and up to a quarter more", i, k.rests[i], least)
			}
		}
		if s := &k.supervisor; !s.HasStatus || s.Streaming || !s.SaysLocked(api.Idle, api.Busy) || s.SaysLocked(api.Dead) ||
			!s.TriedLocked() {
			t.Errorf("after a stream that has broken: %+v", s)
		}
		var d launcher.Kernel
		if k.supervisor.DescribeLocked(&d, false, ""); d.State != api.Idle || !d.Stale {
			t.Errorf("it is described as %+v", d)
		}
	})
}

// TestFollower_LogsDeaths: each death of a kernel is logged once, also if it happened before this gateway. A death from
// before that some client has noticed is not news.
func TestFollower_LogsDeaths(t *testing.T) {
	died := func(n int, shown bool) api.Status {
		st := status(api.Idle)
		st.LastDeath = api.NewDeath(time.Date(2026, 1, 1, n, 0, 0, 0, time.UTC), fmt.Sprint("reason ", n))
		if shown {
			st.Reason = st.LastDeath.Text()
		}
		return st
	}
	starting := func(n int) api.Status {
		st := died(n, false)
		st.State = api.Starting
		return st
	}
	for name, tc := range map[string]struct {
		first []api.Status
		want  []int
	}{
		"before, and it starts":           {[]api.Status{starting(1), starting(1), died(1, true)}, []int{1}},
		"before, noticed, and it starts":  {[]api.Status{starting(1), died(1, false), died(2, true)}, []int{2}},
		"while it is followed and starts": {[]api.Status{status(api.Idle), starting(1), died(1, true)}, []int{1}},
		"while it is followed": {
			[]api.Status{status(api.Idle), died(1, true), died(1, false), died(2, true)}, []int{1, 2}},
		"before, and noticed":          {[]api.Status{died(1, false), died(2, true)}, []int{2}},
		"again after an upgrade":       {[]api.Status{died(1, true), status(api.Idle), died(1, true)}, []int{1}},
		"before, and not noticed":      {[]api.Status{died(1, true), died(1, false)}, []int{1}},
		"noticed before the next line": {[]api.Status{status(api.Idle), died(1, false)}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlace(t)
				var log bytes.Buffer
				p.opts.Log = slog.New(slog.NewTextHandler(&log, nil))
				k := newTestKernel(p, func(attempt int) []api.Status {
					if attempt == 1 {
						return tc.first
					}
					return tc.first[len(tc.first)-1:]
				})
				k.follow()
				time.Sleep(10 * time.Second)
				synctest.Wait()
				p.mu.Lock()
				k.supervisor.ForgetLocked() // another supervisor says the same again
				p.FollowLocked(&k.supervisor, k)
				p.mu.Unlock()
				time.Sleep(10 * time.Second)
				synctest.Wait()
				p.mu.Lock()
				defer p.mu.Unlock()
				var want []string
				for _, n := range tc.want {
					want = append(want, fmt.Sprintf("kernel=%s at=2026-01-01T%02d:00:00.000Z reason=\"reason %d\"", testID, n, n))
				}
				got := strings.Split(strings.TrimSpace(log.String()), "\n")
				if len(got) != len(want) {
					t.Fatalf("the log is %q, want %q", got, want)
				}
				for i := range want {
					if !strings.Contains(got[i], `level=WARN msg="kernel died" `+want[i]) {
						t.Errorf("the log has %q, want %q", got[i], want[i])
					}
				}
				var d launcher.Kernel
				if k.supervisor.DescribeLocked(&d, false, ""); d.LastDeath != tc.first[len(tc.first)-1].LastDeath {
					t.Errorf("it is described as %+v", d)
				}
			})
		})
	}
}

func TestFollower_LeavesAnotherProtocolVersionAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		k := newTestKernel(p, func(int) []api.Status {
			st := status(api.Idle)
			st.Protocol = api.NewestProtocolVersion + 1
			return []api.Status{st}
		})
		k.follow()
		found := time.Now()
		for attempts := 1; attempts <= 2; attempts++ {
			time.Sleep(unsupportedPause - time.Second)
			synctest.Wait()
			p.mu.Lock()
			d := launcher.Kernel{LastActivity: found.Add(-time.Hour)}
			if k.supervisor.DescribeLocked(&d, false, ""); d.State != api.Unknown || d.Reason != k.supervisor.Unsupported ||
				d.Reason == "" || !d.Stale || k.attempts != attempts {
				t.Errorf("after %d attempts it is described as %+v", k.attempts, d)
			}
			if !d.LastActivity.Equal(found.Add(time.Duration(attempts-1) * unsupportedPause)) {
				t.Errorf("after %d attempts, its last activity is %s", k.attempts, d.LastActivity)
			}
			p.mu.Unlock()
			time.Sleep(time.Second)
		}
	})
}

func TestFollower_IgnoresAStreamThatItHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		lines := []api.Status{status(api.Idle)}
		k := newTestKernel(p, func(int) []api.Status { return lines })
		k.hold = true
		k.follow()
		synctest.Wait()
		p.mu.Lock()
		if !k.supervisor.FollowedLocked() || !k.supervisor.Streaming || k.received != 1 {
			t.Errorf("followed: %+v", k.supervisor)
		}
		k.supervisor.ForgetLocked()
		p.mu.Unlock()
		p.Await(t.Context(), &k.supervisor, func() bool { return !k.supervisor.HasStatus })
		if k.supervisor.FollowedLocked() {
			t.Error("it is followed")
		}
		k.follow() // by a second goroutine; the first one ends with its stream
		synctest.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if k.received != 2 || k.attempts != 2 || !k.supervisor.Streaming {
			t.Errorf("received %d statuses on %d streams: %+v", k.received, k.attempts, k.supervisor)
		}
	})
}

// At most maxOpening streams are being opened at one time. A stream that is open does not count.
func TestFollower_BoundsStreamsBeingOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		silent := make([]*testKernel, maxOpening+3)
		for i := range silent {
			silent[i] = newTestKernel(p, func(int) []api.Status { return []api.Status{} })
			silent[i].hold = true
			silent[i].follow()
		}
		synctest.Wait()
		opening := 0
		for _, k := range silent {
			opening += k.attempts
		}
		if opening != maxOpening {
			t.Errorf("%d streams are being opened", opening)
		}
	})
}

func TestFollower_WaitEndsWithTheLauncher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		s := NewSupervisor()
		time.AfterFunc(time.Second, func() { p.close(errTestOver) })
		_, err := p.Wait(t.Context(), &s, func() (launcher.Kernel, error) { return launcher.Kernel{}, nil },
			func(launcher.Kernel) bool { return false })
		if err != errTestOver {
			t.Errorf("the error is %v", err)
		}
	})
}

// TestFollower_SurvivesAPanic: what one supervisor sends ends its stream, and not the follower. The lock is free.
func TestFollower_SurvivesAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		k := newTestKernel(p, func(int) []api.Status { return []api.Status{status(api.Idle)} })
		k.panics = 2
		k.follow()
		time.Sleep(10 * time.Second)
		p.mu.Lock()
		defer p.mu.Unlock()
		if k.panics != 0 || k.received == 0 {
			t.Errorf("after panics, %d of which are left, it has received %d statuses", k.panics, k.received)
		}
	})
}
