package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// testLimits limits the kernels, in all and for each owner.
type testLimits struct {
	all, each int
	slow      time.Duration // that a decision takes
	most      atomic.Int64  // largest number that was ever counted
}

func (l *testLimits) Set() bool { return true }

func (l *testLimits) Decide(start launcher.Held, held []launcher.Held) (v launcher.Verdict) {
	own := 0
	for _, h := range held {
		if h.Owner == start.Owner {
			own++
		}
	}
	l.most.Store(max(l.most.Load(), int64(len(held))))
	time.Sleep(l.slow) // a slow decision: other starts would come in between, if they could
	if len(held) >= l.all || own >= l.each {
		for _, h := range held {
			v.Against = append(v.Against, h.ID)
		}
		v.Refused = &launcher.LimitError{Limit: "test",
			Reason: fmt.Sprintf("there are %d of %d, %d of them of %s", len(held), l.all, own, start.Owner)}
	}
	return v
}

// limited sets the limits of all launchers of the place.
func (p *place) limited(all, each int) *testLimits {
	limits := &testLimits{all: all, each: each}
	p.change = func(o *Options, _ *timing) { o.Limits = limits }
	return limits
}

// locked is the number of kernels of the place with a supervisor.
func (p *place) locked() (n int) {
	locks, err := filepath.Glob(filepath.Join(p.state, "kernels", "*-*-*-*-*", lockFile))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, path := range locks {
		f, err := os.Open(path)
		if err != nil {
			continue // it has gone
		}
		if errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
			n++
		}
		flock.Unlock(f)
	}
	return n
}

func (p *place) tryStart(l *Launcher, n int, owner, mode string) error {
	_, _, err := l.Start(p.t.Context(), launcher.Request{ID: id(n), Owner: owner, Spec: fakeSpec(mode)})
	return err
}

func isLimit(err error) bool { return errors.As(err, new(*launcher.LimitError)) }

// Several launchers of one state directory, two of them in other processes, start kernels at the same time. There are
// never too many kernels. In the end there are exactly as many as the limits allow, also after some were stopped.
func TestLimits_Property(t *testing.T) {
	for seed := range 3 {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(2, uint64(seed)))
			p := newPlace(t)
			limits := p.limited(4+random.IntN(3), 2)
			limits.slow = 2 * time.Millisecond
			launchers := []*Launcher{p.launcher(), p.launcher()}
			var others []*exec.Cmd
			var starting sync.WaitGroup
			for i := range 2 {
				cmd := exec.Command(os.Args[0], "limited", p.state, p.runtime, fmt.Sprint(limits.all), fmt.Sprint(limits.each),
					fmt.Sprint(1000*(i+1)))
				out, err := cmd.StdoutPipe()
				if err == nil {
					err = cmd.Start()
				}
				if err != nil {
					t.Fatal(err)
				}
				others = append(others, cmd)
				starting.Go(func() {
					for lines := bufio.NewScanner(out); lines.Scan(); {
						if lines.Text() != "limit" && lines.Text() != "started" {
							t.Errorf("another gateway: %s", lines.Text())
						}
					}
				})
			}
			for n := range 40 {
				l := launchers[random.IntN(len(launchers))]
				starting.Go(func() {
					if err := p.tryStart(l, n, fmt.Sprint("user", n%4), "fine"); err != nil && !isLimit(err) {
						t.Errorf("start %d: %v", n, err)
					}
					if there := p.locked(); there > limits.all {
						t.Errorf("%d kernels are there, %d may be", there, limits.all)
					}
				})
			}
			starting.Wait()
			for _, cmd := range others {
				if err := cmd.Wait(); err != nil {
					t.Errorf("another gateway: %v", err)
				}
			}
			if there := p.locked(); there != limits.all {
				t.Errorf("%d kernels are there, %d may be", there, limits.all)
			}
			if most := limits.most.Load(); most > int64(limits.all) {
				t.Errorf("%d were counted", most)
			}
			all, err := launchers[0].Kernels(t.Context())
			if err != nil || len(all) != limits.all {
				t.Fatalf("%d are listed, %v", len(all), err)
			}
			for _, k := range all[:2] {
				if err := launchers[1].Stop(t.Context(), k.ID, "to make room"); err != nil {
					t.Fatal(err)
				}
			}
			for n := range 3 {
				err := p.tryStart(launchers[n%2], 5000+n, fmt.Sprint("newcomer", n), "fine")
				if tooMany := n == 2; isLimit(err) != tooMany || !tooMany && err != nil {
					t.Errorf("start %d in the room of two: %v", n, err)
				}
			}
		})
	}
}

// limitedMain is a gateway with limits that starts some kernels at the same time.
func limitedMain(state, runtime string, all, each, first int) int {
	l, err := Open(context.Background(), Options{
		StateDir:   state,
		RuntimeDir: runtime,
		Supervisor: os.Args[0],
		Limits:     &testLimits{all: all, each: each, slow: 2 * time.Millisecond},
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer l.Close() //nolint:errcheck // nothing depends on it
	var starting sync.WaitGroup
	for n := range 20 {
		starting.Go(func() {
			_, _, err := l.Start(context.Background(),
				launcher.Request{ID: id(first + n), Owner: fmt.Sprint("user", n%4), Spec: fakeSpec("fine")})
			switch {
			case err == nil:
				fmt.Println("started")
			case isLimit(err):
				fmt.Println("limit")
			default:
				fmt.Println(err)
			}
		})
	}
	starting.Wait()
	return 0
}

// A kernel that has ended does not count, whether or not a gateway has noticed. A restart counts as a start.
func TestLimits_Dead(t *testing.T) {
	p := newPlace(t)
	p.limited(1, 1)
	l, other := p.launcher(), p.launcher()
	p.start(l, 1, "fine")
	wait(t, l, 1, "idle", isIdle)
	if err := p.tryStart(other, 2, "ann", "fine"); !isLimit(err) || !strings.Contains(err.Error(), "1 of 1") {
		t.Fatalf("%v", err)
	}
	if err := p.tryStart(other, 1, "ann", "fine"); err != nil {
		t.Errorf("a repeated start: %v", err)
	}
	kill(t, processesOf(t, p, 1).Supervisor)
	// Its supervisor was killed, most likely unnoticed so far.
	eventually(t, "another starts in its place", func() bool { return p.tryStart(other, 2, "ann", "fine") == nil })
	wait(t, l, 1, "dead", isDead)
	if _, err := l.Revive(t.Context(), id(1)); !isLimit(err) {
		t.Errorf("it is started again: %v", err)
	}
	if done, err := l.Restarting(t.Context(), id(1)); !isLimit(err) {
		t.Errorf("it is restarted: %v", err)
		done()
	}
	if k, err := l.Kernel(t.Context(), id(1)); err != nil || k.State != api.Dead {
		t.Errorf("after that: %+v, %v", k, err)
	}
	if err := l.Stop(t.Context(), id(2), "to make room"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Revive(t.Context(), id(1)); err != nil {
		t.Errorf("there is room: %v", err)
	}
	if err := p.tryStart(other, 3, "ann", "fine"); !isLimit(err) {
		t.Errorf("it counts again: %v", err)
	}
}

// A dead kernel counts as soon as its supervisor is about to be asked to restart it.
func TestLimits_Restarting(t *testing.T) {
	p := newPlace(t)
	p.limited(1, 1)
	l, other := p.launcher(), p.launcher()
	spec := kernelspecs.Spec{
		Name:          "fake",
		Argv:          []string{os.Args[0], "kernel", "-f", "{connection_file}"},
		InterruptMode: "message",
		Metadata:      json.RawMessage(`{"ekg": {"transport": "ipc", "cull": {"idleTimeout": "1s"}}}`),
	}
	if _, _, err := l.Start(t.Context(), launcher.Request{ID: id(1), Owner: "ann", Spec: spec}); err != nil {
		t.Fatal(err)
	}
	wait(t, l, 1, "dead", isDead)
	if p.locked() != 1 {
		t.Fatal("its supervisor does not tell of its end")
	}
	if err := p.tryStart(other, 2, "ann", "fine"); err != nil {
		t.Fatalf("a dead kernel counts: %v", err)
	}
	if _, err := l.Restarting(t.Context(), id(1)); !isLimit(err) {
		t.Errorf("it is restarted: %v", err)
	}
	if err := l.Stop(t.Context(), id(2), "to make room"); err != nil {
		t.Fatal(err)
	}
	done, err := l.Restarting(t.Context(), id(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.tryStart(other, 3, "ann", "fine"); !isLimit(err) {
		t.Errorf("while it is restarted: %v", err)
	}
	done()
	if err := p.tryStart(other, 3, "ann", "fine"); err != nil {
		t.Errorf("it was not restarted after all: %v", err)
	}
}

// A gateway that dies during a start leaves nothing that counts.
func TestLimits_HalfMade(t *testing.T) {
	p := newPlace(t)
	p.limited(1, 1)
	l := p.launcher()
	rec, cfg, err := l.prepare(launcher.Request{ID: id(1), Owner: "ann", Spec: fakeSpec("fine")})
	if err != nil {
		t.Fatal(err)
	}
	k, folder, err := l.makeFolder(rec, cfg)
	if err != nil {
		t.Fatal(err)
	}
	other := p.launcher()
	if err := p.tryStart(other, 2, "ann", "fine"); !isLimit(err) {
		t.Errorf("a kernel that is being made does not count: %v", err)
	}
	flock.Unlock(folder) // as the end of its process does
	// A program that is being started beside the test has the lock until its exec.
	eventually(t, "a kernel whose gateway has died does not count", func() bool {
		return p.tryStart(other, 2, "ann", "fine") == nil
	})
	k.giveTurn()
}
