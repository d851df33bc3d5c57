package jobs

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// runner is Manager.perform.
type runner = func(context.Context, *notebook.Run) (notebook.Result, error)

// A job whose goroutine panics is failed at the second time, whichever gateway has it. Other jobs go on.
func TestManager_Panics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(9)
		var log bytes.Buffer
		gateway := func(bad *string) (*Manager, func()) {
			m := New(records, kernels, Policy{}, slog.New(slog.NewTextHandler(&log, nil)))
			run := runFor(10 * time.Second)
			m.perform = func(ctx context.Context, r *notebook.Run) (notebook.Result, error) {
				if strings.HasPrefix(r.ID, *bad) {
					panic("a hostile display")
				}
				return run(ctx, r)
			}
			return m, started(m)
		}
		bad := ""
		a, endA := gateway(&bad)
		s := submission("eve", "bad")
		s.Token = "t"
		bad = idOf(jobSpace, "eve", "t")
		submit(t, a, s)
		good := submit(t, a, submission("bob", "good"))
		time.Sleep(time.Second)
		if now, err := a.store.job(t.Context(), bad); err != nil || now.Panics != 1 || now.State != Running {
			t.Errorf("after the first panic: %v, %+v", err, now.entry)
		}
		endA()
		b, endB := gateway(&bad)
		time.Sleep(time.Minute)
		wantState(t, b, bad, Failed, reasonPanics)
		wantState(t, b, good, Succeeded, "")
		endB()
		if n := kernels.living(); n != 0 {
			t.Errorf("%d kernels live", n)
		}
		text := log.String()
		if strings.Count(text, "a hostile display") != 2 || !strings.Contains(text, "TestManager_Panics") {
			t.Errorf("the log has no stacks: %s", text)
		}
	})
}

// A job that ends its gateways without a word is failed after three of them had only it. Other jobs are not blamed.
func TestManager_SilentEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, kernels := &launchertest.MemoryRecords{}, newCluster(9)
		// bad runs for the job that ends its gateways. The other one prints nothing for hours.
		gateway := func(bad func(*mortal) runner) (*mortal, *Manager, func()) {
			keeper := &mortal{MemoryRecords: records, left: 1 << 30}
			m := New(keeper, kernels, Policy{}, slog.New(slog.DiscardHandler))
			quiet := runFor(9 * time.Hour)
			m.perform = func(ctx context.Context, r *notebook.Run) (notebook.Result, error) {
				if r.ID == idOf(jobSpace, "eve", "t")+"-1" {
					return bad(keeper)(ctx, r)
				}
				if r.Resume == nil {
					return quiet(ctx, r)
				}
				<-ctx.Done()
				return notebook.Result{}, ctx.Err()
			}
			return keeper, m, started(m)
		}
		die := func(k *mortal) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.dead = true
		}
		first, m, end := gateway(func(*mortal) runner { return runFor(9 * time.Hour) })
		good := submit(t, m, submission("bob", "good"))
		time.Sleep(time.Second)
		s := submission("eve", "bad")
		s.Token = "t"
		bad := submit(t, m, s)
		time.Sleep(time.Second)
		die(first)
		end()
		deaths := 0
		for range 7 {
			var keeper *mortal
			keeper, m, end = gateway(func(k *mortal) runner {
				return func(ctx context.Context, _ *notebook.Run) (notebook.Result, error) {
					deaths++
					die(k)
					<-ctx.Done()
					return notebook.Result{}, ctx.Err()
				}
			})
			time.Sleep(20 * time.Minute)
			die(keeper)
			end()
		}
		wantState(t, m, bad, Failed, reasonSilent)
		wantState(t, m, good, Running, "")
		if deaths != maxShared+maxSilent {
			t.Errorf("%d gateways have died", deaths)
		}
	})
}

// Gateways that end again and again for a cause that is no job's fail none of the jobs that they had.
func TestManager_OtherEnds(t *testing.T) {
	for _, life := range []time.Duration{50 * time.Second, 90 * time.Second, 270 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			records, kernels := &launchertest.MemoryRecords{}, newCluster(9)
			gateway := func() (*mortal, *Manager, func()) {
				keeper := &mortal{MemoryRecords: records, left: 1 << 30}
				m := New(keeper, kernels, Policy{}, slog.New(slog.DiscardHandler))
				m.perform = func(ctx context.Context, r *notebook.Run) (notebook.Result, error) {
					if r.Resume == nil {
						return runFor(99*time.Hour)(ctx, r)
					}
					<-ctx.Done() // it prints nothing
					return notebook.Result{}, ctx.Err()
				}
				return keeper, m, started(m)
			}
			keeper, m, end := gateway()
			ids := []string{submit(t, m, submission("ann", "quiet")), submit(t, m, submission("bob", "quiet"))}
			for range 40 {
				time.Sleep(life)
				keeper.mu.Lock()
				keeper.dead = true
				keeper.mu.Unlock()
				end()
				keeper, m, end = gateway()
			}
			time.Sleep(40 * time.Minute)
			for _, id := range ids {
				wantState(t, m, id, Running, "")
				if now, err := m.store.job(t.Context(), id); err != nil || now.Silent != 0 || m.hold(id) == nil {
					t.Errorf("lives of %s: %v, %d gateways, %v", life, err, now.Silent, m.hold(id))
				}
			}
			end()
		})
	}
}

// A suspect whose end is due ends in a gateway that is young, and no message of it is read. A kernel that its author
// keeps is interrupted.
func TestManager_SuspectEnds(t *testing.T) {
	for why, c := range map[string]struct {
		set   func(*entry)
		state State
		text  string
	}{
		"stop":     {func(e *entry) { e.Stopping = true }, Stopped, reasonStopped},
		"give way": {func(e *entry) { e.GiveWay, e.Retries = "notebook", 1 }, Queued, reasonGaveWay},
		"timeout":  {func(e *entry) { e.Timeout = 1 }, Failed, "timeout of 1 s"},
		"kept":     {func(e *entry) { e.Stopping, e.Then = true, ThenKeep }, Stopped, reasonStopped},
	} {
		synctest.Test(t, func(t *testing.T) {
			kernels := &interrupts{cluster: newCluster(9)}
			kernels.alive["k"] = "eve"
			kernels.setWaits(launcher.GPUWait{Kernel: "notebook"})
			m := New(&launchertest.MemoryRecords{}, kernels, Policy{}, slog.New(slog.DiscardHandler))
			id := submit(t, m, submission("eve", why))
			_, err := m.store.change(t.Context(), id, func(e *entry) error {
				e.State, e.Kernel, e.Attempt, e.Started, e.Holder = Running, "k", 1, time.Now(), "dead"
				e.Silent = maxShared
				c.set(e)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			m.perform = func(ctx context.Context, _ *notebook.Run) (notebook.Result, error) {
				t.Errorf("%s: its messages are read", why)
				<-ctx.Done()
				return notebook.Result{}, ctx.Err()
			}
			end := started(m)
			time.Sleep(trialTime - 10*time.Second)
			wantState(t, m, id, c.state, c.text)
			end()
			kept := why == "kept"
			if kernels.lives("k") != kept || kernels.interrupted != kept {
				t.Errorf("%s: its kernel lives: %v, was interrupted: %v", why, kernels.lives("k"), kernels.interrupted)
			}
		})
	}
}

// interrupts notes that a kernel was interrupted.
type interrupts struct {
	*cluster
	interrupted bool
}

func (i *interrupts) Interrupt(context.Context, Author, string) error {
	i.interrupted = true
	return nil
}
